//! The chunks of a WebP file.

use super::super::error::Result;
use super::limits::truncated;

/// A flag of the chunk `VP8X`: the file has EXIF data, after its pixels.
const HAS_EXIF: u8 = 0x08;
/// The bytes of a frame before its chunks.
const FRAME_HEADER: usize = 16;

/// Returns whether the pixels are compressed with loss. An error means that the bytes end before the answer.
pub(super) fn is_lossy(bytes: &[u8]) -> Result<bool> {
    for (kind, content) in chunks(bytes, 12) {
        match &kind {
            b"VP8 " => return Ok(true),
            b"VP8L" => return Ok(false),
            b"ANMF" => {
                let mut inner = chunks(content, FRAME_HEADER).map(|(kind, _)| kind);
                if let Some(kind) = inner.find(|kind| matches!(kind, b"VP8 " | b"VP8L")) {
                    return Ok(kind == *b"VP8 ");
                }
            }
            _ => {}
        }
    }
    Err(truncated())
}

/// Returns the EXIF data, if the file has any. An error means that the bytes end before it.
pub(super) fn exif(bytes: &[u8]) -> Result<Option<&[u8]>> {
    for (kind, content) in chunks(bytes, 12) {
        match &kind {
            b"VP8X" if content.first().is_some_and(|flags| flags & HAS_EXIF == 0) => return Ok(None),
            // A file without the chunk VP8X has nothing but pixels.
            b"VP8 " | b"VP8L" if bytes.get(12..16) != Some(b"VP8X") => return Ok(None),
            b"EXIF" => return Ok(Some(content.strip_prefix(b"Exif\0\0").unwrap_or(content))),
            _ => {}
        }
    }
    let stated =
        bytes.get(4..8).map_or(u32::MAX, |size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    if bytes.len() as u64 >= u64::from(stated) + 8 { Ok(None) } else { Err(truncated()) }
}

/// Returns the chunks from `at` on: kind and content. The last content may be cut off.
fn chunks(bytes: &[u8], mut at: usize) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(at..at.checked_add(8)?)?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let content = &bytes[at + 8..];
        // A chunk of odd length has a byte of padding.
        at = (at + 8).checked_add(length)?.checked_add(length % 2)?;
        Some(([head[0], head[1], head[2], head[3]], &content[..length.min(content.len())]))
    })
}
