//! Figures of an evaluation that need all test samples at once, such as an area under a curve.

use tch::Tensor;

use super::{Batch, Loss, TaskError};

pub use dtrain_parts::figures::rows::ByRows;

/// Figures of a row of numbers of every test sample. An evaluation calls [`RowFigures::forward`] for every batch, and gathers
/// the rows of all ranks. Of more than 100 million samples it adds sums of the rows in place of keeping them.
pub trait RowFigures {
    /// Returns the figures with their names; always the same.
    fn figures(&self) -> Vec<(&str, &dyn ByRows)>;

    /// Computes a batch in place of [`Task::loss`](super::Task::loss) and [`StepLoss::forward`](super::StepLoss::forward).
    ///
    /// # Errors
    /// As [`Task::loss`](super::Task::loss).
    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError>;
}

/// The results of a batch in an evaluation.
#[derive(Debug)]
pub struct Passed {
    /// The loss of the samples alone.
    pub loss: Loss,
    /// The values of [`StepLoss::values`](super::StepLoss::values).
    pub values: Vec<Tensor>,
    /// For each of [`RowFigures::figures`], N x its columns: float32 and detached.
    pub rows: Vec<Tensor>,
}
