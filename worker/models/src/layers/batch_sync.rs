//! The samples that a batch normalisation normalises together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tch::Tensor;

use super::super::error::ModelError;

/// The participants whose micro-batches are normalised together.
///
/// Every participant builds the same model, calls `forward` equally often and runs each backward pass. If it
/// has no samples left in training, it passes an empty micro-batch (N = 0). The calls of
/// [`BatchSync::all_reduce`] and the gradient sums in backward are matched by their order.
pub trait BatchSync: fmt::Debug + Send + Sync {
    /// Returns the sum of `x` (any shape, float) over all participants, with identical bits on each.
    /// Differentiable: the gradient of `x` is the sum of the participants' gradients of the result, because
    /// each participant's loss is a term of one sum.
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError>;

    /// Returns the number of participants, including this one.
    fn participants(&self) -> usize;
}

/// Groups of samples that batch normalisation normalises separately. Clones refer to the same model.
#[derive(Debug, Clone, Default)]
pub struct BatchGroups(Arc<AtomicI64>);

impl BatchGroups {
    /// Sets the number of samples per group for the next micro-batches; a last group may be smaller. None:
    /// each micro-batch is one group, or with a [`BatchSync`] a part of one.
    pub fn set(&self, samples: Option<usize>) {
        let samples = samples.and_then(|samples| i64::try_from(samples).ok());
        self.0.store(samples.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn samples(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|samples| *samples > 0)
    }
}
