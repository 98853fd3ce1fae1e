//! JPEG files. Their pixels equal those of libjpeg-turbo at its defaults, bit by bit, and so those of Pillow
//! and torchvision: the integer transform, filtered upsampling of chroma, and the same conversion to RGB.
//!
//! If the codes of a file are damaged, the decoder of `image` reads it. Like libjpeg-turbo it continues after
//! the damage (Pillow accepts such files); from there on its pixels differ.
//!
//! Only the needed pixels are computed. At a half, a quarter or an eighth of the size, the pixels equal those of libjpeg-turbo
//! at that scale; they differ from resizing, see docs/decisions/0148.

use std::io::Cursor;

use image::codecs::jpeg::JpegDecoder;
use image::error::{DecodingError, ImageFormatHint};
use image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageResult};
use libjpeg_turbo_rs::{Decoder, JpegError, PixelFormat, ScalingFactor};

use super::super::error::{Result, SampleError};
use super::extent::{Extent, cut};
use super::limits::{check_size, damage, truncated};

mod entropy;
mod half;
pub(super) mod sequential;

pub(super) const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const DHT: u8 = 0xc4;
const DRI: u8 = 0xdd;
const APP1: u8 = 0xe1;

/// A JPEG file of grey or RGB values, after reading its header.
pub(super) struct Jpeg<'a> {
    bytes: &'a [u8],
    frame: Frame,
    extent: Extent,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    bits: u8,
    height: u16,
    width: u16,
    components: u8,
}

/// Opens a file; `bytes` may end after the frame header.
pub(super) fn open(bytes: &[u8], extent: Extent) -> Result<Box<dyn ImageDecoder + '_>> {
    let frame = frame(bytes)?;
    match (frame.bits, frame.components) {
        (8, 1 | 3) => {
            let (width, height) = frame.size();
            // A part needs the memory of the whole.
            check_size(width, height, u64::from(width) * u64::from(height) * 3)?;
            Ok(Box::new(Jpeg { bytes, frame, extent }))
        }
        // CMYK is rare, and libjpeg-turbo's decoder does not read all of it.
        (8, 4) => Ok(Box::new(JpegDecoder::new(Cursor::new(bytes)).map_err(damage)?)),
        (8, components) => Err(SampleError::Unsupported(format!("a JPEG of {components} components"))),
        (bits, _) => Err(SampleError::Unsupported(format!("a JPEG of {bits} bits"))),
    }
}

/// Returns the number of values of a pixel, and the bits of one; `bytes` may end after the frame header.
pub(super) fn components(bytes: &[u8]) -> Result<(u8, u8)> {
    frame(bytes).map(|frame| (frame.components, frame.bits))
}

impl Frame {
    fn size(&self) -> (u32, u32) {
        (self.width.into(), self.height.into())
    }
}

/// Returns whether parts of the file can be decoded.
pub(super) fn has_parts(bytes: &[u8]) -> Result<bool> {
    Ok(matches!(frame(bytes)?, Frame { bits: 8, components: 1 | 3, .. }))
}

impl ImageDecoder for Jpeg<'_> {
    fn dimensions(&self) -> (u32, u32) {
        let part = self.extent.rectangle(self.frame.size());
        (part.width, part.height)
    }

    fn color_type(&self) -> ColorType {
        match self.frame.components {
            1 => ColorType::L8,
            _ => ColorType::Rgb8,
        }
    }

    fn read_image(self, out: &mut [u8]) -> ImageResult<()> {
        if self.frame.components == 3 && sequential::decode(self.bytes, self.extent, out).is_some() {
            return Ok(());
        }
        let Err(error) = self.cut(out, |whole| self.read_whole(whole)) else { return Ok(()) };
        // If both decoders fail, the first reason is the better one.
        self.cut(out, |whole| self.read_damaged(whole)).map_err(|_| undecoded(error))
    }

    fn read_image_boxed(self: Box<Self>, out: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(out)
    }
}

