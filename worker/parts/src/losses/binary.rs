//! Binary cross-entropy of any number of classes, as `torch.nn.BCEWithLogitsLoss`.

use dtrain_recipe::sample_losses::Binary;
use tch::{Kind, Reduction, TchError, Tensor};

use super::of_samples::{OfSamples, OfSets};
use crate::loss::sample_means;

impl OfSamples for Binary {
    fn of_sets(&self) -> Option<&dyn OfSets> {
        Some(self)
    }
}

/// The mean over the classes of the binary cross-entropies of each sample.
impl OfSets for Binary {
    fn losses(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        class_weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let logits = logits.f_to_kind(Kind::Float)?;
        let labels = match self.smoothing {
            0.0 => labels.shallow_clone(),
            smoothing => labels.f_mul_scalar(1.0 - smoothing)?.f_add_scalar(smoothing / 2.0)?,
        };
        let none = None::<&Tensor>;
        sample_means(&logits.f_binary_cross_entropy_with_logits(
            &labels,
            none,
            class_weights,
            Reduction::None,
        )?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Values of torch.nn.BCEWithLogitsLoss(reduction="none") of PyTorch 2.11 in float64, and their means; large logits do
    /// not overflow.
    #[test]
    fn losses_are_those_of_pytorch() {
        let logits = Tensor::from_slice(&[0f32, 1.5, -2.25, 88.5, -200.0, 0.125]).view([2, 3]);
        let labels = Tensor::from_slice(&[1f32, 0.0, 1.0, 1.0, 1.0, 0.0]).view([2, 3]);
        let losses = Binary::default().losses(&logits, &labels, None).unwrap();
        let losses = Vec::<f32>::try_from(losses).unwrap();
        for (found, expected) in losses.iter().zip(EXPECTED) {
            assert!((f64::from(*found) - expected).abs() < 1e-6 * expected, "{found} {expected}");
        }
    }

    const EXPECTED: [f64; 2] = [1.581_589_005_819_815, 66.919_199_678_438_06];
}
