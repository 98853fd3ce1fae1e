//! The orientation that a file's EXIF data states.

use image::ImageFormat;

use super::super::error::Result;
use super::super::turn::Turn;
use super::directory::Directory;
use super::format::format_of;
use super::limits::truncated;
use super::{array, jpeg, webp};

/// The tag of the orientation, in EXIF data and in TIFF files.
const ORIENTATION: u16 = 274;

/// Returns how the file is to be turned before it is shown. `bytes` may end after the header; an error means
/// that the tag may be further on.
pub(in super::super) fn turn(bytes: &[u8]) -> Result<Turn> {
    if array::is_array(bytes) {
        return Ok(Turn::NONE);
    }
    let exif = match format_of(bytes)? {
        Some(ImageFormat::Jpeg) => jpeg::exif(bytes)?,
        Some(ImageFormat::Png) => png_exif(bytes)?,
        Some(ImageFormat::WebP) => webp::exif(bytes)?,
        Some(ImageFormat::Tiff) => Some(bytes),
        _ => None,
    };
    let tag = exif.and_then(Directory::open).and_then(|directory| directory.number_of(ORIENTATION));
    Ok(tag.map_or(Turn::NONE, Turn::of_tag))
}

/// Returns the EXIF data of a PNG file, if it has any. An error means that the bytes end before it: it may also
/// follow the pixels.
fn png_exif(bytes: &[u8]) -> Result<Option<&[u8]>> {
    let mut at = 8;
    let mut next = || {
        let head = bytes.get(at..at + 8)?;
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let content = bytes.get(at + 8..)?.get(..length);
        // Length, kind and checksum.
        at = at.checked_add(12)?.checked_add(length)?;
        Some((&head[4..], content))
    };
    while let Some((kind, content)) = next() {
        match kind {
            b"eXIf" if content.is_some() => return Ok(content),
            b"IEND" => return Ok(None),
            _ => {}
        }
    }
    Err(truncated())
}
