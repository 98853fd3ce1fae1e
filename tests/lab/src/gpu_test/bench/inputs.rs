//! What dtrain's trainings are fed with. How fast a step is does not depend on what the images and the text say.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::bench::numbers;
use xtask::setup::Problem;

/// A power of two, so that every batch divides it.
const IMAGES: usize = 1024;

/// ImageNet's number.
const CLASSES: usize = 1000;

/// Width and height in the files. The run keeps them in memory as they are after they were enlarged.
const SIDE: usize = 32;

/// Images to evaluate at the end of a run, all of the first class.
const TEST_IMAGES: usize = 8;

/// GPT-2's number.
const VOCABULARY: u32 = 50_257;

/// The characters of the text follow each other from here on; all of them are in the plane of two and three bytes.
const FIRST_CHARACTER: u32 = 0x100;

/// A thousand windows.
const CHARACTERS: usize = 1 << 20;

/// Writes `train/CLASS/*.bmp` and `test/CLASS/*.bmp` into a folder of this one, where it is not there, and returns it.
pub(super) fn images(work: &Path) -> Result<PathBuf> {
    once(&work.join("bench-images"), |folder| {
        let mut next = numbers();
        for (part, count) in [("train", IMAGES), ("test", TEST_IMAGES)] {
            for index in 0..count {
                let class = if part == "test" { 0 } else { index % CLASSES };
                let class = folder.join(format!("{part}/{class:04}"));
                fs::create_dir_all(&class).map_err(|error| Problem::write(&class, error))?;
                let path = class.join(format!("{index:04}.bmp"));
                fs::write(&path, bitmap(SIDE, &mut next)).map_err(|error| Problem::write(&path, error))?;
            }
        }
        Ok(())
    })
}

/// Writes a text of as many different characters as GPT-2 has tokens into a folder of this one, where it is not there, and
/// returns the folder.
pub(super) fn text(work: &Path) -> Result<PathBuf> {
    once(&work.join("bench-text"), |folder| {
        let path = folder.join("input.txt");
        fs::write(&path, characters(CHARACTERS)).map_err(|error| Problem::write(&path, error).into())
    })
}

/// Fills a folder that gets its name when it is whole.
fn once(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if !folder.is_dir() {
        let part = folder.with_extension("part");
        if part.exists() {
            fs::remove_dir_all(&part).map_err(|error| Problem::write(&part, error))?;
        }
        fs::create_dir_all(&part).map_err(|error| Problem::write(&part, error))?;
        fill(&part)?;
        fs::rename(&part, folder).map_err(|error| Problem::write(folder, error))?;
    }
    Ok(folder.to_path_buf())
}

/// First every character once, then any, in an order without meaning, the same each time.
fn characters(length: usize) -> String {
    let mut next = numbers();
    (0..length)
        .map(|place| match u32::try_from(place) {
            Ok(place) if place < VOCABULARY => place,
            _ => next() % VOCABULARY,
        })
        .filter_map(|number| char::from_u32(FIRST_CHARACTER + number))
        .collect()
}

/// A BMP file of 24 bits for a pixel, made of noise.
fn bitmap(side: usize, next: &mut impl FnMut() -> u32) -> Vec<u8> {
    /// Of the file and of the picture.
    const HEADERS: usize = 14 + 40;
    // A row is filled up to four bytes.
    let row = (3 * side).next_multiple_of(4);
    let (side, pixels) = (side as u32, row * side);
    let mut file = Vec::with_capacity(HEADERS + pixels);
    file.extend(b"BM");
    let header = [(HEADERS + pixels) as u32, 0, HEADERS as u32];
    // Size of this header, width, height; one plane of 24 bits; uncompressed; bytes of the pixels; no more to say.
    let picture = [40, side, side, 1 | 24 << 16, 0, pixels as u32, 0, 0, 0, 0];
    for number in header.into_iter().chain(picture) {
        file.extend(number.to_le_bytes());
    }
    file.extend((0..pixels).map(|_| next() as u8));
    file
}
