//! From the bytes of an image file to its pixels.
//!
//! The format is taken from the content, not from the file's name. JPEG files give the pixels of libjpeg-turbo. A stored rotation (EXIF) is not applied, as torchvision
//! does not either.
//!
//! Three channels mean a picture: everything becomes 8-bit RGB ([`rgb8`]). Grey is copied to the three channels, palettes
//! are looked up, 16 bits are scaled over their full range with rounding, and transparent pixels are laid over white. TIFF
//! files with floating-point samples, or with bands that are not RGB and alpha, are refused: made into RGB they would
//! mean nothing.
//!
//! Any other number of channels means data ([`pixels`]): the file must have just as many, and they stay what they are, 8-bit
//! values from 0 to 255, 16-bit values divided by 65535, floating-point values unchanged. Only for one channel, the
//! brightness of a picture will do.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{ColorType, ExtendedColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use self::bands::Bands;
use super::error::SampleError;
use super::raster::{Raster, Values};

mod bands;
mod convert;
mod jpeg;
mod mask;

pub use mask::{mask, mask_header};

/// The most memory that one decoded image may take: a header can state any size, a few bytes long.
pub const LIMIT_BYTES: u64 = 512 << 20;

/// Why a file is damaged, most often.
const CUT_SHORT: &str = "the file is cut short";

/// The size that the header states, (width, height), after the checks that need no pixels: a known format, a kind
/// that is read, `channels` channels, a size within the limit. `bytes` may be only the beginning of a file if the header
/// lies in it.
///
/// # Errors
/// What is wrong with the header.
pub fn header(bytes: &[u8], channels: usize) -> Result<(u32, u32), SampleError> {
    guarded(|| {
        if channels == 3 {
            return open_picture(bytes).map(|decoder| decoder.dimensions());
        }
        match source(bytes, channels)? {
            Source::Bands(bands) => Ok(bands.size),
            Source::Picture(decoder) => {
                convert::fits(decoder.color_type(), channels)?;
                Ok(decoder.dimensions())
            }
        }
    })
}

/// Decodes an image of `channels` channels into `out`, whose memory is used again, as `raw` is.
///
/// # Errors
/// What is wrong with the file. `out` then holds nothing of use.
pub fn pixels(bytes: &[u8], channels: usize, raw: &mut Vec<u8>, out: &mut Raster) -> Result<(), SampleError> {
    if channels == 3 {
        (out.width, out.height) = rgb8(bytes, raw, out.used_u8())?;
        out.channels = 3;
        return Ok(());
    }
    guarded(|| match source(bytes, channels)? {
        Source::Bands(bands) => bands.decode(out),
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
    })?;
    finite(out)
}

/// Decodes a picture into `rgb` (row by row, 3 bytes a pixel) and returns (width, height).
///
/// `raw` is working memory; both are kept by the caller to be used again.
///
/// # Errors
/// What is wrong with the file. `rgb` then holds nothing of use.
pub fn rgb8(bytes: &[u8], raw: &mut Vec<u8>, rgb: &mut Vec<u8>) -> Result<(u32, u32), SampleError> {
    guarded(|| {
        let decoder = open_picture(bytes)?;
        whole(bytes)?;
        let (width, height) = decoder.dimensions();
        let color = decoder.color_type();
        // The check in `open` keeps this within the limit, and so within usize.
        let total = decoder.total_bytes() as usize;
        let target = if color == ColorType::Rgb8 {
            &mut *rgb
        } else {
            &mut *raw
        };
        target.resize(total, 0);
        decoder.read_image(target).map_err(damage)?;
        if color != ColorType::Rgb8 {
            convert::to_rgb8(color, raw, rgb)?;
        }
        Ok((width, height))
    })
}

/// Decoders are fed with whatever lies in a folder; should one panic on it, that is one bad image, not the end.
fn guarded<T>(decode: impl FnOnce() -> Result<T, SampleError>) -> Result<T, SampleError> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| {
        Err(SampleError::Damaged {
            reason: "the decoder failed on it".to_owned(),
        })
    })
}

/// Who decodes a file whose channels are data.
enum Source<'a> {
    Bands(Box<Bands<'a>>),
    Picture(Box<dyn ImageDecoder + 'a>),
}

fn source(bytes: &[u8], channels: usize) -> Result<Source<'_>, SampleError> {
    if format_of(bytes)? == ImageFormat::Tiff {
        let bands = Bands::open(bytes)?;
        // A picture's brightness is left to the decoder of pictures.
        if channels != 1 || bands.count == 1 {
            bands.check(channels)?;
            return Ok(Source::Bands(Box::new(bands)));
        }
        return match open_picture(bytes) {
            Ok(picture) => Ok(Source::Picture(picture)),
            // Bands that make no picture have no brightness.
            Err(SampleError::NotRgb { channels: found }) => Err(SampleError::Channels {
                found,
                expected: channels,
            }),
            Err(other) => Err(other),
        };
    }
    open(bytes).map(Source::Picture)
}

