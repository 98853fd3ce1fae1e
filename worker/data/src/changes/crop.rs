//! Shifts over black.

use dtrain_recipe::changes::Crop;

use super::super::rng::{SampleRng, below};
use super::{Change, Drawn, Sizes};

/// As torchvision's `RandomCrop(size, padding)`, with a part of the side (by default 4 pixels of 32) of zeros.
impl Change for Crop {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        let mut shift = |side: u32| {
            let padding = padding(side, self.padding);
            below(rng, 2 * padding + 1) as i32 - padding as i32
        };
        let left = shift(sizes.target.0);
        // A shift after a mirror image is one to the other side before it.
        drawn.placement.left = if drawn.placement.flip { -left } else { left };
        drawn.placement.top = shift(sizes.target.1);
    }
}

pub(super) fn padding(side: u32, part: f64) -> u32 {
    (f64::from(side) * part + 0.5) as u32
}
