//! The kind of an image file, for a survey of a data set.

use std::fmt;
use std::io::Cursor;

use image::{ExtendedColorType, ImageDecoder, ImageFormat};
use tiff::decoder::Decoder;
use tiff::tags::Tag;

use super::super::error::Result;
use super::array::{bands_of, is_array};
use super::format::{format_of, open};
use super::jpeg;
use super::limits::catch_panic;

/// The format of a file and the kind of its pixels, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKind {
    /// The name of the format, such as `PNG`.
    pub format: &'static str,
    pub colours: Colours,
    pub has_alpha: bool,
    /// Bits of a value; of a palette, those of an index.
    pub bits: u8,
    pub is_floating: bool,
}

/// The colours of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colours {
    Grey,
    Palette,
    Rgb,
    Cmyk,
    /// A number of values for each pixel that are no known colours.
    Bands(u16),
}

/// Returns the kind of a file whose header can be read; None for others.
pub fn kind(bytes: &[u8], role: &str) -> Option<FileKind> {
    let found = catch_panic(|| {
        if is_array(bytes) {
            return Ok(Some(array(bytes, role)?));
        }
        let format = format_of(bytes)?;
        let of = |(colours, has_alpha, bits, is_floating)| FileKind {
            format: name(format),
            colours,
            has_alpha,
            bits,
            is_floating,
        };
        Ok(match format {
            Some(ImageFormat::Png) => png(bytes).map(of),
            Some(ImageFormat::Tiff) => tiff(bytes).map(of),
            // Its decoder turns CMYK into RGB.
            Some(ImageFormat::Jpeg) => {
                let (components, bits) = jpeg::components(bytes)?;
                let colours = match components {
                    1 => Colours::Grey,
                    3 => Colours::Rgb,
                    4 => Colours::Cmyk,
                    other => Colours::Bands(other.into()),
                };
                Some(of((colours, false, bits, false)))
            }
            // Its decoder turns a palette into colours.
            Some(ImageFormat::Bmp) if matches!(bytes.get(28), Some(1..=8)) => {
                Some(of((Colours::Palette, false, bytes[28], false)))
            }
            _ => Some(of(extended(open(bytes)?.original_color_type()))),
        })
    });
    found.ok().flatten()
}

/// Colours, whether there is an alpha channel, bits, and whether values are floating-point numbers.
type Found = (Colours, bool, u8, bool);

fn array(bytes: &[u8], role: &str) -> Result<FileKind> {
    let (bands, bits, is_floating) = bands_of(bytes, role)?;
    let colours = match bands {
        1 => Colours::Grey,
        3 => Colours::Rgb,
        other => Colours::Bands(other),
    };
    Ok(FileKind { format: "NumPy", colours, has_alpha: false, bits, is_floating })
}

fn png(bytes: &[u8]) -> Option<Found> {
    let (bits, colours) = (*bytes.get(24)?, *bytes.get(25)?);
    let (colours, has_alpha) = match colours {
        0 => (Colours::Grey, false),
        2 => (Colours::Rgb, false),
        3 => (Colours::Palette, false),
        4 => (Colours::Grey, true),
        6 => (Colours::Rgb, true),
        _ => return None,
    };
    Some((colours, has_alpha, bits, false))
}

fn tiff(bytes: &[u8]) -> Option<Found> {
    use tiff::ColorType as Color;
    let mut decoder = Decoder::new(Cursor::new(bytes)).ok()?;
    /// The interpretation of indices of a palette.
    const PALETTE: u16 = 3;
    if decoder.find_tag_unsigned(Tag::PhotometricInterpretation).ok()? == Some(PALETTE) {
        let bits = decoder.find_tag_unsigned::<u8>(Tag::BitsPerSample).ok().flatten();
        return Some((Colours::Palette, false, bits.unwrap_or(8), false));
    }
    let color = decoder.colortype().ok()?;
    let bands = decoder.find_tag_unsigned::<u16>(Tag::SamplesPerPixel).ok()?.unwrap_or(1);
    let kind = decoder.image_buffer_layout().ok().and_then(|layout| layout.sample_type);
    let (colours, has_alpha) = match color {
        // The decoder leaves out values that it does not know.
        _ if bands > color.num_samples() => (Colours::Bands(bands), false),
        Color::Gray(_) => (Colours::Grey, false),
        Color::GrayA(_) => (Colours::Grey, true),
        Color::Palette(_) => (Colours::Palette, false),
        Color::RGB(_) | Color::YCbCr(_) => (Colours::Rgb, false),
        Color::RGBA(_) => (Colours::Rgb, true),
        Color::CMYK(_) => (Colours::Cmyk, false),
        Color::CMYKA(_) => (Colours::Cmyk, true),
        other => (Colours::Bands(other.num_samples()), false),
    };
    use tiff::decoder::DecodingSampleType as Kind;
    let is_floating = matches!(kind, Some(Kind::F16 | Kind::F32 | Kind::F64));
    Some((colours, has_alpha, color.bit_depth(), is_floating))
}

fn extended(color: ExtendedColorType) -> Found {
    use ExtendedColorType as Color;
    let values = u16::from(color.channel_count());
    let bits = u8::try_from(color.bits_per_pixel() / values.max(1)).unwrap_or(0);
    match color {
        Color::Cmyk8 | Color::Cmyk16 => (Colours::Cmyk, false, bits, false),
        Color::Rgb32F | Color::Rgba32F => (Colours::Rgb, values == 4, bits, true),
        _ => match values {
            1 => (Colours::Grey, false, bits, false),
            2 => (Colours::Grey, true, bits, false),
            3 => (Colours::Rgb, false, bits, false),
            4 => (Colours::Rgb, true, bits, false),
            other => (Colours::Bands(other), false, bits, false),
        },
    }
}

fn name(format: Option<ImageFormat>) -> &'static str {
    match format {
        None => "JPEG 2000",
        Some(ImageFormat::Png) => "PNG",
        Some(ImageFormat::Jpeg) => "JPEG",
        Some(ImageFormat::Bmp) => "BMP",
        Some(ImageFormat::Tiff) => "TIFF",
        Some(ImageFormat::WebP) => "WebP",
        Some(ImageFormat::Gif) => "GIF",
        Some(ImageFormat::Pnm) => "PNM",
        _ => "another format",
    }
}

/// Writes "PNG RGB", "PNG grey of 16 bits", "JPEG CMYK", "TIFF of 5 bands of 32-bit numbers".
impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.format)?;
        match self.colours {
            Colours::Grey => f.write_str("grey")?,
            Colours::Palette => f.write_str("palette")?,
            Colours::Rgb => f.write_str("RGB")?,
            Colours::Cmyk => f.write_str("CMYK")?,
            Colours::Bands(bands) => write!(f, "of {bands} bands")?,
        }
        if self.has_alpha {
            f.write_str(" with alpha")?;
        }
        match (self.is_floating, self.bits) {
            (true, bits) => write!(f, " of {bits}-bit floating-point numbers"),
            (false, 8) => Ok(()),
            (false, 1) => f.write_str(" of 1 bit"),
            (false, bits) => write!(f, " of {bits} bits"),
        }
    }
}
