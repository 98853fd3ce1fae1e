//! Saturation.

use super::super::raster::Raster;
use super::Colour;
use super::values::{self, BLOCK, Block, OfBlock};

/// A factor of the distance of each colour from its grey.
#[derive(Debug)]
pub(super) struct Saturation(pub(super) f32);

impl Colour for Saturation {
    fn change(&self, image: &mut Raster) {
        values::each_block(image, self);
    }
}

impl OfBlock for Saturation {
    #[inline(always)]
    fn change(&self, [red, green, blue]: &mut Block, is_of_bytes: bool) {
        let (factor, rest) = (self.0, rest(self.0));
        for at in 0..BLOCK {
            let grey = values::grey([red[at], green[at], blue[at]], is_of_bytes) * rest;
            red[at] = red[at] * factor + grey;
            green[at] = green[at] * factor + grey;
            blue[at] = blue[at] * factor + grey;
        }
    }
}

/// Returns 1 less the factor, rounded once.
pub(super) fn rest(factor: f32) -> f32 {
    (1.0 - f64::from(factor)) as f32
}
