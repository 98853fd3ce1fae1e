//! Mirror images.

use dtrain_recipe::changes::Flip;

use super::super::rng::{SampleRng, unit};
use super::{Change, Drawn, Sizes};

impl Change for Flip {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        drawn.placement.flip = f64::from(unit(rng)) >= 1.0 - self.share;
    }
}
