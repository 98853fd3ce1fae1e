//! Inputs of dtrain's trainings. The speed of a step does not depend on the contents of images and text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::bench::numbers;
use crate::files::{create, create_empty, write};
use xtask::setup::Problem;

/// A set of images.
pub(in crate::gpu_test) struct Images {
    /// The name of its folder.
    pub(in crate::gpu_test) name: &'static str,
    pub(in crate::gpu_test) count: usize,
    pub(in crate::gpu_test) classes: usize,
    /// Width and height in the files.
    pub(in crate::gpu_test) side: usize,
}

/// The benchmarks' images: a power of two, so that every batch divides it, with the classes of ImageNet. The run caches the
/// images in memory after enlarging them.
pub(super) const IMAGES: Images = Images { name: "bench-images", count: 1024, classes: 1000, side: 32 };

/// Images of the final evaluation, all of the first class.
const TEST_IMAGES: usize = 8;

/// As in GPT-2.
const VOCABULARY: u32 = 50_257;

/// The first of the text's consecutive characters. All are valid and have two or three bytes in UTF-8.
const FIRST_CHARACTER: u32 = 0x100;

/// A thousand windows.
const CHARACTERS: usize = 1 << 20;

/// Writes `train/CLASS/*.bmp` and `test/CLASS/*.bmp` into a folder in `work` unless it exists; returns it.
pub(in crate::gpu_test) fn images(work: &Path, set: &Images) -> Result<PathBuf> {
    once(&work.join(set.name), |folder| {
        let mut next = numbers();
        for (part, count) in [("train", set.count), ("test", TEST_IMAGES)] {
            for index in 0..count {
                let class = if part == "test" { 0 } else { index % set.classes };
                let class = folder.join(format!("{part}/{class:04}"));
                create(&class)?;
                write(&class.join(format!("{index:04}.bmp")), bitmap(set.side, &mut next))?;
            }
        }
        Ok(())
    })
}

/// Writes a text with as many different characters as GPT-2 has tokens into a folder in `work`, unless it
/// exists, and returns the folder.
pub(super) fn text(work: &Path) -> Result<PathBuf> {
    once(&work.join("bench-text"), |folder| write(&folder.join("input.txt"), characters(CHARACTERS)))
}

/// Fills a folder, which gets its name only when it is complete.
fn once(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if !folder.is_dir() {
        let part = folder.with_extension("part");
        create_empty(&part)?;
        fill(&part)?;
        fs::rename(&part, folder).map_err(|error| Problem::write(folder, error))?;
    }
    Ok(folder.to_path_buf())
}

/// Returns every character once, then random characters, the same each time.
fn characters(length: usize) -> String {
    let mut next = numbers();
    (0..length)
        .map(|index| match u32::try_from(index) {
            Ok(index) if index < VOCABULARY => index,
            _ => next() % VOCABULARY,
        })
        .filter_map(|number| char::from_u32(FIRST_CHARACTER + number))
        .collect()
}

/// Returns a BMP file of noise with 24 bits per pixel.
fn bitmap(side: usize, next: &mut impl FnMut() -> u32) -> Vec<u8> {
    /// Bytes of the file header and the image header.
    const HEADERS: usize = 14 + 40;
    // Rows are padded to multiples of four bytes.
    let row = (3 * side).next_multiple_of(4);
    let (side, pixels) = (side as u32, row * side);
    let mut file = Vec::with_capacity(HEADERS + pixels);
    file.extend(b"BM");
    let header = [(HEADERS + pixels) as u32, 0, HEADERS as u32];
    // Header size, width, height; one plane, 24 bits; uncompressed; bytes of the pixels; four unused fields.
    let picture = [40, side, side, 1 | 24 << 16, 0, pixels as u32, 0, 0, 0, 0];
    for number in header.into_iter().chain(picture) {
        file.extend(number.to_le_bytes());
    }
    file.extend((0..pixels).map(|_| next() as u8));
    file
}
