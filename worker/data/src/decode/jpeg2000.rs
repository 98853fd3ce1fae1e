//! JPEG 2000 of up to 8 bits without loss. What the decoder makes of lossy files differs from OpenJPEG by more than rounding.

use hayro_jpeg2000::{ColorSpace, DecodeSettings, Image};
use image::{ColorType, ImageDecoder, ImageError, ImageResult};

use super::super::error::{Result, SampleError};

/// Returns whether a file is JPEG 2000, as a file of boxes or as a codestream.
pub(super) fn is_jpeg2000(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0\0\0\x0cjP  ") || bytes.starts_with(b"\xff\x4f\xff\x51")
}

/// A decoder with the interface of the others.
pub(super) struct Decoder<'a> {
    image: Image<'a>,
    color: ColorType,
}

/// Returns whether the values of a codestream are those that were saved: all of its main header's transforms are whole.
fn is_lossless(bytes: &[u8]) -> bool {
    /// The markers of a tile, of the coding of all components, and of the coding of one.
    const TILE: u8 = 0x90;
    const CODING: u8 = 0x52;
    const COMPONENT: u8 = 0x53;
    let Some(mut at) = bytes.windows(4).position(|window| window == b"\xff\x4f\xff\x51") else {
        return false;
    };
    at += 2;
    let mut is_whole = false;
    while let Some(&[0xff, marker, high, low]) = bytes.get(at..at + 4) {
        match marker {
            TILE => return is_whole,
            // The last of ten bytes after the length.
            CODING => is_whole = bytes.get(at + 13) == Some(&1),
            COMPONENT => return false,
            _ => {}
        }
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
    }
    false
}

pub(super) fn open(bytes: &[u8]) -> Result<Decoder<'_>> {
    if !is_lossless(bytes) {
        return Err(SampleError::Unsupported("JPEG 2000 with lossy compression".to_owned()));
    }
    let image = Image::new(bytes, &DecodeSettings::default()).map_err(damage)?;
    let channels = match image.color_space() {
        ColorSpace::CMYK => return Err(SampleError::Unsupported("JPEG 2000 of the colours CMYK".to_owned())),
        other => other.num_channels(),
    };
    let bits = image.original_bit_depth();
    // The decoder scales all values to 8 bits, which would lose some of data.
    if bits > 8 {
        return Err(SampleError::Unsupported(format!("JPEG 2000 of {bits} bits")));
    }
    let color = match (channels, image.has_alpha()) {
        (1, false) => ColorType::L8,
        (1, true) => ColorType::La8,
        (3, false) => ColorType::Rgb8,
        (3, true) => ColorType::Rgba8,
        _ => return Err(SampleError::Unsupported(format!("JPEG 2000 of {channels} bands"))),
    };
    Ok(Decoder { image, color })
}

fn damage(error: hayro_jpeg2000::DecodeError) -> SampleError {
    SampleError::Damaged(error.to_string())
}

impl ImageDecoder for Decoder<'_> {
    fn dimensions(&self) -> (u32, u32) {
        (self.image.width(), self.image.height())
    }

    fn color_type(&self) -> ColorType {
        self.color
    }

    fn read_image(self, out: &mut [u8]) -> ImageResult<()> {
        let failed = |text: String| ImageError::IoError(std::io::Error::other(text));
        let decoded = self.image.decode().map_err(|error| failed(error.to_string()))?;
        if decoded.len() != out.len() {
            return Err(failed("its components differ from its header".to_owned()));
        }
        out.copy_from_slice(&decoded);
        Ok(())
    }

    fn read_image_boxed(self: Box<Self>, out: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(out)
    }
}
