//! Gaussian blur.

use dtrain_recipe::changes::Blur;

use super::super::raster::{Raster, Values};
use super::super::rng::{SampleRng, between};
use super::values::{self, Value, vectorized};
use super::{Change, Colour, Drawn, Sizes, happens};

impl Change for Blur {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let [least, most] = self.sigma.map(|sigma| sigma as f32);
        let sigma = between(rng, least, most);
        if happens(rng, self.share) {
            drawn.colour(Gaussian::new(self.kernel, sigma));
        }
    }
}

/// The weights of the pixels in a row, and of those in a column; an odd number.
#[derive(Debug)]
pub(super) struct Gaussian(Vec<f32>);

impl Gaussian {
    /// Makes the kernel as torchvision, whose places are closer than pixels by the square root of 2 and whose exponent has no half.
    pub(super) fn new(side: usize, sigma: f32) -> Self {
        let middle = (side / 2) as f64;
        let weight = |at: usize| {
            let away = (at as f64 - middle) / f64::from(sigma);
            (-away * away / 2.0).exp()
        };
        let weights: Vec<f64> = (0..side).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        // Pixels of no weight cost time.
        let first = weights.iter().position(|weight| weight / sum > 1e-6).unwrap_or(side / 2);
        Self(weights[first..side - first].iter().map(|weight| (weight / sum) as f32).collect())
    }

    /// Blurs a plane whose pixels are `step` values apart; beyond its borders it is mirrored.
    #[inline(always)]
    fn blur<T: Value>(&self, values: &mut [T], (width, height): (usize, usize), step: usize) {
        let (half, row) = (self.0.len() / 2, width * step);
        let source: Vec<T> = values.to_vec();
        let mut sums = vec![0.0; row];
        let mut padded = vec![0.0; row + 2 * half * step];
        for (y, out) in values.chunks_exact_mut(row.max(1)).enumerate() {
            padded[half * step..][..row].fill(0.0);
            for (at, &weight) in self.0.iter().enumerate() {
                let from = mirrored(y as isize + at as isize - half as isize, height);
                let rows = padded[half * step..][..row].iter_mut().zip(&source[from * row..][..row]);
                rows.for_each(|(sum, &value)| *sum += weight * value.wide());
            }
            for at in (0..half).chain(half + width..width + 2 * half) {
                let from = half + mirrored(at as isize - half as isize, width);
                padded.copy_within(from * step..(from + 1) * step, at * step);
            }
            sums.fill(0.0);
            for (at, &weight) in self.0.iter().enumerate() {
                let rows = sums.iter_mut().zip(&padded[at * step..][..row]);
                rows.for_each(|(sum, &value)| *sum += weight * value);
            }
            out.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = T::near(sum));
        }
    }
}

/// Returns a place inside of a side of this length; the mirrors go through its first and last pixel.
fn mirrored(at: isize, length: usize) -> usize {
    let period = (2 * length as isize - 2).max(1);
    let at = at.rem_euclid(period);
    at.min(period - at).min(length as isize - 1) as usize
}

impl Colour for Gaussian {
    fn change(&self, image: &mut Raster) {
        let (size, is_rgb) = ((image.width as usize, image.height as usize), image.view().is_rgb());
        match &mut image.values {
            Values::U8(values) => values::each_plane(values, size, is_rgb, |plane, size, step| {
                vectorized!(self.blur(plane, size, step))
            }),
            Values::F32(values) => values::each_plane(values, size, false, |plane, size, step| {
                vectorized!(self.blur(plane, size, step))
            }),
        }
    }
}
