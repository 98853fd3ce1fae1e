//! The soft Jaccard loss of images: Rahman and Wang 2016, doi 10.1007/978-3-319-50835-1_22.

use dtrain_recipe::sample_losses::Jaccard;
use tch::{TchError, Tensor};

use super::of_samples::{OfAreas, OfSamples};
use super::overlap::{Areas, quotient};

impl OfSamples for Jaccard {
    fn of_areas(&self) -> Option<&dyn OfAreas> {
        Some(self)
    }
}

impl OfAreas for Jaccard {
    fn matches(&self, areas: &Areas) -> Result<Tensor, TchError> {
        let either = areas.predicted.f_add(&areas.target)?.f_sub(&areas.both)?;
        quotient(&areas.both, &either, self.smooth)
    }
}
