//! TrivialAugment.

use dtrain_recipe::changes::Trivialaugment;

use super::super::rng::{SampleRng, below};
use super::operation::{ALL, Strengths};
use super::{Change, Drawn, Sizes};

/// The number of magnitudes.
const MAGNITUDES: usize = 31;

impl Change for Trivialaugment {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        let operation = ALL[below(rng, ALL.len() as u32) as usize];
        let at = below(rng, MAGNITUDES as u32) as usize;
        let magnitude = Strengths::wide().magnitude(operation, at, MAGNITUDES);
        operation.draw(magnitude, rng, (sizes.target, self.filter), drawn);
    }
}
