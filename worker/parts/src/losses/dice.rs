//! The soft Dice loss of images: Milletari et al. 2016, arXiv 1606.04797, without the squares of its denominator.

use dtrain_recipe::sample_losses::Dice;
use tch::{TchError, Tensor};

use super::of_samples::{OfAreas, OfSamples};
use super::overlap::{Areas, quotient};

impl OfSamples for Dice {
    fn of_areas(&self) -> Option<&dyn OfAreas> {
        Some(self)
    }
}

impl OfAreas for Dice {
    fn matches(&self, areas: &Areas) -> Result<Tensor, TchError> {
        quotient(&areas.both.f_mul_scalar(2.0)?, &areas.predicted.f_add(&areas.target)?, self.smooth)
    }
}
