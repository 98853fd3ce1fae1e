//! Default inputs of the benchmarks, if the user names none: a text and a folder of images.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::files::{canonical, create, write};
use xtask::process::Signals;
use xtask::setup::Problem;

/// Characters of the text: those of English verse, as many as in the collected plays of Shakespeare.
const CHARACTERS: &str = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Enough for several hundred training windows and a few test windows.
const LENGTH: usize = 200_000;

/// Writes the text into the folder unless it exists, and returns the folder. The training speed depends only
/// on the number of different characters, not on their order.
pub(super) fn text(folder: &Path) -> Result<PathBuf> {
    let folder = folder.join("text");
    let path = folder.join("input.txt");
    let text = characters(LENGTH);
    if !fs::read_to_string(&path).is_ok_and(|there| there == text) {
        create(&folder)?;
        write(&path, text)?;
    }
    Ok(folder)
}

/// Returns `length` random characters, the same each time.
fn characters(length: usize) -> String {
    let all: Vec<char> = CHARACTERS.chars().collect();
    let mut next = numbers();
    (0..length).map(|_| all[next() as usize % all.len()]).collect()
}

/// Returns Knuth's MMIX generator; it yields the upper bits, which are the good ones.
pub(crate) fn numbers() -> impl FnMut() -> u32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// Returns the user's folder of images, or a folder that `make_images.py` fills unless it exists.
pub(super) fn images(
    given: Option<&Path>,
    folder: &Path,
    python: &Path,
    script: &Path,
    signals: &Signals,
) -> Result<PathBuf> {
    if let Some(given) = given {
        return canonical("--images", given);
    }
    let made = folder.join("images");
    if made.is_dir() {
        return Ok(made);
    }
    eprintln!("making JPEG files for the loader benchmark");
    // The folder gets its final name only when it is complete.
    let part = folder.join("images.part");
    if part.exists() {
        fs::remove_dir_all(&part).map_err(|error| Problem::write(&part, error))?;
    }
    let code = signals.run(Command::new(python).arg(script).arg(&part))?.code;
    signals.check()?;
    if code != 0 {
        bail!("{} failed with exit code {code}", script.display());
    }
    fs::rename(&part, &made).map_err(|error| Problem::write(&made, error))?;
    Ok(made)
}
