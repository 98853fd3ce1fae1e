//! Cross-entropy of the next token, summed over tokens.

use tch::{Kind, Reduction, TchError, Tensor};

use crate::Loss;

/// Returns `targets`, N x T int64, with `no_target` for all tokens of samples with weight 0 in `weights`, N.
pub fn readable(targets: &Tensor, weights: &Tensor, no_target: i64) -> Result<Tensor, TchError> {
    targets.f_masked_fill(&weights.f_eq(0.0)?.f_view([-1, 1])?, no_target)
}

/// Returns the sum of the cross-entropies of `targets`, N x T, in `logits`, N x T x V, without those that are `no_target`.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, no_target: i64) -> Result<Tensor, TchError> {
    let (logits, targets) = (logits.f_flatten(0, 1)?, targets.f_flatten(0, 1)?);
    logits.f_cross_entropy_loss(&targets, None::<Tensor>, Reduction::Sum, no_target, 0.0)
}

/// Returns the loss of this sum over samples of `tokens` tokens each. Samples with weight 0 in `weights`, N, do not count.
pub fn loss(sum: Tensor, weights: &Tensor, tokens: i64) -> Result<Loss, TchError> {
    let samples = weights.f_ne(0.0)?.f_sum(Kind::Double)?;
    Ok(Loss { sum, weight: samples.f_mul_scalar(tokens)?, sums: Loss::no_sums(weights.device())? })
}

/// Returns the loss of this sum over targets, N x T, of which those below 0 do not count.
pub fn loss_of_targets(sum: Tensor, targets: &Tensor) -> Result<Loss, TchError> {
    let weight = targets.f_ge(0)?.f_sum(Kind::Double)?;
    Ok(Loss { sum, weight, sums: Loss::no_sums(targets.device())? })
}
