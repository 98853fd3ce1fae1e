//! Choice of the decoder of a file, by its content.

use std::io::Cursor;

use image::{ImageDecoder, ImageFormat, ImageReader, Limits};

use super::super::error::{Result, SampleError, no_image};
use super::extent::Extent;
use super::limits::{LIMIT_BYTES, check_size, damage};
use super::{jpeg, jpeg2000};

/// Returns the format of a file; None for JPEG 2000, which the crate `image` does not know.
pub(super) fn format_of(bytes: &[u8]) -> Result<Option<ImageFormat>> {
    if jpeg2000::is_jpeg2000(bytes) {
        return Ok(None);
    }
    if bytes.is_empty() {
        return Err(SampleError::Empty);
    }
    let format = image::guess_format(bytes).map_err(|_| no_image(bytes, &readable_start(bytes)))?;
    if !format.reading_enabled() {
        return Err(SampleError::Unsupported(format!("the format {format:?}")));
    }
    Ok(Some(format))
}

pub(super) fn open(bytes: &[u8]) -> Result<Box<dyn ImageDecoder + '_>> {
    open_part(bytes, Extent::WHOLE)
}

/// Opens an extent, which must be possible.
pub(super) fn open_part(bytes: &[u8], extent: Extent) -> Result<Box<dyn ImageDecoder + '_>> {
    let decoder: Box<dyn ImageDecoder> = match format_of(bytes)? {
        None => Box::new(jpeg2000::open(bytes)?),
        Some(ImageFormat::Jpeg) => jpeg::open(bytes, extent)?,
        Some(format) => {
            let mut limits = Limits::default();
            limits.max_alloc = Some(LIMIT_BYTES);
            let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
            reader.limits(limits);
            Box::new(reader.into_decoder().map_err(damage)?)
        }
    };
    let (width, height) = decoder.dimensions();
    // The RGB copy needs three bytes a pixel in any case.
    let rgb_bytes = u64::from(width) * u64::from(height) * 3;
    check_size(width, height, decoder.total_bytes().max(rgb_bytes))?;
    Ok(decoder)
}

/// Writes the first bytes of a file for a message: as text if possible, else in hexadecimal.
fn readable_start(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(12)];
    match std::str::from_utf8(start) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => format!("{text:?}"),
        _ => start.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
    }
}
