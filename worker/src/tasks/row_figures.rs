//! Figures of evaluations alone: of sums, or of all test samples at once, such as an area under a curve.

use dtrain_parts::figures::OfClasses;
use tch::Tensor;

use super::figures::Figures;
use super::{Batch, Loss, TaskError};

pub use dtrain_parts::figures::rows::ByRows;

/// Figures that training steps do not compute. An evaluation calls [`RowFigures::forward`] for every batch. It adds sums over the ranks, and
/// gathers rows of numbers of every test sample. Of more than 100 million samples it adds sums of the rows in place of keeping them.
pub trait RowFigures {
    /// Returns the figures that are made of rows, with their names; always the same.
    fn figures(&self) -> Vec<(&str, &dyn ByRows)>;

    /// Computes a batch in place of [`Task::loss`](super::Task::loss) and [`StepLoss::forward`](super::StepLoss::forward).
    ///
    /// # Errors
    /// As [`Task::loss`](super::Task::loss).
    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError>;

    /// Returns the figures that are made of sums; None without any.
    #[doc(hidden)]
    fn by_sums(&self) -> Option<BySums<'_>> {
        None
    }
}

/// Figures that are made of sums, which a batch's loss has after those of [`Facts::sums`](super::Facts::sums).
#[doc(hidden)]
pub struct BySums<'a>(pub(super) &'a Figures);

impl BySums<'_> {
    /// Returns the number of sums.
    pub(crate) fn count(&self) -> usize {
        self.0.sums()
    }

    /// Returns the figures, by their sums.
    pub(crate) fn figures(&self, sums: &[f64]) -> Vec<(String, f64)> {
        self.0.figures(sums)
    }

    /// Returns the values by class of those that have any.
    pub(crate) fn by_class(&self, sums: &[f64]) -> Vec<OfClasses> {
        self.0.by_class(sums)
    }
}

/// The results of a batch in an evaluation.
#[derive(Debug)]
pub struct Passed {
    /// The loss of the samples alone. The sums of figures that training steps do not compute follow the others.
    pub loss: Loss,
    /// The values of [`StepLoss::values`](super::StepLoss::values).
    pub values: Vec<Tensor>,
    /// For each of [`RowFigures::figures`], N x its columns: float32 and detached.
    pub rows: Vec<Tensor>,
}