fn format_of(bytes: &[u8]) -> Result<ImageFormat, SampleError> {
    if bytes.is_empty() {
        return Err(SampleError::Empty);
    }
    let format = image::guess_format(bytes).map_err(|_| SampleError::NotAnImage {
        start: readable_start(bytes),
    })?;
    if !format.reading_enabled() {
        return Err(SampleError::Unsupported {
            what: format!("the format {format:?}"),
        });
    }
    Ok(format)
}

fn open(bytes: &[u8]) -> Result<Box<dyn ImageDecoder + '_>, SampleError> {
    let decoder: Box<dyn ImageDecoder> = match format_of(bytes)? {
        ImageFormat::Jpeg => jpeg::open(bytes)?,
        format => {
            let mut limits = Limits::default();
            limits.max_alloc = Some(LIMIT_BYTES);
            let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
            reader.limits(limits);
            Box::new(reader.into_decoder().map_err(damage)?)
        }
    };
    let (width, height) = decoder.dimensions();
    // Three bytes a pixel are needed in any case, for the RGB copy.
    let rgb_bytes = u64::from(width) * u64::from(height) * 3;
    check_size(width, height, decoder.total_bytes().max(rgb_bytes))?;
    Ok(decoder)
}

/// Opens an image that is to become RGB, and refuses what would mean nothing as such.
fn open_picture(bytes: &[u8]) -> Result<Box<dyn ImageDecoder + '_>, SampleError> {
    let opened = open(bytes);
    let is_tiff = || format_of(bytes).is_ok_and(|format| format == ImageFormat::Tiff);
    if let Err(SampleError::Unsupported { .. }) = opened
        && is_tiff()
        && let Ok(bands) = Bands::open(bytes)
        && bands.check(bands.count).is_ok()
    {
        return Err(SampleError::NotRgb {
            channels: bands.count,
        });
    }
    let decoder = opened?;
    if decoder.original_color_type() == ExtendedColorType::Cmyk16 {
        return Err(SampleError::NotRgb { channels: 4 });
    }
    if matches!(decoder.color_type(), ColorType::Rgb32F | ColorType::Rgba32F) {
        return Err(SampleError::Unsupported {
            what: "an image with floating-point samples".to_owned(),
        });
    }
    Ok(decoder)
}

/// The JPEG decoder fills what is missing with grey.
fn whole(bytes: &[u8]) -> Result<(), SampleError> {
    if bytes.starts_with(&[0xff, jpeg::SOI]) && !jpeg::is_whole(bytes) {
        return Err(SampleError::Damaged {
            reason: CUT_SHORT.to_owned(),
        });
    }
    Ok(())
}

fn check_size(width: u32, height: u32, decoded_bytes: u64) -> Result<(), SampleError> {
    if width == 0 || height == 0 {
        return Err(SampleError::Damaged {
            reason: format!("the header states {width}x{height} pixels"),
        });
    }
    if decoded_bytes > LIMIT_BYTES {
        return Err(SampleError::TooLarge {
            width,
            height,
            limit_bytes: LIMIT_BYTES,
        });
    }
    Ok(())
}

/// One value that is no number would spread over the whole model.
fn finite(image: &Raster) -> Result<(), SampleError> {
    let Values::F32(values) = &image.values else {
        return Ok(());
    };
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(first) => {
            let width = (image.width as usize).max(1);
            let pixels = width * (image.height as usize).max(1);
            Err(SampleError::NotFinite {
                value: values[first],
                channel: first / pixels,
                row: first % pixels / width,
                column: first % width,
                count: values.iter().filter(|value| !value.is_finite()).count(),
            })
        }
    }
}

fn damage(error: ImageError) -> SampleError {
    match error {
        ImageError::Unsupported(error) => SampleError::Unsupported {
            what: format!("this kind of image ({error})"),
        },
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            SampleError::Damaged {
                reason: CUT_SHORT.to_owned(),
            }
        }
        other => SampleError::Damaged {
            reason: other.to_string(),
        },
    }
}

/// The first bytes of a file for a message: text as text, else in hexadecimal.
fn readable_start(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(12)];
    match std::str::from_utf8(start) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => format!("{text:?}"),
        _ => start
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

#[cfg(test)]
mod data_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod raw_tiff;
#[cfg(test)]
mod tests;
