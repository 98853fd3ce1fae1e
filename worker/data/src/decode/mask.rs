//! Masks: images whose values are class numbers. They must never be scaled, mixed or converted to colours.

use std::io::Cursor;

use image::{ColorType, ImageDecoder, ImageFormat};
use png::{BitDepth, Transformations};
use tiff::decoder::DecodingResult;

use super::super::error::{Result, SampleError};
use super::super::raster::Labels;
use super::bands::Bands;
use super::format::{format_of, open};
use super::limits::{self, LIMIT_BYTES, catch_panic, check_size, truncated};
use super::lossy::refuse_lossy_mask;

/// Returns the size that a mask's header states, (width, height).
pub fn mask_header(bytes: &[u8]) -> Result<(u32, u32)> {
    refuse_lossy_mask(bytes)?;
    catch_panic(|| match format_of(bytes)? {
        ImageFormat::Tiff => Ok(Bands::open_one(bytes, SampleError::ColorMask)?.size),
        _ => open(bytes).map(|decoder| decoder.dimensions()),
    })
}

/// Reads the numbers of a mask: palette indexes, or grey values as stored. RGB is read if the three values
/// agree, transparency is ignored, files whose compression changes values are errors.
pub fn mask(bytes: &[u8], raw: &mut Vec<u8>, out: &mut Labels) -> Result<()> {
    out.values.clear();
    refuse_lossy_mask(bytes)?;
    catch_panic(|| match format_of(bytes)? {
        ImageFormat::Png => png_mask(bytes, raw, out),
        ImageFormat::Tiff => tiff_mask(bytes, out),
        _ => {
            let decoder = open(bytes)?;
            (out.width, out.height) = decoder.dimensions();
            let color = decoder.color_type();
            raw.clear();
            raw.resize(decoder.total_bytes() as usize, 0);
            decoder.read_image(raw).map_err(limits::damage)?;
            let channels = usize::from(color.channel_count());
            if !matches!(color, ColorType::L8 | ColorType::La8 | ColorType::Rgb8 | ColorType::Rgba8) {
                return Err(SampleError::ColorMask(channels));
            }
            collect(raw.chunks_exact(channels).map(|pixel| grey(pixel).map(u16::from)), channels, out)
        }
    })
}

fn png_mask(bytes: &[u8], raw: &mut Vec<u8>, out: &mut Labels) -> Result<()> {
    let limits = png::Limits { bytes: LIMIT_BYTES as usize };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(damage)?;
    let (width, height) = reader.info().size();
    let pixels = u64::from(width) * u64::from(height);
    let (color, depth) = reader.output_color_type();
    let needed = reader.output_buffer_size().unwrap_or(usize::MAX);
    check_size(width, height, (needed as u64).max(2 * pixels))?;
    raw.clear();
    raw.resize(needed, 0);
    let frame = reader.next_frame(raw).map_err(damage)?;
    (out.width, out.height) = (width, height);
    let channels = color.samples();
    let rows = raw[..frame.buffer_size()].chunks_exact(frame.line_size.max(1));
    match depth {
        BitDepth::Eight => {
            let pixels = rows.flat_map(|row| row.chunks_exact(channels));
            collect(pixels.map(|pixel| grey(pixel).map(u16::from)), channels, out)
        }
        BitDepth::Sixteen => {
            let word = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
            let pixels = rows.flat_map(|row| row.chunks_exact(2 * channels));
            let value = |pixel: &[u8]| {
                let mut words = [0u16; 4];
                words.iter_mut().zip(pixel.chunks_exact(2)).for_each(|(to, bytes)| *to = word(bytes));
                grey(&words[..channels])
            };
            collect(pixels.map(value), channels, out)
        }
        BitDepth::One | BitDepth::Two | BitDepth::Four => {
            // Only grey and palette images have so few bits; the leftmost pixel is in the highest bits.
            let bits = depth as usize;
            let per_byte = 8 / bits;
            let mask = (1u16 << bits) - 1;
            let value =
                |row: &[u8], x: usize| u16::from(row[x / per_byte]) >> (8 - bits * (x % per_byte + 1)) & mask;
            let values = rows.flat_map(|row| (0..width as usize).map(move |x| Some(value(row, x))));
            collect(values, channels, out)
        }
    }
}

fn tiff_mask(bytes: &[u8], out: &mut Labels) -> Result<()> {
    let bands = Bands::open_one(bytes, SampleError::ColorMask)?;
    (out.width, out.height) = bands.size;
    // Classes may be stored as floating-point numbers; only whole numbers are classes.
    let whole = |value: f64| {
        let number = value as u16;
        (f64::from(number) == value).then_some(number)
    };
    match bands.values()? {
        DecodingResult::U8(values) => collect(values.into_iter().map(|it| Some(u16::from(it))), 1, out),
        DecodingResult::U16(values) => collect(values.into_iter().map(Some), 1, out),
        DecodingResult::F32(values) => collect(values.into_iter().map(|it| whole(f64::from(it))), 1, out),
        DecodingResult::F64(values) => collect(values.into_iter().map(whole), 1, out),
        _ => Err(SampleError::ColorMask(1)),
    }
}

/// Returns the value of a pixel of 1 (class), 2 (class, opacity), 3 or 4 values, if it is one number.
fn grey<T: Copy + PartialEq>(pixel: &[T]) -> Option<T> {
    match pixel {
        [value] | [value, _] => Some(*value),
        [r, g, b] | [r, g, b, _] => (r == g && g == b).then_some(*r),
        _ => None,
    }
}

fn collect(values: impl Iterator<Item = Option<u16>>, channels: usize, out: &mut Labels) -> Result<()> {
    out.values.reserve(out.width as usize * out.height as usize);
    for value in values {
        out.values.push(value.ok_or(SampleError::ColorMask(channels))?);
    }
    if out.values.len() != out.width as usize * out.height as usize {
        return Err(truncated());
    }
    Ok(())
}

fn damage(error: png::DecodingError) -> SampleError {
    match error {
        png::DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            truncated()
        }
        other => SampleError::Damaged(other.to_string()),
    }
}
