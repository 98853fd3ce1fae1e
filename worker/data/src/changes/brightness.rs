//! Brightness.

use dtrain_recipe::changes::Brightness;

use super::super::raster::Raster;
use super::super::rng::{SampleRng, between};
use super::{Change, Colour, Drawn, Sizes, values};

impl Change for Brightness {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let strength = self.strength as f32;
        drawn.colour(Factor(between(rng, 1.0 - strength, 1.0 + strength)));
    }
}

/// A factor of all values.
#[derive(Debug)]
pub(super) struct Factor(pub(super) f32);

impl Colour for Factor {
    /// As torchvision, bytes lose their fractions and stay below 256. Other values have no bounds.
    fn change(&self, image: &mut Raster) {
        values::each(image, |value| (f32::from(value) * self.0) as u8, |value| value * self.0);
    }

    fn commutes_with_shifts(&self) -> bool {
        true
    }
}
