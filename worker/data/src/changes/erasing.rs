//! Black rectangles.

use std::ops::Range;

use dtrain_recipe::changes::Erasing;

use super::super::raster::{Raster, Values};
use super::super::rng::{SampleRng, below, between};
use super::{Change, Colour, Drawn, Sizes, happens};

/// How often a rectangle is drawn that does not fit.
const TRIES: usize = 10;

/// As torchvision's `RandomErasing`.
impl Change for Erasing {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        if !happens(rng, self.share) {
            return;
        }
        let (width, height) = sizes.target;
        let all = f64::from(width) * f64::from(height);
        let [least, most] = self.area.map(|area| area as f32);
        let [low, high] = self.ratio.map(|ratio| ratio.ln() as f32);
        for _ in 0..TRIES {
            let area = all * f64::from(between(rng, least, most));
            let ratio = f64::from(between(rng, low, high)).exp();
            let rows = (area * ratio).sqrt().round_ties_even() as u32;
            let columns = (area / ratio).sqrt().round_ties_even() as u32;
            if rows < height && columns < width {
                let (top, left) = (below(rng, height - rows + 1), below(rng, width - columns + 1));
                drawn.colour(Black { rows: top..top + rows, columns: left..left + columns });
                return;
            }
        }
    }
}

/// A rectangle that becomes black.
#[derive(Debug)]
pub(super) struct Black {
    pub(super) rows: Range<u32>,
    pub(super) columns: Range<u32>,
}

impl Colour for Black {
    fn change(&self, image: &mut Raster) {
        let (width, height) = (image.width as usize, image.height as usize);
        let is_rgb = image.view().is_rgb();
        match &mut image.values {
            Values::U8(values) if is_rgb => {
                self.erase(bytemuck::cast_slice_mut::<u8, [u8; 3]>(values), width)
            }
            Values::U8(values) => {
                values.chunks_exact_mut((width * height).max(1)).for_each(|plane| self.erase(plane, width));
            }
            Values::F32(values) => {
                values.chunks_exact_mut((width * height).max(1)).for_each(|plane| self.erase(plane, width));
            }
        }
    }
}

impl Black {
    fn erase<T: Copy + Default>(&self, pixels: &mut [T], width: usize) {
        let columns = self.columns.start as usize..self.columns.end as usize;
        for y in self.rows.clone() {
            pixels[y as usize * width..][columns.clone()].fill(T::default());
        }
    }
}
