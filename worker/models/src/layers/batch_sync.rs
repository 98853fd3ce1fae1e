//! Which samples a batch normalisation takes together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tch::Tensor;

use super::super::error::ModelError;

/// The participants whose micro-batches are normalised together.
///
/// Every participant builds the same model and calls `forward` equally often, in training also with an empty micro-batch
/// (N = 0) where it has no samples left, and runs the backward pass of each: the calls of [`BatchSync::all_reduce`], and
/// the sums of gradients in the backward pass, meet in this order.
pub trait BatchSync: fmt::Debug + Send + Sync {
    /// The sum of `x` (any shape, float) over all participants, in the same bits on each of them. Differentiable: the
    /// gradient of `x` is the sum of the participants' gradients of the result, as each participant's loss is a part of
    /// one sum.
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError>;

    /// How many participants there are, this one included.
    fn participants(&self) -> usize;
}

/// The groups of samples that a model's batch normalisations normalise apart in training. A clone of it speaks of the same model.
#[derive(Debug, Clone, Default)]
pub struct BatchGroups(Arc<AtomicI64>);

impl BatchGroups {
    /// The next micro-batches consist of groups of so many samples, the last of which may be smaller; None: each is one group, or with a
    /// [`BatchSync`] a part of one.
    pub fn set(&self, samples: Option<usize>) {
        let samples = samples.and_then(|samples| i64::try_from(samples).ok());
        self.0.store(samples.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn samples(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|samples| *samples > 0)
    }
}
