//! RandAugment.

use dtrain_recipe::changes::Randaugment;

use super::super::rng::{SampleRng, below};
use super::operation::{ALL, Strengths};
use super::{Change, Drawn, Sizes};

/// The number of magnitudes.
const MAGNITUDES: usize = 31;

impl Change for Randaugment {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        let strengths = Strengths::narrow(sizes.target);
        for _ in 0..self.operations {
            let operation = ALL[below(rng, ALL.len() as u32) as usize];
            let magnitude = strengths.magnitude(operation, self.magnitude, MAGNITUDES);
            operation.draw(magnitude, rng, (sizes.target, self.filter), drawn);
        }
    }
}
