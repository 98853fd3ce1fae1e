//! The learning target of each pixel: classes of a mask, or numbers of a map.

use dtrain_recipe::NoData;
use serde::{Deserialize, Serialize};

use super::dataset::Column;
use super::decode::{Encoding, is_same};
use super::error::{Result, SampleError};
use super::fit::{Frame, fit_labels};
use super::mask_rule::MaskRule;
use super::plane::Placement;
use super::raster::{Labels, Raster, Values};
use super::stored::Stored;
use super::turn::Turn;

/// The rule to read a file with a target for each pixel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PixelRule {
    Mask(MaskRule),
    Map(MapRule),
}

impl From<MaskRule> for PixelRule {
    fn from(rule: MaskRule) -> Self {
        Self::Mask(rule)
    }
}

impl From<MapRule> for PixelRule {
    fn from(rule: MapRule) -> Self {
        Self::Map(rule)
    }
}

impl PixelRule {
    /// Returns the class of pixels outside of an image; a map has no number there.
    pub(super) fn outside(&self) -> i64 {
        match self {
            Self::Mask(rule) => rule.ignore,
            Self::Map(_) => 0,
        }
    }

    /// Returns the word for such a file.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Mask(_) => "mask",
            Self::Map(_) => "map",
        }
    }

    /// Checks that the file has the size of its image.
    pub(super) fn check_size(&self, file: &Stored, size: (u32, u32), image: (u32, u32)) -> Result<()> {
        match size == image {
            true => Ok(()),
            false => Err(SampleError::PixelSize(self.word(), file.to_string(), size, image)),
        }
    }
}

/// The rule to read maps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MapRule {
    /// The number of a white pixel of 8 or 16 bits; the factor of floating-point values.
    pub scale: f32,
    /// The value in the file that means no number.
    pub ignore: Option<u16>,
    /// Added to the numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: f32,
    /// Another value in the file that means no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodata: Option<NoData>,
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

impl MapRule {
    /// A white pixel and floating-point values of 1 are the number 1, and all count.
    pub const PLAIN: Self = Self { scale: 1.0, ignore: None, offset: 0.0, nodata: None };

    /// Converts the values of a grey image to numbers.
    pub(super) fn apply(self, image: &Raster, encoding: Encoding, out: &mut Labels<f32>) {
        let (white, ignore) = (encoding.white, self.ignore.map(f32::from));
        let nothing = encoding.no_data(self.nodata);
        // Also of a zero with a sign, the value stays without an offset.
        let moved = |number: f32| if self.offset == 0.0 { number } else { number + self.offset };
        out.values.clear();
        match &image.values {
            Values::U8(values) => out.values.extend(values.iter().map(|&value| {
                let value = f32::from(value);
                let is_none = Some(value) == ignore || nothing.is_some_and(|nothing| is_same(value, nothing));
                if is_none { f32::NAN } else { moved(value / white * self.scale) }
            })),
            Values::F32(values) => {
                let ignore = ignore.map(|value| value / white);
                let nothing = nothing.map(|value| value / white);
                let number = |&value: &f32| {
                    let is_none =
                        Some(value) == ignore || nothing.is_some_and(|nothing| is_same(value, nothing));
                    if is_none { f32::NAN } else { moved(value * self.scale) }
                };
                out.values.extend(values.iter().map(number));
            }
        }
        (out.width, out.height) = (image.width, image.height);
    }
}

/// The decoded targets of an image's pixels.
#[derive(Debug, Clone, PartialEq)]
pub enum PixelTarget {
    /// The field's values are int64.
    Classes(Labels),
    /// The field's values are float32; NaN means no number.
    Numbers(Labels<f32>),
}

impl Default for PixelTarget {
    fn default() -> Self {
        Self::Classes(Labels::default())
    }
}

impl PixelTarget {
    /// Returns the memory for classes, with old content.
    pub(super) fn classes(&mut self) -> &mut Labels {
        if let Self::Numbers(_) = self {
            *self = Self::default();
        }
        match self {
            Self::Classes(labels) => labels,
            Self::Numbers(_) => unreachable!("just replaced"),
        }
    }

    /// Returns the memory for numbers, with old content.
    pub(super) fn numbers(&mut self) -> &mut Labels<f32> {
        if let Self::Classes(_) = self {
            *self = Self::Numbers(Labels::default());
        }
        match self {
            Self::Numbers(labels) => labels,
            Self::Classes(_) => unreachable!("just replaced"),
        }
    }

    pub(super) fn size(&self) -> (u32, u32) {
        match self {
            Self::Classes(labels) => (labels.width, labels.height),
            Self::Numbers(labels) => (labels.width, labels.height),
        }
    }

