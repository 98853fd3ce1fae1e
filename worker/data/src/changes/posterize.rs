//! Fewer levels.

use dtrain_recipe::changes::Posterize;

use super::super::raster::Raster;
use super::super::rng::SampleRng;
use super::{Change, Colour, Drawn, Sizes, happens, values};

impl Change for Posterize {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(Bits(self.bits as u32));
        }
    }
}

/// The bits that remain of 8, from 0.
#[derive(Debug)]
pub(super) struct Bits(pub(super) u32);

impl Colour for Bits {
    fn change(&self, image: &mut Raster) {
        let mask = !(255u32 >> self.0) as u8;
        let levels = (1u32 << self.0) as f32;
        values::each(
            image,
            |value| value & mask,
            |value| {
                let level = (value * levels).floor();
                // White has the highest level. Values beyond it are those of images without bounds.
                let level = if value <= 1.0 { level.min(levels - 1.0) } else { level };
                level / levels
            },
        );
    }

    fn commutes_with_shifts(&self) -> bool {
        true
    }
}
