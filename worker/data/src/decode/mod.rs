//! From the bytes of an image file to its pixels.
//!
//! The content decides the format, not the file's name; arrays of NumPy have the channels that are wanted. JPEG files give the pixels of libjpeg-turbo. The pixels
//! are those that the file stores, as in torchvision; `turn` returns how EXIF data wants them to be shown.
//!
//! Three channels mean a picture: everything becomes 8-bit RGB ([`rgb8`]). Grey is copied to the three
//! channels, palettes are converted to colours, 16 bits are scaled to 8 with rounding, and transparent pixels
//! are laid over white. TIFF files with floating-point samples, or with bands other than RGB and alpha, are
//! errors: as RGB they would mean nothing.
//!
//! Any other number of channels means data ([`pixels`]): the file must have exactly that many. 8-bit values
//! from 0 to 255 and floating-point values stay unchanged; 16-bit values are divided by 65535. One channel
//! also accepts a picture, as its brightness.

use dtrain_recipe::NoData;
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageFormat};

use self::array::{Array, IMAGE, is_array};
use self::bands::Bands;
use self::format::{format_of, open_part};
use self::limits::{catch_panic, damage, truncated};
use super::error::{Result, SampleError};
use super::raster::{Raster, Values};

mod array;
mod bands;
mod chunks;
mod colors;
mod convert;
mod directory;
mod extent;
mod format;
mod gif;
mod jpeg;
mod jpeg2000;
mod kind;
mod limits;
mod lossy;
mod map;
mod mask;
mod no_data;
mod orientation;
mod webp;

pub use colors::{above, colors};
pub use extent::Extent;
pub use kind::{Colours, FileKind, kind};
pub use limits::fits_in_memory;
pub use lossy::lossy;
pub use map::{map, map_header};
pub use mask::{colors_header, mask, mask_header};
pub use no_data::{Encoding, is_same, stated};
pub(super) use orientation::turn;

/// Returns the size that the header states, (width, height), after the checks that need no pixels. `bytes`
/// may end after the header.
pub fn header(bytes: &[u8], channels: usize) -> Result<(u32, u32)> {
    catch_panic(|| {
        if is_array(bytes) {
            return Array::open(bytes, channels, IMAGE).map(|array| array.size);
        }
        if channels == 3 {
            return open_picture(bytes, Extent::WHOLE).map(|decoder| decoder.dimensions());
        }
        match source(bytes, channels, Extent::WHOLE)? {
            Source::Bands(bands) => Ok(bands.size),
            Source::Picture(decoder) => {
                convert::fits(decoder.color_type(), channels)?;
                Ok(decoder.dimensions())
            }
        }
    })
}

/// Returns what [`part`] decodes of a file if `extent` is needed: all of it if its format has no parts, or no smaller sizes.
pub fn possible(bytes: &[u8], channels: usize, extent: Extent) -> Result<Extent> {
    if is_array(bytes) {
        return Ok(Extent::WHOLE);
    }
    Ok(match format_of(bytes)? {
        Some(ImageFormat::Jpeg) if jpeg::has_parts(bytes)? => extent,
        Some(ImageFormat::Tiff) if extent.denominator == 1 && extent.part.is_some() => {
            let has_parts = catch_panic(|| Ok(Bands::open(bytes)?.has_parts(channels)));
            if has_parts.unwrap_or(false) { extent } else { Extent::WHOLE }
        }
        _ => Extent::WHOLE,
    })
}

/// Decodes an image of `channels` channels into `out`. Reuses the memory of `out` and `raw`.
pub fn pixels(bytes: &[u8], channels: usize, raw: &mut Vec<u8>, out: &mut Raster) -> Result<()> {
    part(bytes, channels, Extent::WHOLE, raw, out)
}

/// Decodes an extent of an image as [`pixels`], and replaces values without data by `fill`, as in the file. Without it they are an
/// error.
pub fn filled(
    bytes: &[u8],
    channels: usize,
    extent: Extent,
    (nodata, fill): (NoData, Option<f64>),
    raw: &mut Vec<u8>,
    out: &mut Raster,
) -> Result<()> {
    decode(bytes, channels, extent, raw, out)?;
    no_data::replace(out, Encoding::of(bytes)?, nodata, fill, extent)?;
    finite(out, extent, None)
}

/// Decodes an extent of an image as [`pixels`]; it must be [`possible`].
pub fn part(
    bytes: &[u8],
    channels: usize,
    extent: Extent,
    raw: &mut Vec<u8>,
    out: &mut Raster,
) -> Result<()> {
    decode(bytes, channels, extent, raw, out)?;
    finite(out, extent, None)
}

/// Decodes values that need not be finite.
fn decode(bytes: &[u8], channels: usize, extent: Extent, raw: &mut Vec<u8>, out: &mut Raster) -> Result<()> {
    if is_array(bytes) {
        return catch_panic(|| Array::open(bytes, channels, IMAGE)?.decode(out));
    }
    if let Some(part) = extent.part.filter(|_| channels == 3)
        && format_of(bytes)? == Some(ImageFormat::Tiff)
    {
        return catch_panic(|| Bands::open_checked(bytes, channels)?.decode_part(part, true, out));
    }
    if channels == 3 {
        (out.width, out.height) = rgb8_part(bytes, extent, raw, out.values.u8())?;
        out.channels = 3;
        return Ok(());
    }
    catch_panic(|| match source(bytes, channels, extent)? {
        Source::Bands(bands) => match extent.part {
            None => bands.decode(out),
            Some(part) => bands.decode_part(part, false, out),
        },
        Source::Picture(decoder) => {
            whole(bytes)?;
            let color = decoder.color_type();
            convert::fits(color, channels)?;
            (out.width, out.height) = decoder.dimensions();
            raw.clear();
            raw.resize(decoder.total_bytes() as usize, 0);
            decoder.read_image(raw).map_err(damage)?;
            convert::to_planes(color, raw, channels, out)
        }
    })
}

