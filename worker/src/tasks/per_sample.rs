//! Losses of samples, and their weighted sum.

use tch::{Kind, TchError, Tensor};

use super::{Loss, TaskError};

/// Returns the mean of each sample over all dimensions after the first.
pub(super) fn sample_means(values: &Tensor) -> Result<Tensor, TchError> {
    values.f_flatten(1, -1)?.f_mean_dim([1i64].as_slice(), false, Kind::Float)
}

/// Computes the weighted loss from the loss of each image, N, and, if known, whether each was right, N.
pub(super) fn loss_of(losses: &Tensor, right: Option<Tensor>, weights: &Tensor) -> Result<Loss, TaskError> {
    let sums = match right {
        Some(right) => right.f_mul(weights)?.f_sum(Kind::Double)?.f_view([1])?,
        None => Tensor::f_zeros([0], (Kind::Double, losses.device()))?,
    };
    Ok(Loss { sum: losses.f_mul(weights)?.f_sum(Kind::Float)?, weight: weights.f_sum(Kind::Double)?, sums })
}
