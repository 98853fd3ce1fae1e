//! Quarter turns.

use dtrain_recipe::changes::Rot90;

use super::super::rng::{SampleRng, below};
use super::moves::Move;
use super::{Change, Drawn, Sizes, happens};

impl Change for Rot90 {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let turns = 1 + below(rng, 3);
        if happens(rng, self.share) {
            drawn.shift(Move::Quarters(turns));
        }
    }

    fn needs_square(&self) -> bool {
        true
    }
}
