//! Normalisation of pixels for a model: `(x - mean) / std` for each channel; 8-bit values by a table.

use dtrain_recipe::{IMAGENET_MEAN, IMAGENET_STD};

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
    /// Takes mean and standard deviation (not 0) of each channel: for 8- and 16-bit images on the scale from
    /// 0 to 1, for floating-point images on the scale of their values.
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        assert_eq!(mean.len(), std.len(), "a mean and a standard deviation for each channel");
        let table =
            |(mean, std): (&f64, &f64)| std::array::from_fn(|x| ((x as f64 / 255.0 - mean) / std) as f32);
        Self { tables: mean.iter().zip(std).map(table).collect(), mean: mean.to_vec(), std: std.to_vec() }
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Returns the table of 8-bit values for each channel.
    pub fn tables(&self) -> &[[f32; 256]] {
        &self.tables
    }

    /// Normalises a floating-point value of channel `c`.
    pub fn value(&self, c: usize, x: f32) -> f32 {
        ((f64::from(x) - self.mean[c]) / self.std[c]) as f32
    }

    /// Returns a normalised value of channel `c` as it was before.
    pub fn stored(&self, c: usize, x: f32) -> f32 {
        (f64::from(x) * self.std[c] + self.mean[c]) as f32
    }

    /// Returns mean and standard deviation of each channel.
    pub fn mean_and_std(&self) -> impl Iterator<Item = (f64, f64)> {
        self.mean.iter().copied().zip(self.std.iter().copied())
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

    /// Normalises 8-bit images in planes of `plane` values and appends them to `out`.
    pub fn look_up(&self, values: &[u8], plane: usize, out: &mut Vec<f32>) {
        out.reserve(values.len());
        for (values, table) in values.chunks_exact(plane.max(1)).zip(self.tables.iter().cycle()) {
            out.extend(values.iter().map(|&x| table[usize::from(x)]));
        }
    }
}

impl Default for Normalize {
    /// Returns ImageNet's values, which torchvision's weights expect.
    fn default() -> Self {
        Self::new(&IMAGENET_MEAN, &IMAGENET_STD)
    }
}

#[cfg(test)]
mod tests;