/// Decodes a picture into `rgb` (row by row, 3 bytes a pixel) and returns (width, height).
pub fn rgb8(bytes: &[u8], raw: &mut Vec<u8>, rgb: &mut Vec<u8>) -> Result<(u32, u32)> {
    rgb8_part(bytes, Extent::WHOLE, raw, rgb)
}

fn rgb8_part(bytes: &[u8], extent: Extent, raw: &mut Vec<u8>, rgb: &mut Vec<u8>) -> Result<(u32, u32)> {
    catch_panic(|| {
        let decoder = open_picture(bytes, extent)?;
        whole(bytes)?;
        let (width, height) = decoder.dimensions();
        let color = decoder.color_type();
        // The check in `open` keeps this within the limit, and so within usize.
        let total = decoder.total_bytes() as usize;
        let target = if color == ColorType::Rgb8 { &mut *rgb } else { &mut *raw };
        target.resize(total, 0);
        decoder.read_image(target).map_err(damage)?;
        if color != ColorType::Rgb8 {
            convert::to_rgb8(color, raw, rgb)?;
        }
        Ok((width, height))
    })
}

enum Source<'a> {
    Bands(Box<Bands<'a>>),
    Picture(Box<dyn ImageDecoder + 'a>),
}

fn source(bytes: &[u8], channels: usize, extent: Extent) -> Result<Source<'_>> {
    if format_of(bytes)? == Some(ImageFormat::Tiff) {
        let bands = Bands::open(bytes)?;
        // The decoder of pictures computes the brightness of a picture.
        if channels != 1 || bands.count == 1 {
            bands.check(channels)?;
            return Ok(Source::Bands(Box::new(bands)));
        }
        return match open_picture(bytes, extent) {
            Ok(picture) => Ok(Source::Picture(picture)),
            // Bands that are not a picture have no brightness.
            Err(SampleError::NotRgb(found)) => Err(SampleError::Channels { found, expected: channels }),
            Err(other) => Err(other),
        };
    }
    let decoder = open_part(bytes, extent)?;
    let found = usize::from(decoder.color_type().channel_count());
    if found != channels && has_false_alpha(bytes, decoder.as_ref())? {
        return Err(SampleError::Channels { found, expected: channels });
    }
    Ok(Source::Picture(decoder))
}

/// Returns whether the last channel is a band like the others, although the decoder names it alpha.
fn has_false_alpha(bytes: &[u8], decoder: &dyn ImageDecoder) -> Result<bool> {
    let is_jpeg2000 = format_of(bytes)?.is_none();
    Ok(is_jpeg2000 && decoder.color_type().has_alpha() && !jpeg2000::has_alpha(bytes))
}

/// Opens an image for conversion to RGB, and rejects data that is not a picture.
fn open_picture(bytes: &[u8], extent: Extent) -> Result<Box<dyn ImageDecoder + '_>> {
    let opened = open_part(bytes, extent);
    let is_tiff = || format_of(bytes).is_ok_and(|format| format == Some(ImageFormat::Tiff));
    if let Err(SampleError::Unsupported { .. }) = opened
        && is_tiff()
        && let Ok(bands) = Bands::open(bytes)
        && bands.check(bands.count).is_ok()
    {
        return Err(match bands.count {
            3 if bands.is_floating() => floating_point(),
            count => SampleError::NotRgb(count),
        });
    }
    let decoder = opened?;
    if has_false_alpha(bytes, decoder.as_ref())? {
        return Err(SampleError::NotRgb(decoder.color_type().channel_count().into()));
    }
    if decoder.original_color_type() == ExtendedColorType::Cmyk16 {
        return Err(SampleError::NotRgb(4));
    }
    if matches!(decoder.color_type(), ColorType::Rgb32F | ColorType::Rgba32F) {
        return Err(floating_point());
    }
    Ok(decoder)
}

fn floating_point() -> SampleError {
    SampleError::Unsupported("an image with floating-point samples".to_owned())
}

/// Rejects a truncated JPEG: its decoder would fill the rest with grey.
fn whole(bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(&[0xff, jpeg::SOI]) && !jpeg::is_whole(bytes) {
        return Err(truncated());
    }
    Ok(())
}

/// Rejects values that are not finite, except those without data: one would spread over the whole model.
fn finite(image: &Raster, extent: Extent, nothing: Option<f32>) -> Result<()> {
    let Values::F32(values) = &image.values else { return Ok(()) };
    let is_wrong =
        |value: &f32| !value.is_finite() && !nothing.is_some_and(|nothing| is_same(*value, nothing));
    match values.iter().position(is_wrong) {
        None => Ok(()),
        Some(first) => {
            let width = (image.width as usize).max(1);
            let (left, top) = extent.part.map_or((0, 0), |part| (part.left as usize, part.top as usize));
            let pixels = width * (image.height as usize).max(1);
            Err(SampleError::NotFinite {
                value: values[first],
                channel: first / pixels,
                row: top + first % pixels / width,
                column: left + first % width,
                count: values.iter().filter(|value| is_wrong(value)).count(),
            })
        }
    }
}

#[cfg(test)]
mod tests;
