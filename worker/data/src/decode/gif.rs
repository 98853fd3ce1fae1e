//! The first frame of a GIF file: indexes in its palette.

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

use super::super::error::{Result, SampleError};
use super::super::raster::Labels;
use super::limits::{LIMIT_BYTES, check_size, truncated};

/// Returns the size that the header states, (width, height).
pub(super) fn size(bytes: &[u8]) -> Result<(u32, u32)> {
    let decoder = options().read_info(bytes).map_err(damage)?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    check_size(width, height, 3 * u64::from(width) * u64::from(height))?;
    Ok((width, height))
}

/// Reads the indexes of the first frame's pixels, and calls `take` with its palette of three values for each. Outside of the frame
/// pixels have the transparent index, else 0, as in Pillow.
fn read<T>(bytes: &[u8], take: impl FnOnce((u32, u32), Vec<u8>, &[u8]) -> T) -> Result<T> {
    let (width, height) = size(bytes)?;
    let mut decoder = options().read_info(bytes).map_err(damage)?;
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.read_next_frame().map_err(damage)?;
    let frame = frame.ok_or_else(|| SampleError::Damaged("the file has no frame".to_owned()))?;
    let mut indexes = vec![frame.transparent.unwrap_or(0); width as usize * height as usize];
    let row = usize::from(frame.width).max(1);
    let visible = row.min((width as usize).saturating_sub(usize::from(frame.left)));
    let rows = indexes.chunks_exact_mut(width as usize).skip(usize::from(frame.top));
    for (to, from) in rows.zip(frame.buffer.chunks_exact(row)) {
        to[usize::from(frame.left).min(width as usize)..][..visible].copy_from_slice(&from[..visible]);
    }
    let palette = frame.palette.as_deref().or(global.as_deref());
    Ok(take((width, height), indexes, palette.unwrap_or(&[])))
}

/// Reads the indexes as numbers.
pub(super) fn indexes(bytes: &[u8], out: &mut Labels) -> Result<()> {
    read(bytes, |size, indexes, _| {
        (out.width, out.height) = size;
        out.values.extend(indexes.into_iter().map(u16::from));
    })
}

/// Reads the colours, three values a pixel; an index beyond the palette is black.
pub(super) fn colors(bytes: &[u8], rgb: &mut Vec<u8>) -> Result<(u32, u32)> {
    read(bytes, |size, indexes, palette| {
        let (palette, _) = palette.as_chunks::<3>();
        rgb.extend(indexes.iter().flat_map(|&index| palette.get(usize::from(index)).unwrap_or(&[0; 3])));
        size
    })
}

fn options() -> DecodeOptions {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    if let Some(limit) = std::num::NonZeroU64::new(LIMIT_BYTES) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    options
}

fn damage(error: DecodingError) -> SampleError {
    match error {
        DecodingError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        other => SampleError::Damaged(other.to_string()),
    }
}
