//! JPEG 2000, with the pixels of OpenJPEG.

use image::error::{ImageFormatHint, UnsupportedError, UnsupportedErrorKind};
use image::{ColorType, ImageDecoder, ImageError, ImageResult};
use jpeg2k::{ColorSpace, DecodeParameters, DumpImage};

use super::super::error::{Result, SampleError};
use super::limits::check_size;

/// Returns whether a file is JPEG 2000, as a file of boxes or as a codestream.
pub(super) fn is_jpeg2000(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0\0\0\x0cjP  ") || bytes.starts_with(b"\xff\x4f\xff\x51")
}

/// Returns whether a channel after the first is opacity, which the box `cdef` before the codestream tells.
pub(super) fn has_alpha(bytes: &[u8]) -> bool {
    /// The channel's number, its type and what it belongs to.
    const EACH: usize = 6;
    let head = bytes.windows(4).position(|window| window == b"jp2c").unwrap_or(0);
    let Some(start) = bytes[..head].windows(4).position(|window| window == b"cdef") else { return false };
    let Some((count, channels)) = bytes[start + 4..head].split_first_chunk::<2>() else { return false };
    let number = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    let mut channels = channels.chunks_exact(EACH).take(usize::from(number(count)));
    // Opacity, or that of colours which are multiplied with it.
    channels.any(|channel| number(channel) > 0 && matches!(number(&channel[2..]), 1 | 2))
}

/// A decoder with the interface of the others.
pub(super) struct Decoder<'a> {
    inner: DumpImage<'a>,
    size: (u32, u32),
    color: ColorType,
}

/// Reads the header.
pub(super) fn open(bytes: &[u8]) -> Result<Decoder<'_>> {
    let inner = DumpImage::from_bytes_with(bytes, DecodeParameters::new().strict(true));
    let inner = inner.map_err(|_| SampleError::Damaged("its header is incomplete or wrong".to_owned()))?;
    let unsupported = |what: String| Err(SampleError::Unsupported(format!("JPEG 2000 {what}")));
    let image = &inner.img;
    if let color @ (ColorSpace::CMYK | ColorSpace::SYCC | ColorSpace::EYCC) = image.color_space() {
        return unsupported(format!("of the colours {color:?}"));
    }
    let channels = image.components();
    let [first, others @ ..] = channels else { return unsupported("of 0 bands".to_owned()) };
    let form = |channel: &jpeg2k::ImageComponent| {
        (channel.width(), channel.height(), channel.precision(), channel.is_signed())
    };
    let (width, height, bits, is_signed) = form(first);
    if others.iter().any(|channel| form(channel) != form(first)) {
        return unsupported("of bands that differ in size or type".to_owned());
    }
    let color = match (channels.len(), bits, is_signed) {
        (1, 8, false) => ColorType::L8,
        (2, 8, false) => ColorType::La8,
        (3, 8, false) => ColorType::Rgb8,
        (4, 8, false) => ColorType::Rgba8,
        // Measurements of fewer bits are stored as they are.
        (1, 9..=16, false) => ColorType::L16,
        (2, 16, false) => ColorType::La16,
        (3, 16, false) => ColorType::Rgb16,
        (4, 16, false) => ColorType::Rgba16,
        (1..=4, bits, false) => return unsupported(format!("of {} bands of {bits} bits", channels.len())),
        (1..=4, _, true) => return unsupported("of signed values".to_owned()),
        (count, ..) => return unsupported(format!("of {count} bands")),
    };
    // The decoder keeps each value twice, in 32 bits.
    check_size(width, height, 8 * u64::from(width) * u64::from(height) * channels.len() as u64)?;
    Ok(Decoder { inner, size: (width, height), color })
}

impl ImageDecoder for Decoder<'_> {
    fn dimensions(&self) -> (u32, u32) {
        self.size
    }

    fn color_type(&self) -> ColorType {
        self.color
    }

    fn read_image(self, out: &mut [u8]) -> ImageResult<()> {
        let failed = |text: &str| ImageError::IoError(std::io::Error::other(text));
        self.inner.decode().map_err(|_| failed("a part of it is missing or changed"))?;
        let channels = self.inner.img.components();
        let count = usize::from(self.color.channel_count());
        let pixels = self.size.0 as usize * self.size.1 as usize;
        if channels.len() != count {
            let kind = UnsupportedErrorKind::GenericFeature("JPEG 2000 with a palette".to_owned());
            let hint = ImageFormatHint::Unknown;
            return Err(ImageError::Unsupported(UnsupportedError::from_format_and_kind(hint, kind)));
        }
        if channels.iter().any(|channel| channel.data().len() != pixels) {
            return Err(failed("its bands differ from its header"));
        }
        let bytes_each = usize::from(self.color.bytes_per_pixel()) / count;
        for (at, channel) in channels.iter().enumerate() {
            let places = out.chunks_exact_mut(bytes_each).skip(at).step_by(count);
            for (place, &value) in places.zip(channel.data()) {
                match place {
                    [place] => *place = value as u8,
                    wide => wide.copy_from_slice(&(value as u16).to_ne_bytes()),
                }
            }
        }
        Ok(())
    }

    fn read_image_boxed(self: Box<Self>, out: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(out)
    }
}
