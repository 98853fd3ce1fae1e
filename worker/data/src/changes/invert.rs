//! Negatives.

use dtrain_recipe::changes::Invert;

use super::super::raster::Raster;
use super::super::rng::SampleRng;
use super::{Change, Colour, Drawn, Sizes, happens, values};

impl Change for Invert {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(Negative);
        }
    }
}

#[derive(Debug)]
pub(super) struct Negative;

impl Colour for Negative {
    fn change(&self, image: &mut Raster) {
        values::each(image, |value| !value, |value| 1.0 - value);
    }
}
