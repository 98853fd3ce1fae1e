//! Masks: images whose values are class numbers. They must never be scaled, mixed or converted to colours.

use std::io::Cursor;

use image::{ColorType, ImageDecoder, ImageFormat};
use png::{BitDepth, Transformations};
use tiff::decoder::DecodingResult;
use tiff::tags::{PhotometricInterpretation, Tag};

use super::super::error::{Result, SampleError};
use super::super::raster::Labels;
use super::array::{Array, is_array};
use super::bands::{Bands, as_grey};
use super::directory::Directory;
use super::format::{format_of, open};
use super::gif;
use super::limits::{self, LIMIT_BYTES, catch_panic, check_size, truncated};

/// The name of a mask's array in an archive with several.
const MASK: &str = "mask";

/// Returns the size that the header of a mask of numbers states, (width, height).
pub fn mask_header(bytes: &[u8]) -> Result<(u32, u32)> {
    if is_array(bytes) {
        return catch_panic(|| Array::open(bytes, 1, MASK).map(|array| array.size));
    }
    catch_panic(|| match format_of(bytes)? {
        Some(ImageFormat::Tiff) => {
            let patched = unpainted(bytes);
            Ok(Bands::open_mask(patched.as_deref().unwrap_or(bytes))?.size)
        }
        Some(ImageFormat::Gif) => gif::size(bytes),
        _ => open(bytes).map(|decoder| decoder.dimensions()),
    })
}

/// Returns the size that the header of a mask of colours states, (width, height).
pub fn colors_header(bytes: &[u8]) -> Result<(u32, u32)> {
    catch_panic(|| match format_of(bytes)? {
        Some(ImageFormat::Tiff) => Ok(Bands::open(unpainted(bytes).as_deref().unwrap_or(bytes))?.size),
        Some(ImageFormat::Gif) => gif::size(bytes),
        _ => open(bytes).map(|decoder| decoder.dimensions()),
    })
}

/// Reads the numbers of a mask: palette indexes, or grey values as stored. RGB is read if the three values
/// agree, transparency is ignored.
pub fn mask(bytes: &[u8], raw: &mut Vec<u8>, out: &mut Labels) -> Result<()> {
    out.values.clear();
    if is_array(bytes) {
        return catch_panic(|| Array::open(bytes, 1, MASK)?.mask(out));
    }
    catch_panic(|| match format_of(bytes)? {
        Some(ImageFormat::Png) => png_mask(bytes, raw, out),
        Some(ImageFormat::Gif) => gif::indexes(bytes, out),
        Some(ImageFormat::Tiff) => tiff_mask(bytes, out),
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
        // Only grey and palette images have so few bits.
        BitDepth::One | BitDepth::Two | BitDepth::Four => {
            let values = rows.flat_map(|row| unpacked(row, depth as usize, width as usize));
            collect(values.map(|value| Some(u16::from(value))), channels, out)
        }
    }
}

/// Returns the values of a row of 1, 2, 4 or 8 bits each; the leftmost pixel is in the highest bits.
fn unpacked(row: &[u8], bits: usize, width: usize) -> impl Iterator<Item = u8> + '_ {
    let per_byte = 8 / bits;
    let mask = u8::MAX >> (8 - bits);
    (0..width).map(move |x| row[x / per_byte] >> (8 - bits * (x % per_byte + 1)) & mask)
}

/// Returns a palette file without its palette, so that its indexes can be read as grey values; None for others.
fn unpainted(bytes: &[u8]) -> Option<Vec<u8>> {
    let photometric = Directory::open(bytes)?.number_of(Tag::PhotometricInterpretation.to_u16())?;
    let is_palette = photometric == u64::from(PhotometricInterpretation::RGBPalette.to_u16());
    is_palette.then(|| as_grey(bytes)).flatten()
}

/// The size of a palette file, its indexes and its colours.
type Painted = ((u32, u32), Vec<u8>, Vec<[u8; 3]>);

/// Reads a palette TIFF file, or one of one band of fewer than 8 bits, whose palette is grey; None for others.
pub(super) fn tiff_palette(bytes: &[u8]) -> Result<Option<Painted>> {
    let patched = unpainted(bytes);
    if patched.is_none() && Directory::open(bytes).is_none() {
        return Ok(None);
    }
    let Ok(mut bands) = Bands::open_mask(patched.as_deref().unwrap_or(bytes)) else { return Ok(None) };
    let (size, bits) = (bands.size, bands.bits());
    if patched.is_none() && bits >= 8 {
        return Ok(None);
    }
    let count = 1usize << bits.min(8);
    let palette = match patched {
        None => (0..count).map(|at| [(at * 255 / (count - 1)) as u8; 3]).collect(),
        Some(_) => {
            // All red values come first.
            let words = bands.color_map()?;
            if words.len() < 3 * count {
                return Err(SampleError::Damaged("the palette is too short".to_owned()));
            }
            let level = |at: usize| (words[at] >> 8) as u8;
            (0..count).map(|at| [level(at), level(count + at), level(2 * count + at)]).collect()
        }
    };
    Ok(Some((size, narrow(bands)?, palette)))
}

/// Returns the values of a file of up to 8 bits a pixel.
fn narrow(bands: Bands<'_>) -> Result<Vec<u8>> {
    let ((width, height), bits) = (bands.size, usize::from(bands.bits()));
    let DecodingResult::U8(packed) = bands.values()? else { return Err(SampleError::ColorMask(1)) };
    let (width, height) = (width as usize, height as usize);
    let row = (width * bits).div_ceil(8);
    if packed.len() < row * height {
        return Err(truncated());
    }
    Ok(packed.chunks_exact(row.max(1)).take(height).flat_map(|row| unpacked(row, bits, width)).collect())
}

fn tiff_mask(bytes: &[u8], out: &mut Labels) -> Result<()> {
    let patched = unpainted(bytes);
    let bands = Bands::open_mask(patched.as_deref().unwrap_or(bytes))?;
    (out.width, out.height) = bands.size;
    if bands.bits() < 8 {
        return collect(narrow(bands)?.into_iter().map(|value| Some(u16::from(value))), 1, out);
    }
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
