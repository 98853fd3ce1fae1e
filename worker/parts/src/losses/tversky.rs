//! The Tversky loss of images: Salehi et al. 2017, arXiv 1706.05721.

use dtrain_recipe::sample_losses::Tversky;
use tch::{TchError, Tensor};

use super::of_samples::{OfAreas, OfSamples};
use super::overlap::{Areas, quotient};

impl OfSamples for Tversky {
    fn of_areas(&self) -> Option<&dyn OfAreas> {
        Some(self)
    }
}

impl OfAreas for Tversky {
    fn matches(&self, Areas { both, predicted, target }: &Areas) -> Result<Tensor, TchError> {
        let only_predicted = predicted.f_sub(both)?.f_mul_scalar(self.alpha)?;
        let only_target = target.f_sub(both)?.f_mul_scalar(self.beta)?;
        quotient(both, &both.f_add(&only_predicted)?.f_add(&only_target)?, self.smooth)
    }
}
