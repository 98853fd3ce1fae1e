//! From a decoder's channels to the requested channels.

use image::ColorType;

use super::super::error::{Result, SampleError};
use super::super::raster::Raster;

pub(super) fn to_rgb8(color: ColorType, raw: &[u8], rgb: &mut Vec<u8>) -> Result<()> {
    rgb.clear();
    rgb.reserve(raw.len() / usize::from(color.bytes_per_pixel()) * 3);
    match color {
        ColorType::L8 => each(raw, 1, rgb, |p| [p[0]; 3]),
        ColorType::La8 => each(raw, 2, rgb, |p| [over_white(p[0], p[1]); 3]),
        ColorType::Rgba8 => each(raw, 4, rgb, |p| [p[0], p[1], p[2]].map(|c| over_white(c, p[3]))),
        ColorType::L16 => each(raw, 2, rgb, |p| [high(p, 0); 3]),
        ColorType::La16 => each(raw, 4, rgb, |p| [over_white(high(p, 0), high(p, 1)); 3]),
        ColorType::Rgb16 => each(raw, 6, rgb, |p| [0, 1, 2].map(|c| high(p, c))),
        ColorType::Rgba16 => each(raw, 8, rgb, |p| [0, 1, 2].map(|c| over_white(high(p, c), high(p, 3)))),
        other => return Err(unknown(other)),
    }
    Ok(())
}

fn each(raw: &[u8], size: usize, rgb: &mut Vec<u8>, pixel: impl Fn(&[u8]) -> [u8; 3]) {
    rgb.extend(raw.chunks_exact(size).flat_map(pixel));
}

/// Checks that an image of this kind can be converted to `channels` channels.
pub(super) fn fits(color: ColorType, channels: usize) -> Result<()> {
    let found = usize::from(color.channel_count());
    if found == channels || channels == 1 {
        Ok(())
    } else {
        Err(SampleError::Channels { found, expected: channels })
    }
}

/// Converts an image that [`fits`] to planes: 8-bit values stay, 16-bit values become floating-point. One
/// channel is the brightness, with transparent pixels over white.
pub(super) fn to_planes(color: ColorType, raw: &[u8], channels: usize, out: &mut Raster) -> Result<()> {
    out.channels = channels;
    let found = usize::from(color.channel_count());
    match usize::from(color.bytes_per_pixel()) / found {
        1 => {
            let values = out.values.u8();
            if found == channels {
                separate(raw, channels, values, |value| value);
            } else {
                values.clear();
                values.extend(raw.chunks_exact(found).map(grey8));
            }
        }
        2 => {
            let words: Vec<u16> = bytemuck::pod_collect_to_vec(raw);
            let values = out.values.f32();
            if found == channels {
                separate(&words, channels, values, unit16);
            } else {
                values.clear();
                values.extend(words.chunks_exact(found).map(grey16));
            }
        }
        _ => return Err(unknown(color)),
    }
    Ok(())
}

/// Writes interleaved values of `channels` bands as planes.
pub(super) fn separate<T: Copy, U>(pixels: &[T], channels: usize, out: &mut Vec<U>, value: impl Fn(T) -> U) {
    out.clear();
    out.reserve(pixels.len());
    if channels == 1 {
        // Without a stride, which would cost time.
        return out.extend(pixels.iter().map(|&it| value(it)));
    }
    for channel in 0..channels {
        out.extend(pixels[channel.min(pixels.len())..].iter().step_by(channels).map(|&it| value(it)));
    }
}

pub(super) fn unit16(value: u16) -> f32 {
    f32::from(value) / 65535.0
}

/// Returns the brightness of red, green and blue, with Pillow's BT.601 weights; of equal values it is that value.
pub(super) fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [u32::from(pixel[0]), u32::from(pixel[1]), u32::from(pixel[2])];
    ((19_595 * r + 38_470 * g + 7_471 * b + 0x8000) >> 16) as u8
}

/// Returns the brightness of a pixel of 2 (grey, opacity), 3 or 4 values, with Pillow's BT.601 weights.
fn grey8(pixel: &[u8]) -> u8 {
    match pixel {
        [grey, alpha] => over_white(*grey, *alpha),
        [_, _, _, alpha] => over_white(luma(pixel), *alpha),
        _ => luma(pixel),
    }
}

fn grey16(pixel: &[u16]) -> f32 {
    let luma = |p: &[u16]| 0.299 * unit16(p[0]) + 0.587 * unit16(p[1]) + 0.114 * unit16(p[2]);
    let over = |grey: f32, alpha: u16| 1.0 + (grey - 1.0) * unit16(alpha);
    match pixel {
        [grey, alpha] => over(unit16(*grey), *alpha),
        [_, _, _, alpha] => over(luma(pixel), *alpha),
        _ => luma(pixel),
    }
}

/// Scales the 16-bit channel `channel` of a pixel (in native byte order) to 8 bits: 65535 becomes 255.
fn high(pixel: &[u8], channel: usize) -> u8 {
    let value = u16::from_ne_bytes([pixel[2 * channel], pixel[2 * channel + 1]]);
    ((u32::from(value) + 128) / 257) as u8
}

/// Blends a channel of a transparent pixel with white.
fn over_white(channel: u8, alpha: u8) -> u8 {
    let (channel, alpha) = (u32::from(channel), u32::from(alpha));
    ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

fn unknown(color: ColorType) -> SampleError {
    SampleError::Unsupported(format!("the pixel format {color:?}"))
}
