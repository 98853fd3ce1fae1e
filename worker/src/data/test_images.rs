//! Images for the tests of this module: made on the spot, or real ones from the folder of test data.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

/// An RGB image in which every pixel tells its place: red grows with x, green with y.
pub(super) fn gradient(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([(x * 255 / width) as u8, (y * 255 / height) as u8, 128])
    })
}

/// The image as a file of some format.
pub(super) fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A small PNG file.
pub(super) fn png(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::Png)
}

/// Writes a file and the folders above it.
pub(super) fn put(path: impl AsRef<Path>, bytes: &[u8]) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// `root/split/class/*.png` with so many good images of 8x8 pixels for each class.
pub(super) fn folder(root: &Path, split: &str, classes: &[(&str, usize)]) {
    for (class, images) in classes {
        for number in 0..*images {
            put(
                root.join(split).join(class).join(format!("{number:03}.png")),
                &png(8, 8),
            );
        }
    }
}

/// A folder of the real test data, or `None` (and a line that says so) where it is absent. It is looked for in the
/// folder that the variable `DTRAIN_TEST_DATA` names, else in `shared/data` beside the workspace.
pub(super) fn real(name: &str) -> Option<PathBuf> {
    let data = match std::env::var_os("DTRAIN_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
    };
    let folder = data.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    println!(
        "skipped: {} is absent; set DTRAIN_TEST_DATA to the folder of test data",
        folder.display()
    );
    None
}
