//! Pixels without data, and how a file's values are stored.

use dtrain_recipe::NoData;
use image::{ImageDecoder, ImageFormat};
use tiff::decoder::Decoder;
use tiff::tags::Tag;

use super::super::error::{Result, SampleError};
use super::super::raster::{Raster, Values};
use super::array::{is_array, white_of_image};
use super::bands::Bands;
use super::extent::Extent;
use super::format::{format_of, open};
use super::limits::catch_panic;

/// How the values of a file become those of a raster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Encoding {
    /// The value of the file that is 1 in the raster, or 255 if that keeps 8-bit values.
    pub white: f32,
    /// The value without data that the file states.
    pub stated: Option<f64>,
}

impl Encoding {
    /// Reads how a file stores its values.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        catch_panic(|| {
            if is_array(bytes) {
                return Ok(Self { white: white_of_image(bytes)?, stated: None });
            }
            if format_of(bytes)? == Some(ImageFormat::Tiff) {
                return Ok(Self { white: Bands::open(bytes)?.white(), stated: stated(bytes) });
            }
            let color = open(bytes)?.color_type();
            let white = if color.bytes_per_pixel() > color.channel_count() { 65535.0 } else { 255.0 };
            Ok(Self { white, stated: None })
        })
    }

    /// Returns the value without data, as in the file.
    pub fn no_data(self, rule: Option<NoData>) -> Option<f32> {
        // As the values themselves, which may be of 64 bits.
        rule?.value(self.stated).map(|value| value as f32)
    }
}

/// Returns the no-data value that a TIFF file states by GDAL's tag.
pub fn stated(bytes: &[u8]) -> Option<f64> {
    let found = catch_panic(|| {
        let read =
            || Decoder::new(std::io::Cursor::new(bytes)).ok()?.get_tag_ascii_string(Tag::GdalNodata).ok();
        Ok(read())
    });
    found.ok()??.trim_matches(|c: char| c == '\0' || c.is_whitespace()).parse().ok()
}

/// Returns whether a value is the one without data, which may be no number.
pub fn is_same(value: f32, nothing: f32) -> bool {
    value == nothing || value.is_nan() && nothing.is_nan()
}

/// Replaces an image's values without data by `fill`, a value as in the file.
pub(super) fn replace(
    image: &mut Raster,
    encoding: Encoding,
    rule: NoData,
    fill: Option<f64>,
    extent: Extent,
) -> Result<()> {
    let Some(nothing) = encoding.no_data(Some(rule)) else { return Ok(()) };
    let unit = match image.values {
        Values::U8(_) => 1.0,
        Values::F32(_) => encoding.white,
    };
    let (width, height) = (image.width as usize, image.height as usize);
    let mut count = 0;
    let mut first = None;
    let mut visit = |at: usize| {
        first.get_or_insert(at);
        count += 1;
    };
    match &mut image.values {
        Values::U8(values) => {
            let is_none = |value: u8| is_same(f32::from(value), nothing);
            let as_byte = |fill: f64| match f64::from(fill as u8) == fill {
                true => Ok(fill as u8),
                false => Err(SampleError::Fill(fill)),
            };
            for (at, value) in values.iter_mut().enumerate().filter(|(_, value)| is_none(**value)) {
                match fill {
                    Some(fill) => *value = as_byte(fill)?,
                    None => visit(at),
                }
            }
        }
        Values::F32(values) => {
            let nothing = nothing / unit;
            for (at, value) in values.iter_mut().enumerate().filter(|(_, value)| is_same(**value, nothing)) {
                match fill {
                    Some(fill) => *value = fill as f32 / unit,
                    None => visit(at),
                }
            }
        }
    }
    let Some(first) = first else { return Ok(()) };
    let pixels = (width * height).max(1);
    let (left, top) = extent.part.map_or((0, 0), |part| (part.left as usize, part.top as usize));
    Err(SampleError::NoData {
        value: nothing,
        channel: first / pixels,
        row: top + first % pixels / width.max(1),
        column: left + first % pixels % width.max(1),
        count,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_recipe::NoDataWord;

    use super::*;

    fn image(values: Values) -> Raster {
        Raster { width: 2, height: 1, channels: 2, values }
    }

    #[test]
    fn values_without_data_are_filled_or_named_and_counted() {
        let floats = Encoding { white: 1.0, stated: Some(-9999.0) };
        let values = || image(Values::F32(vec![0.5, -9999.0, f32::NAN, -9999.0]));
        for (rule, expected) in [
            (NoData::Number(-9999.0), [0.5, 7.0, f32::NAN, 7.0]),
            (NoData::Word(NoDataWord::File), [0.5, 7.0, f32::NAN, 7.0]),
            (NoData::Word(NoDataWord::Nan), [0.5, -9999.0, 7.0, -9999.0]),
        ] {
            let mut filled = values();
            replace(&mut filled, floats, rule, Some(7.0), Extent::WHOLE).unwrap();
            let Values::F32(found) = &filled.values else { panic!("floats") };
            assert!(std::iter::zip(found, expected).all(|(&a, b)| is_same(a, b)), "{found:?}");
        }
        let error = replace(&mut values(), floats, NoData::Number(-9999.0), None, Extent::WHOLE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the data has 2 values without data (-9999; the first is at column 1, row 0 of channel 0); set data.fill to a \
             number in their place, or leave the file out"
        );
        let mut words = image(Values::F32(vec![0.0, 1.0, 300.0 / 65535.0, 0.0]));
        let of_words = Encoding { white: 65535.0, stated: None };
        replace(&mut words, of_words, NoData::Number(300.0), Some(65535.0), Extent::WHOLE).unwrap();
        assert_eq!(words.values, Values::F32(vec![0.0, 1.0, 1.0, 0.0]));
        let mut bytes = image(Values::U8(vec![9, 255, 0, 9]));
        let of_bytes = Encoding { white: 255.0, stated: None };
        replace(&mut bytes, of_bytes, NoData::Number(9.0), Some(0.0), Extent::WHOLE).unwrap();
        assert_eq!(bytes.values, Values::U8(vec![0, 255, 0, 0]));
        replace(&mut bytes, of_bytes, NoData::Word(NoDataWord::File), None, Extent::WHOLE).unwrap();
        for fill in [-1.0, 0.5, 256.0, f64::NAN] {
            replace(&mut bytes, of_bytes, NoData::Number(9.0), Some(fill), Extent::WHOLE).unwrap();
            let rule = NoData::Number(255.0);
            let error = replace(&mut bytes, of_bytes, rule, Some(fill), Extent::WHOLE).unwrap_err();
            assert!(error.to_string().contains(&format!("set data.fill, which is {fill}, to one of them")));
        }
    }
}
