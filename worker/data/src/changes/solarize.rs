//! Inverted bright values.

use dtrain_recipe::changes::Solarize;

use super::super::raster::Raster;
use super::super::rng::SampleRng;
use super::{Change, Colour, Drawn, Sizes, happens, values};

impl Change for Solarize {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(InvertFrom(self.threshold as f32));
        }
    }
}

/// The least value that is inverted, as a part of white.
#[derive(Debug)]
pub(super) struct InvertFrom(pub(super) f32);

impl Colour for InvertFrom {
    fn change(&self, image: &mut Raster) {
        let (number, byte) = (self.0, 255.0 * self.0);
        values::each(
            image,
            |value| if f32::from(value) >= byte { !value } else { value },
            |value| if value >= number { 1.0 - value } else { value },
        );
    }
}
