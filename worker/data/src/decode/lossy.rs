//! Compression that changes values: harmless in pictures, wrong in masks.

use image::ImageFormat;
use tiff::tags::Tag;

use super::super::error::Result;
use super::directory::Directory;
use super::format::format_of;
use super::{array, webp};

/// Returns the name of the compression if it changed the file's values. `bytes` may end after the header; an
/// error means that they end before the answer.
pub fn lossy(bytes: &[u8]) -> Result<Option<&'static str>> {
    if array::is_array(bytes) {
        return Ok(None);
    }
    Ok(match format_of(bytes)? {
        // Each tile of JPEG 2000 may be lossless or not.
        None => Some("JPEG 2000"),
        Some(ImageFormat::Jpeg) => Some("JPEG"),
        Some(ImageFormat::WebP) => webp::is_lossy(bytes)?.then_some("lossy WebP"),
        Some(ImageFormat::Tiff) => inside_tiff(bytes),
        _ => None,
    })
}

fn inside_tiff(bytes: &[u8]) -> Option<&'static str> {
    let directory = Directory::open(bytes)?;
    let number = |tag: Tag| directory.number_of(tag.to_u16());
    match number(Tag::Compression)? {
        // JPEG in its old and its new form, and as Adobe's DNG marks it.
        6 | 7 | 34892 => Some("JPEG-compressed TIFF"),
        50001 => {
            let strip = number(Tag::StripOffsets).or_else(|| number(Tag::TileOffsets))?;
            let part = bytes.get(usize::try_from(strip).ok()?..)?;
            webp::is_lossy(part).ok()?.then_some("TIFF with lossy WebP inside")
        }
        _ => None,
    }
}
