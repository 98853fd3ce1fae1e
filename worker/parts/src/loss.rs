//! The loss of a micro-batch.

use tch::{Device, Kind, TchError, Tensor};

/// A micro-batch's loss and figures.
#[derive(Debug)]
pub struct Loss {
    /// The weighted sum of the losses of the samples (pixels, tokens): a scalar in the autograd graph.
    pub sum: Tensor,
    /// The sum of their weights: a scalar of any float dtype. The gradient of a step is the gradient of the
    /// sum of all `sum` divided by the sum of all `weight`, over all micro-batches, for every partition.
    pub weight: Tensor,
    /// The sums of the task's figures, to be added over batches and ranks: float64, one-dimensional, detached, as many elements as
    /// the task declares. Only an evaluation needs them; a training step ignores them.
    pub sums: Tensor,
}

impl Loss {
    /// Computes the weighted loss from the loss of each sample, N.
    pub fn of_samples(losses: &Tensor, weights: &Tensor, sums: Tensor) -> Result<Self, TchError> {
        Ok(Self {
            sum: losses.f_mul(weights)?.f_sum(Kind::Float)?,
            weight: weights.f_sum(Kind::Double)?,
            sums,
        })
    }

    /// Returns the sums of no figures.
    pub fn no_sums(device: Device) -> Result<Tensor, TchError> {
        Tensor::f_zeros([0], (Kind::Double, device))
    }
}

/// Returns the mean of each sample over all dimensions after the first.
pub(crate) fn sample_means(values: &Tensor) -> Result<Tensor, TchError> {
    values.f_flatten(1, -1)?.f_mean_dim([1i64].as_slice(), false, Kind::Float)
}