impl Jpeg<'_> {
    /// Reads the extent with a function that reads the whole picture at its scale.
    fn cut<E>(&self, out: &mut [u8], read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let size = self.frame.size();
        let ((width, height), part) = (self.extent.scaled(size), self.extent.rectangle(size));
        if (part.width, part.height) == (width, height) {
            return read(out);
        }
        let bytes = usize::from(self.frame.components);
        let mut whole = vec![0; width as usize * height as usize * bytes];
        read(&mut whole)?;
        cut(&whole, width as usize, part, bytes, out);
        Ok(())
    }

    fn read_whole(&self, out: &mut [u8]) -> Result<(), JpegError> {
        let mut decoder = Decoder::new(self.bytes)?;
        decoder.set_scale(ScalingFactor::new(1, self.extent.denominator));
        decoder.set_output_format(match self.frame.components {
            1 => PixelFormat::Grayscale,
            _ => PixelFormat::Rgb,
        });
        decoder.decode_image_into(out).map(drop)
    }

    fn read_damaged(&self, out: &mut [u8]) -> ImageResult<()> {
        let decoder = JpegDecoder::new(Cursor::new(self.bytes))?;
        if (decoder.dimensions(), decoder.color_type()) != (self.frame.size(), self.color_type()) {
            return Err(undecoded("another size or kind than its header states"));
        }
        if self.extent.denominator == 1 {
            return decoder.read_image(out);
        }
        let mut whole = vec![0; decoder.total_bytes() as usize];
        decoder.read_image(&mut whole)?;
        self.average(&whole, out);
        Ok(())
    }

    /// Writes the mean of the pixels that become one at the extent's scale.
    fn average(&self, whole: &[u8], out: &mut [u8]) {
        let (width, height) = self.frame.size();
        let (channels, by) = (usize::from(self.frame.components), self.extent.denominator);
        let row = self.extent.scaled((width, height)).0;
        let place = |at: usize| (at as u32 % row * by, at as u32 / row * by);
        for (at, pixel) in out.chunks_exact_mut(channels).enumerate() {
            let (left, top) = place(at);
            let (right, bottom) = ((left + by).min(width), (top + by).min(height));
            for (channel, value) in pixel.iter_mut().enumerate() {
                let of = |x: u32, y: u32| {
                    u32::from(whole[(y as usize * width as usize + x as usize) * channels + channel])
                };
                let sum: u32 = (top..bottom).map(|y| (left..right).map(|x| of(x, y)).sum::<u32>()).sum();
                let count = (right - left) * (bottom - top);
                *value = ((sum + count / 2) / count) as u8;
            }
        }
    }
}

fn undecoded(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ImageError {
    ImageError::Decoding(DecodingError::new(ImageFormatHint::Exact(ImageFormat::Jpeg), reason))
}

/// Reads the frame header, which comes before all pixels.
fn frame(bytes: &[u8]) -> Result<Frame> {
    for segment in segments(bytes) {
        match segment.marker {
            // Sequential and progressive, by Huffman or arithmetic codes.
            0xc0..=0xc2 | 0xc9 | 0xca => match *segment.content {
                [bits, h1, h2, w1, w2, components, ..] => {
                    return Ok(Frame {
                        bits,
                        height: u16::from_be_bytes([h1, h2]),
                        width: u16::from_be_bytes([w1, w2]),
                        components,
                    });
                }
                _ => break,
            },
            // 0xc4, 0xc8 and 0xcc, which are not frame headers, are between these.
            0xc3 | 0xc5..=0xc7 | 0xcb | 0xcd..=0xcf => {
                let what = format!("a JPEG of the coding process {:#04x}", segment.marker);
                return Err(SampleError::Unsupported(what));
            }
            SOS | EOI => {
                return Err(SampleError::Damaged("the pixels come before the frame header".to_owned()));
            }
            _ => {}
        }
    }
    Err(truncated())
}

/// Returns whether a JPEG file reaches its end-of-image marker. An embedded preview has another one.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    segments(bytes).any(|segment| segment.marker == EOI)
}

/// Returns the EXIF data before the pixels, if there is any. An error means that the bytes end before the answer.
pub(super) fn exif(bytes: &[u8]) -> Result<Option<&[u8]>> {
    for segment in segments(bytes) {
        match (segment.marker, segment.content.strip_prefix(b"Exif\0\0")) {
            (APP1, Some(exif)) => return Ok(Some(exif)),
            (SOS | EOI, _) => return Ok(None),
            _ => {}
        }
    }
    Err(truncated())
}

/// Returns the segments of Huffman tables before the coded bits, which begin at `end`. `None` if the header is not the usual one: then
/// another reader may see other tables in it.
fn tables(bytes: &[u8], end: usize) -> Option<Vec<u8>> {
    let (mut found, mut at) = (Vec::new(), 2);
    while at < end {
        let &[0xff, marker, high, low] = bytes.get(at..)?.first_chunk()? else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let content = bytes.get(at + 4..at + 2 + length)?;
        match marker {
            DHT => found.extend_from_slice(content),
            DRI if length != 4 => return None,
            0x01 | 0xd0..=SOI | EOI | 0xff => return None,
            _ => {}
        }
        at += 2 + length;
        if marker == SOS {
            return (at == end).then_some(found);
        }
    }
    None
}

struct Segment<'a> {
    marker: u8,
    content: &'a [u8],
}

/// Returns the segments after the file's first marker, up to the first that is cut off.
fn segments(bytes: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            // Skip compressed data, where 0x00 or a restart marker follows 0xff, and padding.
            at += memchr::memchr(0xff, bytes.get(at..)?)? + 1;
            match *bytes.get(at)? {
                0xff => {}
                // Escaped data, and the markers without a length: temporary, restart 0 to 7, start of image.
                0x00 | 0x01 | 0xd0..=SOI => at += 1,
                EOI => {
                    at += 1;
                    return Some(Segment { marker: EOI, content: &[] });
                }
                marker => {
                    let length = usize::from(u16::from_be_bytes([*bytes.get(at + 1)?, *bytes.get(at + 2)?]));
                    let content = bytes.get(at + 3..at + 1 + length)?;
                    at += 1 + length;
                    return Some(Segment { marker, content });
                }
            }
        }
    })
}
