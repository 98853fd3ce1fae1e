//! Grey images.

use dtrain_recipe::changes::Grayscale;

use super::super::raster::Raster;
use super::super::rng::SampleRng;
use super::values::{self, BLOCK, Block, OfBlock};
use super::{Change, Colour, Drawn, Sizes, happens};

impl Change for Grayscale {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(Grey);
        }
    }
}

#[derive(Debug)]
pub(super) struct Grey;

impl Colour for Grey {
    fn change(&self, image: &mut Raster) {
        values::each_block(image, self);
    }

    fn commutes_with_shifts(&self) -> bool {
        true
    }
}

impl OfBlock for Grey {
    #[inline(always)]
    fn change(&self, [red, green, blue]: &mut Block, is_of_bytes: bool) {
        for at in 0..BLOCK {
            let grey = values::grey([red[at], green[at], blue[at]], is_of_bytes);
            (red[at], green[at], blue[at]) = (grey, grey, grey);
        }
    }
}
