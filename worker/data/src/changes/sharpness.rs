//! Sharpness.

use dtrain_recipe::changes::Sharpness;

use super::super::raster::{Raster, Values};
use super::super::rng::SampleRng;
use super::values::{self, Value, vectorized};
use super::{Change, Colour, Drawn, Sizes, happens, saturation};

impl Change for Sharpness {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(Sharpen(self.factor as f32));
        }
    }
}

/// A factor of the distance of each value from the blurred one.
#[derive(Debug)]
pub(super) struct Sharpen(pub(super) f32);

impl Sharpen {
    /// Sharpens a plane whose pixels are `step` values apart. Its border stays.
    #[inline(always)]
    fn sharpen<T: Value>(&self, values: &mut [T], (width, height): (usize, usize), step: usize) {
        if width <= 2 || height <= 2 {
            return;
        }
        let (source, row) = (values.to_vec(), width * step);
        let (inner, rest) = (row - 2 * step, saturation::rest(self.0));
        // The sums of three values above each other.
        let mut sums = vec![0.0; row];
        for y in 1..height - 1 {
            let [above, own, below] = [y - 1, y, y + 1].map(|y| &source[y * row..][..row]);
            for (sum, ((a, b), c)) in sums.iter_mut().zip(above.iter().zip(own).zip(below)) {
                *sum = a.wide() + b.wide() + c.wide();
            }
            let (left, middle, right) = (&sums[..inner], &sums[step..][..inner], &sums[2 * step..][..inner]);
            let own = &own[step..][..inner];
            let out = &mut values[y * row + step..][..inner];
            for (out, (own, ((a, b), c))) in
                out.iter_mut().zip(own.iter().zip(left.iter().zip(middle).zip(right)))
            {
                let value = own.wide();
                let blurred = T::near((a + b + c + 4.0 * value) * (1.0 / 13.0)).wide();
                *out = T::cut(value + (blurred - value) * rest);
            }
        }
    }
}

impl Colour for Sharpen {
    fn change(&self, image: &mut Raster) {
        let (size, is_rgb) = ((image.width as usize, image.height as usize), image.view().is_rgb());
        match &mut image.values {
            Values::U8(values) => values::each_plane(values, size, is_rgb, |plane, size, step| {
                vectorized!(self.sharpen(plane, size, step))
            }),
            Values::F32(values) => values::each_plane(values, size, false, |plane, size, step| {
                vectorized!(self.sharpen(plane, size, step))
            }),
        }
    }
}
