//! Images for the tests of this crate: generated, or real ones from the folder of test data.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage};

use crate::raster::{Raster, Values};

/// Makes an RGB image whose pixels show their position: red grows with x, green with y.
pub(crate) fn gradient(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([(x * 255 / width) as u8, (y * 255 / height) as u8, 128]))
}

/// Encodes an image as a file of some format.
pub(crate) fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Makes a small PNG file.
pub(crate) fn png(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::Png)
}

/// Adds a chunk to a PNG file.
pub(crate) fn chunk(kind: &[u8; 4], body: &[u8], out: &mut Vec<u8>) {
    let mut data = kind.to_vec();
    data.extend(body);
    let crc = !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| {
                if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
            },
        )
    });
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(data);
    out.extend(crc.to_be_bytes());
}

/// Makes a PNG file with chosen header fields and raw (uncompressed) scan lines: the encoder writes neither
/// 1-bit nor palette images.
pub(crate) fn raw_png(
    width: u32,
    height: u32,
    bits: u8,
    color: u8,
    extra: &[(&[u8; 4], &[u8])],
    lines: &[u8],
) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([bits, color, 0, 0, 0]);
    let (mut a, mut b) = (1u32, 0u32);
    for &byte in lines {
        a = (a + u32::from(byte)) % 65521;
        b = (b + a) % 65521;
    }
    let len = lines.len() as u16;
    let mut zlib = vec![0x78, 0x01, 1];
    zlib.extend(len.to_le_bytes());
    zlib.extend((!len).to_le_bytes());
    zlib.extend(lines);
    zlib.extend((b << 16 | a).to_be_bytes());
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(b"IHDR", &header, &mut out);
    for (kind, body) in extra {
        chunk(kind, body, &mut out);
    }
    chunk(b"IDAT", &zlib, &mut out);
    chunk(b"IEND", &[], &mut out);
    out
}

/// Makes a grey PNG file with chosen values.
pub(crate) fn gray(width: u32, height: u32, value: impl Fn(u32, u32) -> u8) -> Vec<u8> {
    encoded(GrayImage::from_fn(width, height, |x, y| Luma([value(x, y)])), ImageFormat::Png)
}

/// Writes a file and the folders above it.
pub(crate) fn put(path: impl AsRef<Path>, bytes: &[u8]) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Makes `root/split/class/*.png` with good images of 8x8 pixels, as many as given for each class.
pub(crate) fn folder(root: &Path, split: &str, classes: &[(&str, usize)]) {
    for (class, images) in classes {
        for number in 0..*images {
            put(root.join(split).join(class).join(format!("{number:03}.png")), &png(8, 8));
        }
    }
}

/// Makes a split `train` with these images, and lists it.
pub(crate) fn train(classes: &[(&str, usize)]) -> (tempfile::TempDir, crate::Samples) {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", classes);
    let index = crate::sources::classes::scan(root.path(), "train", None).unwrap();
    (root, index)
}

/// Returns a file or folder that other programs have written: `tests/parity/README.md` describes how.
pub(crate) fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference").join(name)
}

/// Returns the values of an image of 8 bits.
pub(crate) fn bytes_of(image: Raster) -> Vec<u8> {
    match image.values {
        Values::U8(values) => values,
        Values::F32(values) => panic!("8-bit values were expected, not {values:?}"),
    }
}

/// Returns the number of images of each class.
pub(crate) fn class_counts(samples: &crate::Samples) -> Vec<usize> {
    let (names, classes) = samples.classes();
    let of = |class| classes.iter().filter(|&&of_sample| of_sample as usize == class).count();
    (0..names.len()).map(of).collect()
}

/// Returns the paths of the samples' first images, below their folder.
pub(crate) fn paths(samples: &crate::Samples) -> Vec<String> {
    let files = samples.images().next().unwrap();
    (0..files.paths.len()).map(|at| files.paths.get(at)).collect()
}
