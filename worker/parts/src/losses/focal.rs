//! The focal loss: Lin et al. 2017, arXiv 1708.02002.

use dtrain_recipe::sample_losses::Focal;
use tch::{Kind, Reduction, TchError, Tensor};

use super::of_samples::{Elements, OfClasses, OfSamples, OfSets, weighted};
use crate::loss::sample_means;

impl OfSamples for Focal {
    fn of_classes(&self) -> Option<&dyn OfClasses> {
        Some(self)
    }

    fn of_sets(&self) -> Option<&dyn OfSets> {
        Some(self)
    }
}

/// Returns (1 - p)^gamma x the cross-entropies, which are -log p.
fn modulated(cross_entropies: &Tensor, gamma: f64) -> Result<Tensor, TchError> {
    /// Keeps derivatives finite where p rounds to 1.
    const LEAST: f64 = 1e-12;
    // 1 - p, without the rounding of p near 1.
    let missing = cross_entropies.f_neg()?.f_expm1()?.f_neg()?.f_clamp_min(LEAST)?;
    missing.f_pow_tensor_scalar(gamma)?.f_mul(cross_entropies)
}

impl OfClasses for Focal {
    fn losses(
        &self,
        logits: &Tensor,
        elements: &Elements<'_>,
        weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let logits = logits.f_to_kind(Kind::Float)?;
        let losses =
            logits.f_cross_entropy_loss(elements.classes, None::<Tensor>, Reduction::None, -100, 0.0)?;
        let losses = modulated(&losses, self.gamma)?;
        weighted(losses, weights)
    }
}

impl OfSets for Focal {
    fn losses(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        _class_weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let logits = logits.f_to_kind(Kind::Float)?;
        let none = None::<Tensor>;
        let losses = logits.f_binary_cross_entropy_with_logits(
            labels,
            none.as_ref(),
            none.as_ref(),
            Reduction::None,
        )?;
        let losses = modulated(&losses, self.gamma)?;
        sample_means(&match self.alpha {
            // Alpha where the label is 1, 1 - alpha where it is 0.
            Some(alpha) => {
                let weights = labels.f_mul_scalar(2.0 * alpha - 1.0)?.f_add_scalar(1.0 - alpha)?;
                losses.f_mul(&weights)?
            }
            None => losses,
        })
    }
}
