//! Images upside down.

use dtrain_recipe::changes::VerticalFlip;

use super::super::rng::SampleRng;
use super::moves::Move;
use super::{Change, Drawn, Sizes, happens};

impl Change for VerticalFlip {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.shift(Move::UpsideDown);
        }
    }
}
