//! What the benchmarks are fed with where the user names nothing: a text and a folder of images.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::process::Signals;
use xtask::setup::Problem;

/// Characters of the text: those of English prose in verse, as many as in the collected plays of Shakespeare.
const CHARACTERS: &str = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Enough for some hundred windows to train on and a few to test on.
const LENGTH: usize = 200_000;

/// Writes the text into the folder, where it is not there, and returns the folder. How fast a network learns from a text does
/// not depend on what it says, only on how many different characters it has.
pub(super) fn text(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("text/input.txt");
    let text = characters(LENGTH);
    if !fs::read_to_string(&path).is_ok_and(|there| there == text) {
        let folder = path.parent().context("a file has a folder")?;
        fs::create_dir_all(folder).map_err(|error| Problem::write(folder, error))?;
        fs::write(&path, text).map_err(|error| Problem::write(&path, error))?;
    }
    Ok(folder.join("text"))
}

/// So many characters in an order without meaning, the same each time.
fn characters(length: usize) -> String {
    let all: Vec<char> = CHARACTERS.chars().collect();
    let mut next = numbers();
    (0..length).map(|_| all[next() as usize % all.len()]).collect()
}

/// Knuth's MMIX generator; the upper bits are the good ones.
pub(crate) fn numbers() -> impl FnMut() -> u32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// The user's folder of images, or one that is made by `make_images.py`, where it is not there.
pub(super) fn images(
    given: Option<&Path>,
    folder: &Path,
    python: &Path,
    script: &Path,
    signals: &Signals,
) -> Result<PathBuf> {
    if let Some(given) = given {
        return given
            .canonicalize()
            .with_context(|| format!("--images names {}, which cannot be opened", given.display()));
    }
    let made = folder.join("images");
    if made.is_dir() {
        return Ok(made);
    }
    eprintln!("making JPEG files for the loaders");
    // Only a whole folder bears the name.
    let part = folder.join("images.part");
    if part.exists() {
        fs::remove_dir_all(&part).map_err(|error| Problem::write(&part, error))?;
    }
    let code = signals.run(Command::new(python).arg(script).arg(&part))?.code;
    signals.check()?;
    if code != 0 {
        bail!("{} has failed with exit code {code}", script.display());
    }
    fs::rename(&part, &made).map_err(|error| Problem::write(&made, error))?;
    Ok(made)
}
