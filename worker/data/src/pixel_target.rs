//! The learning target of each pixel: classes of a mask, or numbers of a map.

use serde::{Deserialize, Serialize};

use super::dataset::Column;
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
}

impl MapRule {
    /// Converts the values of a grey image to numbers. `white` is the value that was scaled to 1.
    pub(super) fn apply(self, image: &Raster, white: f32, out: &mut Labels<f32>) {
        let ignore = self.ignore.map(f32::from);
        out.values.clear();
        match &image.values {
            Values::U8(values) => out.values.extend(values.iter().map(|&value| {
                let value = f32::from(value);
                if Some(value) == ignore { f32::NAN } else { value / white * self.scale }
            })),
            Values::F32(values) => {
                let ignore = ignore.map(|value| value / white);
                let number = |&value: &f32| if Some(value) == ignore { f32::NAN } else { value * self.scale };
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
    use super::*;

    fn numbers(values: Values, white: f32, ignore: Option<u16>) -> Vec<f32> {
        let image = Raster { width: values.len() as u32, height: 1, channels: 1, values };
        let mut out = Labels { values: vec![9.0], ..Labels::default() };
        MapRule { scale: 10.0, ignore }.apply(&image, white, &mut out);
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
