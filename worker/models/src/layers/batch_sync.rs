//! What batch normalisation needs of the other participants of a step, and the statistics of their joint batch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tch::{Kind, Tensor};

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

/// A part of a joint batch, with the statistics per channel of the whole.
pub(super) struct JointBatch {
    /// Values per channel, over all participants: a vector of length 1 without gradient.
    pub(super) count: Tensor,
    /// Length C, differentiable.
    pub(super) mean: Tensor,
    /// Length C, differentiable: the mean squared deviation, not corrected for the sample.
    pub(super) variance: Tensor,
    /// This participant's values less the joint mean, N x C x H x W, differentiable.
    pub(super) centred: Tensor,
}

impl JointBatch {
    /// From this participant's part, N x C x H x W float32 or float64, N possibly 0.
    ///
    /// Two sums over the participants: the squares are of deviations from the joint mean, where a sum of squares less the
    /// square of the sum would lose the digits that the two have in common. Of the tensors of the size of `x` only
    /// `centred` is kept for the backward pass.
    pub(super) fn of(x: &Tensor, sync: &dyn BatchSync) -> Result<Self, ModelError> {
        let (samples, channels, height, width) = x.size4()?;
        let dims: &[i64] = &[0, 2, 3];
        let own = (samples * height * width) as f64;
        let own = Tensor::f_full([1], own, (x.f_kind()?, x.device()))?;
        // Of an empty part these are zeros, which lead back to `x`: so its backward pass meets the others' too.
        let sum = x.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let sums = sync.all_reduce(&Tensor::f_cat(&[sum, own], 0)?)?;
        let count = sums.f_narrow(0, channels, 1)?.f_detach()?;
        let mean = sums.f_narrow(0, 0, channels)?.f_div(&count)?;
        let centred = x.f_sub(&mean.f_view([1, -1, 1, 1])?)?;
        let squares = centred.f_square()?.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let variance = sync.all_reduce(&squares)?.f_div(&count)?;
        Ok(Self { count, mean, variance, centred })
    }
}
