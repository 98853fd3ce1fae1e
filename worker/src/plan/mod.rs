//! The memory plan: how a step is cut up so that it fits, chosen from predictions. Pure arithmetic: a [`Predictor`] runs the
//! step on tensors without storage, or measures it.
//!
//! [`report`] is what `dtrain plan` prints; [`Solver`] chooses a cut for every GPU. `dtrain profile` prints [`Profile`].

mod advice;
mod cost;
mod profile;
mod report;
mod search;
mod solve;
mod table;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::memory_report::Owners;
use dtrain_common::batch::{BatchError, Partition};
use dtrain_common::recipe::Amp;

pub(crate) use dtrain_common::job::{EvalJob, EvalWeights, Gpu, Job, PlanJob, ProfileJob, Way};
pub(crate) use profile::{Measured, MeasuredStage, Optimal, Profile, ProfiledStage, Tried, TriedOutcome};
pub(crate) use report::{FRAGMENTATION_PERCENT, Plan, report};
pub(crate) use search::largest;
pub(crate) use solve::{Asked, Choice, Solver};

/// How a step is cut up: what the machine may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub ranks: usize,
    /// The largest micro-batch.
    pub micro_batch: usize,
    /// The precision: never `Auto`.
    pub amp: Amp,
    /// How many segments of the model are computed again in backward, counted from its beginning.
    pub recompute: usize,
    /// Whether every rank keeps its own part of the optimizer's state only.
    pub shard_optimizer: bool,
}

/// What a cut is predicted to take of a rank with the largest share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prediction {
    pub cut: Cut,
    pub way: Way,
    /// The highest memory in bytes: the sum of `owners`.
    pub peak: u64,
    /// By owner at that moment.
    pub owners: Owners,
    /// Floating-point operations of matrix products and convolutions of a whole step on this rank, recomputation included; 0
    /// where they were not counted.
    pub flops: f64,
}

/// What does not depend on the cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) model: String,
    pub(crate) parameters: u64,
    /// Those that are trained, of this stage.
    pub(crate) trained: u64,
    /// Samples of a step.
    pub(crate) effective_batch: usize,
    /// After scaling.
    pub(crate) learning_rate: f64,
    /// The fewest samples of a micro-batch.
    pub(crate) min_micro_batch: usize,
    /// Samples that are normalised together, where that is fixed.
    pub(crate) group: Option<usize>,
    /// Segments of the model that can be computed again.
    pub(crate) segments: usize,
    /// What makes the result depend on the micro-batch, in words.
    pub(crate) depends: Vec<String>,
}

impl Subject {
    /// How a step is cut among `ranks` into micro-batches of at most `micro_batch` samples (`None`: a rank's whole share).
    pub(crate) fn partition(
        &self,
        ranks: usize,
        micro_batch: Option<usize>,
    ) -> Result<Partition, BatchError> {
        Partition::in_groups(self.effective_batch, ranks, micro_batch, self.group)
    }
}

/// Predicts what cuts take. `overrides` are recipe settings as `key=value` that go over the recipe's own, for advice such as
/// "without the moving average".
pub(crate) trait Predictor {
    /// Why it cannot, or the effective batch cannot be cut up among the ranks.
    type Error: From<BatchError>;

    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, Self::Error>;
}