    pub(super) fn turn(&mut self, turn: Turn) {
        match self {
            Self::Classes(labels) => turn.labels(labels),
            Self::Numbers(labels) => turn.labels(labels),
        }
    }

    /// Returns the memory of the values, in bytes.
    pub(super) fn value_bytes(&self) -> usize {
        match self {
            Self::Classes(labels) => 2 * labels.values.len(),
            Self::Numbers(labels) => 4 * labels.values.len(),
        }
    }

    /// Returns the memory held, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Classes(labels) => 2 * labels.values.capacity(),
            Self::Numbers(labels) => 4 * labels.values.capacity(),
        }
    }

    pub(super) fn fit(&self, frame: Frame) -> Self {
        match self {
            Self::Classes(labels) => Self::Classes(fit_labels(labels, frame)),
            Self::Numbers(labels) => Self::Numbers(fit_labels(labels, frame)),
        }
    }

    /// Writes the targets with the placement of their image; outside of it are `outside` and no numbers.
    pub(super) fn write(&self, placement: Placement, outside: i64, out: &mut Column) {
        match self {
            Self::Classes(labels) => labels.write(placement, outside, out.i64()),
            Self::Numbers(labels) => labels.write(placement, f32::NAN, out.f32()),
        }
    }
}

#[cfg(test)]
mod tests {
    use dtrain_recipe::NoDataWord;

    use super::*;

    fn by(rule: MapRule, values: Values, encoding: Encoding) -> Vec<f32> {
        let image = Raster { width: values.len() as u32, height: 1, channels: 1, values };
        let mut out = Labels::default();
        rule.apply(&image, encoding, &mut out);
        out.values
    }

    #[test]
    fn no_data_is_no_number_and_the_offset_is_added_after_the_scale() {
        let rule = |nodata| MapRule { scale: 2.0, offset: -1.0, nodata: Some(nodata), ..MapRule::PLAIN };
        let file = |stated| Encoding { white: 1.0, stated };
        let floats = || Values::F32(vec![-9999.0, 3.0, f32::NAN]);
        let found = by(rule(NoData::Number(-9999.0)), floats(), file(None));
        assert!(found[0].is_nan() && found[1] == 5.0, "{found:?}");
        let found = by(rule(NoData::Word(NoDataWord::Nan)), floats(), file(Some(-9999.0)));
        assert!(found[2].is_nan() && found[0] == -19999.0, "{found:?}");
        let found = by(rule(NoData::Word(NoDataWord::File)), floats(), file(Some(-9999.0)));
        assert!(found[0].is_nan() && found[1] == 5.0, "{found:?}");
        let found = by(rule(NoData::Word(NoDataWord::File)), floats(), file(None));
        assert_eq!(found[..2], [-19999.0, 5.0]);
        let words = [0u16, 300].map(|value| f32::from(value) / 65535.0).to_vec();
        let found =
            by(rule(NoData::Number(300.0)), Values::F32(words), Encoding { white: 65535.0, stated: None });
        assert!(found[1].is_nan() && found[0] == -1.0, "{found:?}");
        let found =
            by(rule(NoData::Number(7.0)), Values::U8(vec![7, 255]), Encoding { white: 255.0, stated: None });
        assert!(found[0].is_nan() && found[1] == 1.0, "{found:?}");
    }

    fn numbers(values: Values, white: f32, ignore: Option<u16>) -> Vec<f32> {
        let image = Raster { width: values.len() as u32, height: 1, channels: 1, values };
        let mut out = Labels { values: vec![9.0], ..Labels::default() };
        MapRule { scale: 10.0, ignore, ..MapRule::PLAIN }.apply(
            &image,
            Encoding { white, stated: None },
            &mut out,
        );
        assert_eq!((out.width, out.height), (image.width, 1));
        out.values
    }

    #[test]
    fn white_is_the_scale_and_the_ignored_value_no_number() {
        assert_eq!(numbers(Values::U8(vec![0, 51, 255]), 255.0, None), [0.0, 2.0, 10.0]);
        let found = numbers(Values::U8(vec![0, 51, 255]), 255.0, Some(51));
        assert!(found[1].is_nan() && found[0] == 0.0 && found[2] == 10.0, "{found:?}");
        let words = [0u16, 300, 65535].map(|value| f32::from(value) / 65535.0);
        let found = numbers(Values::F32(words.into()), 65535.0, Some(300));
        assert!(found[1].is_nan() && found[0] == 0.0 && found[2] == 10.0, "{found:?}");
        let found = numbers(Values::F32(vec![-1.5, 84.0, 0.0]), 1.0, Some(84));
        assert!(found[1].is_nan() && found[0] == -15.0 && found[2] == 0.0, "{found:?}");
    }
}
