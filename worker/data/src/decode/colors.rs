//! Masks whose brightness or colour is the class: the colours that a file states, without blending.

use image::{ColorType, ImageDecoder, ImageFormat};
use tiff::decoder::DecodingResult;

use super::super::error::{Result, SampleError};
use super::super::raster::Labels;
use super::bands::Bands;
use super::convert::luma;
use super::format::{format_of, open};
use super::limits::{self, catch_panic};
use super::mask::{mask, tiff_palette};
use super::{gif, whole};

/// Reads the colours of a picture of 8 bits into `rgb`, three values a pixel, and returns (width, height). Grey is three equal
/// values. Transparency is ignored.
pub fn colors(bytes: &[u8], raw: &mut Vec<u8>, rgb: &mut Vec<u8>) -> Result<(u32, u32)> {
    rgb.clear();
    catch_panic(|| match (format_of(bytes)?, tiff_palette(bytes)?) {
        (Some(ImageFormat::Gif), _) => gif::colors(bytes, rgb),
        (_, Some((size, indexes, palette))) => {
            rgb.extend(indexes.iter().flat_map(|&index| palette.get(usize::from(index)).unwrap_or(&[0; 3])));
            Ok(size)
        }
        _ => {
            let decoder = open(bytes)?;
            whole(bytes)?;
            let (size, color) = (decoder.dimensions(), decoder.color_type());
            raw.clear();
            raw.resize(decoder.total_bytes() as usize, 0);
            decoder.read_image(raw).map_err(limits::damage)?;
            let pixels = raw.chunks_exact(usize::from(color.channel_count()));
            match color {
                ColorType::L8 | ColorType::La8 => rgb.extend(pixels.flat_map(|pixel| [pixel[0]; 3])),
                ColorType::Rgb8 | ColorType::Rgba8 => {
                    rgb.extend(pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]))
                }
                _ => {
                    return Err(SampleError::Unsupported(
                        "a mask of colours with more than 8 bits".to_owned(),
                    ));
                }
            }
            Ok(size)
        }
    })
}

/// Reads a mask of two classes: 1 for a brightness above `level`. Files of one band with more than 8 bits have their own values;
/// others have Pillow's brightness of 8 bits, without transparency.
pub fn above(bytes: &[u8], level: u16, raw: &mut Vec<u8>, rgb: &mut Vec<u8>, out: &mut Labels) -> Result<()> {
    out.values.clear();
    match wide(bytes)? {
        Wide::Png => {
            mask(bytes, raw, out)?;
            out.values.iter_mut().for_each(|value| *value = u16::from(*value > level));
            Ok(())
        }
        Wide::Tiff => catch_panic(|| {
            let bands = Bands::open_one(bytes, SampleError::ColorMask)?;
            (out.width, out.height) = bands.size;
            let level = f64::from(level);
            let mut push = |value: f64| out.values.push(u16::from(value > level));
            match bands.values()? {
                DecodingResult::U16(values) => values.into_iter().for_each(|value| push(value.into())),
                DecodingResult::F16(values) => values.into_iter().for_each(|value| push(value.into())),
                DecodingResult::F32(values) => values.into_iter().for_each(|value| push(value.into())),
                DecodingResult::F64(values) => values.into_iter().for_each(push),
                _ => return Err(SampleError::ColorMask(1)),
            }
            match out.values.len() == out.width as usize * out.height as usize {
                true => Ok(()),
                false => Err(limits::truncated()),
            }
        }),
        Wide::No => {
            (out.width, out.height) = colors(bytes, raw, rgb)?;
            let (pixels, _) = rgb.as_chunks::<3>();
            out.values.extend(pixels.iter().map(|pixel| u16::from(u16::from(luma(pixel)) > level)));
            Ok(())
        }
    }
}

/// A file of one band with more than 8 bits.
enum Wide {
    No,
    Png,
    Tiff,
}

fn wide(bytes: &[u8]) -> Result<Wide> {
    catch_panic(|| match format_of(bytes)? {
        Some(ImageFormat::Png) => {
            let color = open(bytes)?.color_type();
            Ok(if matches!(color, ColorType::L16 | ColorType::La16) { Wide::Png } else { Wide::No })
        }
        Some(ImageFormat::Tiff) => {
            let is_wide = Bands::open(bytes).is_ok_and(|bands| bands.count == 1 && bands.bits() > 8);
            Ok(if is_wide { Wide::Tiff } else { Wide::No })
        }
        _ => Ok(Wide::No),
    })
}
