//! From pixel values to what a model takes: `(x - mean) / std` for each channel; 8-bit values by a table.

use dtrain_common::recipe::{IMAGENET_MEAN, IMAGENET_STD};

use super::plane::Placement;
use super::raster::{Values, View};

/// Mean and standard deviation for each channel, and for 8-bit values a table of `(x / 255 - mean) / std`.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalize {
    tables: Vec<[f32; 256]>,
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl Normalize {
    /// Mean and standard deviation, not 0, of each channel, for 8- and 16-bit images on the scale from 0 to
    /// 1, for floating-point images on that of their values.
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        assert_eq!(mean.len(), std.len(), "a mean and a standard deviation for each channel");
        let table =
            |(mean, std): (&f64, &f64)| std::array::from_fn(|x| ((x as f64 / 255.0 - mean) / std) as f32);
        Self { tables: mean.iter().zip(std).map(table).collect(), mean: mean.to_vec(), std: std.to_vec() }
    }

    /// How many channels it is for.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// For each channel what 8-bit values become.
    pub fn tables(&self) -> &[[f32; 256]] {
        &self.tables
    }

    /// A floating-point value of channel `c` as it is written.
    pub fn value(&self, c: usize, x: f32) -> f32 {
        ((f64::from(x) - self.mean[c]) / self.std[c]) as f32
    }

    /// Writes an image of floating-point values into `out`, one plane for each channel.
    pub(super) fn write(&self, view: View<'_>, placement: Placement, out: &mut [f32]) {
        let Values::F32(values) = view.values else { return };
        let plane = view.width * view.height;
        assert_eq!(out.len(), plane * view.channels, "room for one image");
        for (c, out) in out.chunks_exact_mut(plane.max(1)).enumerate() {
            let value = |x| self.value(c, x);
            view.channel(values, c).write(placement, value(0.0), out, value);
        }
    }

    /// Adds 8-bit images that lie in planes of `plane` values to `out`, normalised.
    pub fn look_up(&self, values: &[u8], plane: usize, out: &mut Vec<f32>) {
        out.reserve(values.len());
        for (values, table) in values.chunks_exact(plane.max(1)).zip(self.tables.iter().cycle()) {
            out.extend(values.iter().map(|&x| table[usize::from(x)]));
        }
    }
}

impl Default for Normalize {
    /// Torchvision's weights expect it.
    fn default() -> Self {
        Self::new(&IMAGENET_MEAN, &IMAGENET_STD)
    }
}

#[cfg(test)]
mod tests;
