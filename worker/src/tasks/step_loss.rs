//! Losses over all samples of a step, such as contrastive ones.

use tch::{Kind, Tensor};

use super::{Batch, Loss, Mode, TaskError};

/// A value that a loss over a step takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepValue {
    /// Float, or Int64 for a value without derivative.
    pub kind: Kind,
    /// The shape of one sample's value; or of the only value, if `is_of_sample` is false.
    pub shape: Vec<i64>,
    /// Whether each sample has a value. If not, it depends on the parameters alone, such as a temperature.
    pub is_of_sample: bool,
}

/// A loss that needs values of all samples of a step, however the step is cut. The engine calls [`StepLoss::forward`] for
/// every micro-batch, gathers the values of all ranks, calls [`StepLoss::mean`] once on every rank, and goes backward from
/// its derivative by the values.
///
/// If a rank has several micro-batches, they run forward twice, with the same random numbers. So the first pass must leave
/// nothing behind but changes of registered buffers, which the engine takes back.
pub trait StepLoss {
    /// Returns what [`StepLoss::mean`] takes; always the same.
    fn values(&self) -> &[StepValue];

    /// Computes a micro-batch in place of [`Task::loss`](super::Task::loss): the loss of each sample alone, which may be
    /// 0, and the values, N x the shape, of any floating dtype if a Float one is declared.
    ///
    /// # Errors
    /// As [`Task::loss`](super::Task::loss).
    fn forward(&self, batch: &Batch, mode: Mode) -> Result<(Loss, Vec<Tensor>), TaskError>;

    /// Computes the mean loss over the samples of a step from all their values, in the order of [`StepLoss::values`]. The
    /// whole loss is this and the mean of the samples' own losses. Samples of weight 0 must add nothing. It must not read
    /// values of tensors.
    ///
    /// # Errors
    /// If memory runs out.
    fn mean(&self, values: &[Tensor], weights: &Tensor) -> Result<Tensor, TaskError>;
}
