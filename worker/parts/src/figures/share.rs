//! The share of values that are right.

use tch::{Kind, TchError, Tensor};

/// The number of [`sums`].
pub(super) const SUMS: usize = 2;

/// Returns the number of values that are right, and of all, float64. `right` is N x M; each sample counts by its weight.
pub(super) fn sums(right: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let counted = right.f_mul(&weights.f_unsqueeze(1)?)?.f_sum(Kind::Double)?;
    let all = weights.f_sum(Kind::Double)?.f_mul_scalar(right.size()[1])?;
    Tensor::f_stack(&[counted, all], 0)
}

/// Returns the share from the sums over all samples.
pub(super) fn of(sums: &[f64]) -> f64 {
    sums[0] / sums[1]
}
