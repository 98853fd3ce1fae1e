//! The memory plan: how a step is cut up so that it fits, chosen from predictions. Pure arithmetic; what predicts is the
//! worker, which runs the step on tensors without storage or measures it.

//!
//! [`report`] is what `dtrain plan` prints: [`Solver`] chooses a cut for every GPU, [`gpus`] knows their memory. `dtrain profile`
//! prints [`Profile`]. [`Job`] is how the launcher tells the worker what is asked for.

mod advice;
mod budget;
mod cost;
#[cfg(test)]
mod fixtures;
pub mod gpus;
mod job;
mod profile;
mod profile_table;
mod report;
mod search;
mod solve;
mod table;

use serde::{Deserialize, Serialize};

use crate::batch::BatchError;
use crate::memory::Owners;
use crate::recipe::Amp;

pub use advice::Advice;
pub use budget::{CONTEXT_BYTES, FRAGMENTATION_PERCENT, usable};
pub use cost::{MICRO_STEP_SAMPLES, Share, relative_time};
pub use job::{EvalJob, EvalWeights, Job, PlanJob, ProfileJob};
pub use profile::{MeasuredStage, Optimal, Profile, ProfiledStage, Tried, TriedOutcome};
pub use report::{Margin, Outcome, Plan, Row, report};
pub use search::largest;
pub use solve::{Asked, Choice, Fit, NoFit, Solver};

/// How a step is cut up: what the machine may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// Ranks.
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

/// How a prediction came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The step was run on tensors without storage.
    Symbolic,
    /// Steps were run at two micro-batches, and the rest follows by a straight line.
    Measured,
}

/// What a cut is predicted to take of a rank with the largest share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The cut.
    pub cut: Cut,
    /// How it came about.
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
pub struct Subject {
    /// The model's name.
    pub model: String,
    /// Parameters, and those that are trained (of this stage).
    pub parameters: u64,
    /// Trained parameters.
    pub trained: u64,
    /// Samples of a step.
    pub effective_batch: usize,
    /// The learning rate after scaling.
    pub learning_rate: f64,
    /// The fewest samples of a micro-batch.
    pub min_micro_batch: usize,
    /// Segments of the model that can be computed again.
    pub segments: usize,
    /// What makes the result depend on the micro-batch, in words.
    pub depends: Vec<String>,
}

/// Predicts what cuts take. `overrides` are recipe settings as `key=value` that go over the recipe's own, for advice such as
/// "without the moving average".
pub trait Predictor {
    /// Why it cannot.
    type Error;

    /// What is planned for.
    ///
    /// # Errors
    /// Where the recipe with these overrides makes no model.
    fn subject(&mut self, overrides: &[String]) -> Result<Subject, Self::Error>;

    /// What this cut takes.
    ///
    /// # Errors
    /// As [`Predictor::subject`].
    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, Self::Error>;
}

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError<E> {
    /// The effective batch cannot be cut up among the ranks.
    #[error("train.effective_batch: {0}")]
    Batch(#[from] BatchError),
    /// The answer could not be written as JSON.
    #[error("the plan has no form in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The predictor's.
    #[error("{0}")]
    Predict(E),
}
