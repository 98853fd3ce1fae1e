//! Contrast.

use super::super::raster::{Raster, Values};
use super::values::{self, Value, vectorized};
use super::{Colour, saturation};

/// A factor of the distance of all values from their mean.
#[derive(Debug)]
pub(super) struct ContrastFactor(pub(super) f32);

impl Colour for ContrastFactor {
    /// The mean is that of the brightness of pictures, else of each channel.
    fn change(&self, image: &mut Raster) {
        let plane = (image.width as usize * image.height as usize).max(1);
        let (is_rgb, channels) = (image.view().is_rgb(), image.channels);
        match &mut image.values {
            Values::U8(values) if is_rgb => {
                let mean = mean_of_bytes(bytemuck::cast_slice(values));
                self.spread(values, mean as f32);
            }
            Values::U8(values) => {
                for values in values.chunks_exact_mut(plane) {
                    let sum: u64 = values.iter().map(|&value| u64::from(value)).sum();
                    self.spread(values, (sum as f64 / plane as f64) as f32);
                }
            }
            Values::F32(values) if channels == 3 => {
                let (red, rest) = values.split_at(plane);
                let (green, blue) = rest.split_at(plane);
                let greys = red.iter().zip(green).zip(blue);
                let sum: f64 = greys.map(|((&r, &g), &b)| f64::from(values::grey([r, g, b], false))).sum();
                self.spread(values, (sum / plane as f64) as f32);
            }
            Values::F32(values) => {
                for values in values.chunks_exact_mut(plane) {
                    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
                    self.spread(values, (sum / plane as f64) as f32);
                }
            }
        }
    }
}

impl ContrastFactor {
    fn spread<T: Value>(&self, values: &mut [T], mean: f32) {
        let (factor, rest) = (self.0, saturation::rest(self.0) * mean);
        vectorized!(values.iter_mut().for_each(|value| *value = T::cut(value.wide() * factor + rest)));
    }
}

/// Returns the mean of the brightness of all pixels, each without its fraction.
fn mean_of_bytes(pixels: &[[u8; 3]]) -> f64 {
    let grey =
        |&[r, g, b]: &[u8; 3]| (2989 * u32::from(r) + 5870 * u32::from(g) + 1140 * u32::from(b)) / 10000;
    let sum: u64 = vectorized!({
        pixels.chunks(1 << 16).map(|pixels| u64::from(pixels.iter().map(grey).sum::<u32>())).sum()
    });
    sum as f64 / pixels.len().max(1) as f64
}
