//! The loss of classes with an order, CORN: Shi, Cao and Raschka 2021, arXiv 2111.08851, as `corn_loss` of coral-pytorch.
//!
//! Output k of K - 1 is the logit of the decision whether a class is above rank k, given that it is not below it.

use dtrain_recipe::sample_losses::Ordinal;
use tch::{Kind, Reduction, TchError, Tensor};

use super::of_samples::{Elements, OfClasses, OfSamples};

impl OfSamples for Ordinal {
    fn of_classes(&self) -> Option<&dyn OfClasses> {
        Some(self)
    }
}

/// The classes of the elements are ranks.
impl OfClasses for Ordinal {
    /// Returns the number of decisions up to the class of each element.
    fn weights(&self, elements: &Elements<'_>) -> Result<Option<Tensor>, TchError> {
        let decisions = elements.classes.f_add_scalar(1)?.f_clamp_max(elements.known - 1)?;
        decisions.f_to_kind(Kind::Float).map(Some)
    }

    /// Returns the sum over these decisions.
    fn losses(
        &self,
        logits: &Tensor,
        elements: &Elements<'_>,
        _weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let logits = logits.f_to_kind(Kind::Float)?;
        let numbers = Tensor::f_arange(logits.size()[1], (Kind::Int64, logits.device()))?;
        let ranks = elements.classes.f_unsqueeze(1)?;
        let above = ranks.f_gt_tensor(&numbers)?.f_to_kind(Kind::Float)?;
        let none = None::<Tensor>;
        let losses = logits.f_binary_cross_entropy_with_logits(
            &above,
            none.as_ref(),
            none.as_ref(),
            Reduction::None,
        )?;
        let losses = losses.f_masked_fill(&ranks.f_lt_tensor(&numbers)?, 0.0)?;
        losses.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)
    }
}

/// Returns the logarithm of the probability of each class, N x K float32, of `logits`, N x K - 1. `ranks`: that of each class, K int64;
/// None if they are the classes' numbers.
pub fn log_probabilities(logits: &Tensor, ranks: Option<&Tensor>) -> Result<Tensor, TchError> {
    let logits = logits.f_to_kind(Kind::Float)?;
    let nothing = logits.f_narrow(1, 0, 1)?.f_zeros_like()?;
    // A class is above all ranks before its own, and not above its own.
    let above = logits.f_log_sigmoid()?.f_cumsum(1, Kind::Float)?;
    let above = Tensor::f_cat(&[&nothing, &above], 1)?;
    let not_above = Tensor::f_cat(&[&logits.f_neg()?.f_log_sigmoid()?, &nothing], 1)?;
    let all = above.f_add(&not_above)?;
    ranks.map_or(Ok(all.shallow_clone()), |ranks| all.f_index_select(1, ranks))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The products of the conditional probabilities, in an order that is not that of the numbers.
    #[test]
    fn classes_have_the_probabilities_of_their_ranks() {
        let logits = Tensor::from_slice(&[0.5f32, -1.0, 80.0, -90.0]).view([2, 2]);
        let ranks = Tensor::from_slice(&[2i64, 0, 1]);
        let found = log_probabilities(&logits, Some(&ranks)).unwrap();
        assert!(found.isfinite().all().int64_value(&[]) == 1);
        let [first, second] = [0.5f64, -1.0].map(|logit| 1.0 / (1.0 + (-logit).exp()));
        let expected = [first * second, 1.0 - first, first * (1.0 - second), 0.0, 0.0, 1.0];
        for (found, expected) in Vec::<f32>::try_from(found.exp().view([-1])).unwrap().iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
