//! From the bytes of an image file to 8-bit RGB.
//!
//! The format is taken from the content, not from the file's name. Everything becomes 8-bit RGB: grey is copied to
//! the three channels, palettes are looked up, 16 bits are scaled over their full range with rounding, and
//! transparent pixels are laid over white. A stored rotation (EXIF) is not applied, as torchvision does not either.
//! TIFF files with floating-point samples, or with four 16-bit channels that are not RGB and alpha (satellite bands
//! are often written as "CMYK"), are refused: made into RGB they would mean nothing.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{ColorType, ExtendedColorType, ImageDecoder, ImageError, ImageReader, Limits};

use super::error::SampleError;

/// The most memory that one decoded image may take: a header can state any size, a few bytes long.
pub const LIMIT_BYTES: u64 = 512 << 20;

/// The size that the header states, (width, height), after the checks that need no pixels: a known format, a kind
/// that is read, a size within the limit. `bytes` may be only the beginning of a file if the header lies in it.
///
/// # Errors
/// What is wrong with the header.
pub fn header(bytes: &[u8]) -> Result<(u32, u32), SampleError> {
    guarded(|| open(bytes).map(|decoder| decoder.dimensions()))
}

/// Decodes into `rgb` (row by row, 3 bytes a pixel) and returns (width, height).
///
/// `raw` is working memory; both are kept by the caller to be used again.
///
/// # Errors
/// What is wrong with the file. `rgb` then holds nothing of use.
pub fn rgb8(bytes: &[u8], raw: &mut Vec<u8>, rgb: &mut Vec<u8>) -> Result<(u32, u32), SampleError> {
    guarded(|| {
        let decoder = open(bytes)?;
        // The JPEG decoder fills what is missing with grey.
        if bytes.starts_with(&[0xff, SOI]) && !jpeg_is_whole(bytes) {
            return Err(SampleError::Damaged {
                reason: "the file is cut short".to_owned(),
            });
        }
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
            to_rgb8(color, raw, rgb)?;
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

fn open(bytes: &[u8]) -> Result<impl ImageDecoder + '_, SampleError> {
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
    let mut limits = Limits::default();
    limits.max_alloc = Some(LIMIT_BYTES);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(damage)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(SampleError::Damaged {
            reason: format!("the header states {width}x{height} pixels"),
        });
    }
    // Three bytes a pixel are needed in any case, for the RGB copy.
    let rgb_bytes = u64::from(width) * u64::from(height) * 3;
    if decoder.total_bytes().max(rgb_bytes) > LIMIT_BYTES {
        return Err(SampleError::TooLarge {
            width,
            height,
            limit_bytes: LIMIT_BYTES,
        });
    }
    if decoder.original_color_type() == ExtendedColorType::Cmyk16 {
        return Err(SampleError::Unsupported {
            what: "a file of four 16-bit channels that are not RGB and alpha".to_owned(),
        });
    }
    if matches!(decoder.color_type(), ColorType::Rgb32F | ColorType::Rgba32F) {
        return Err(SampleError::Unsupported {
            what: "an image with floating-point samples".to_owned(),
        });
    }
    Ok(decoder)
}

/// JPEG markers, each after a byte 0xff.
const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;

/// Whether a JPEG file reaches its end-of-image marker. The segments are walked through, since an embedded preview
/// has a marker of its own, and many good files have something after the end.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        // Compressed data, in which 0xff is followed by 0x00 or a restart marker, or padding between segments.
        let Some(found) = bytes
            .get(at..)
            .and_then(|rest| rest.iter().position(|&byte| byte == 0xff))
        else {
            return false;
        };
        at += found + 1;
        match bytes.get(at) {
            None => return false,
            Some(&EOI) => return true,
            Some(0xff) => {}
            // Escaped data, and the markers without a length: temporary, restart 0 to 7, start of image.
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            Some(_) => match bytes.get(at + 1..at + 3) {
                Some(length) => at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])),
                None => return false,
            },
        }
    }
}

fn to_rgb8(color: ColorType, raw: &[u8], rgb: &mut Vec<u8>) -> Result<(), SampleError> {
    rgb.clear();
    rgb.reserve(raw.len() / usize::from(color.bytes_per_pixel()) * 3);
    match color {
        ColorType::L8 => rgb.extend(raw.iter().flat_map(|&grey| [grey; 3])),
        ColorType::La8 => rgb.extend(raw.chunks_exact(2).flat_map(|p| [over_white(p[0], p[1]); 3])),
        ColorType::Rgba8 => {
            rgb.extend(
                raw.chunks_exact(4)
                    .flat_map(|p| [p[0], p[1], p[2]].map(|c| over_white(c, p[3]))),
            );
        }
        ColorType::L16 => rgb.extend(raw.chunks_exact(2).flat_map(|p| [high(p, 0); 3])),
        ColorType::La16 => {
            rgb.extend(
                raw.chunks_exact(4)
                    .flat_map(|p| [over_white(high(p, 0), high(p, 1)); 3]),
            );
        }
        ColorType::Rgb16 => rgb.extend(
            raw.chunks_exact(6)
                .flat_map(|p| [high(p, 0), high(p, 1), high(p, 2)]),
        ),
        ColorType::Rgba16 => {
            rgb.extend(
                raw.chunks_exact(8)
                    .flat_map(|p| [0, 1, 2].map(|c| over_white(high(p, c), high(p, 3)))),
            );
        }
        other => {
            return Err(SampleError::Unsupported {
                what: format!("the pixel format {other:?}"),
            });
        }
    }
    Ok(())
}

/// The 16-bit channel `channel` of a pixel (in the machine's byte order), scaled to 8 bits: 65535 becomes 255.
fn high(pixel: &[u8], channel: usize) -> u8 {
    let value = u16::from_ne_bytes([pixel[2 * channel], pixel[2 * channel + 1]]);
    ((u32::from(value) + 128) / 257) as u8
}

/// A channel of a pixel with some opacity, on a white ground.
fn over_white(channel: u8, alpha: u8) -> u8 {
    let (channel, alpha) = (u32::from(channel), u32::from(alpha));
    ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

fn damage(error: ImageError) -> SampleError {
    match error {
        ImageError::Unsupported(error) => SampleError::Unsupported {
            what: format!("this kind of image ({error})"),
        },
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            SampleError::Damaged {
                reason: "the file is cut short".to_owned(),
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
mod tests;
