//! Figures of an evaluation that need a row of numbers of every test sample.

use dtrain_parts::figures::rows::{MOST, Share, name};
use tch::{TchError, Tensor};

use crate::collectives::{Ranks, ReduceOp};
use crate::run::error::Result;
use crate::tasks::{RowFigures, Task};

/// The rows of a rank's share of the test set, on the host, for each figure.
#[derive(Default)]
pub(super) struct ShareRows(Vec<Share>);

impl ShareRows {
    /// Allocates the rows of a set of `samples` samples.
    pub(super) fn new(task: &dyn Task, samples: usize) -> Result<Self, TchError> {
        let figures = task.row_figures().map_or(Vec::new(), RowFigures::figures);
        figures
            .into_iter()
            .map(|(_, figure)| Share::new(figure, samples, MOST))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Adds the rows of the samples from number `first` on.
    pub(super) fn add(&mut self, first: usize, rows: &[Tensor], of: &dyn RowFigures) -> Result<(), TchError> {
        let mut shares = self.0.iter_mut().zip(of.figures()).zip(rows);
        shares.try_for_each(|((share, (_, figure)), rows)| share.add(figure, first, rows))
    }

    /// Returns the figures of the test set. Each value is 0 on all ranks but one, so rows add up exactly. Every rank calls it.
    pub(super) fn figures(
        &self,
        task: &dyn Task,
        samples: usize,
        ranks: &Ranks,
    ) -> Result<Vec<(String, f64)>> {
        let Some(of) = task.row_figures() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for ((share, (_, figure)), name) in self.0.iter().zip(of.figures()).zip(names_of_rows(task, samples))
        {
            ranks.all_reduce(share.values(), ReduceOp::Sum)?.wait()?;
            found.push((name, share.figure(figure)?));
        }
        Ok(found)
    }
}

/// Returns the names of the figures of a task that are made of rows, for a set of `samples` samples.
fn names_of_rows(task: &dyn Task, samples: usize) -> Vec<String> {
    let figures = task.row_figures().map_or(Vec::new(), RowFigures::figures);
    figures.into_iter().map(|(label, _)| name(label, samples, MOST)).collect()
}

/// Returns the names of the figures of a task that only evaluations compute, for a set of `samples` samples.
pub(crate) fn names(task: &dyn Task, samples: usize) -> Vec<String> {
    let by_sums = task.row_figures().and_then(RowFigures::by_sums);
    let of_sums = by_sums.map_or(Vec::new(), |figures| figures.figures(&vec![0.0; figures.count()]));
    let of_sums = of_sums.into_iter().map(|(name, _)| name);
    of_sums.chain(names_of_rows(task, samples)).collect()
}
