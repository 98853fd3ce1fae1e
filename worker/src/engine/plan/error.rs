//! Plans that cannot be made.

use dtrain_common::batch::{BatchError, Partition};
use thiserror::Error;

/// A plan that cannot be made.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The effective batch cannot be cut up.
    #[error("train.effective_batch: {0}")]
    Batch(#[from] BatchError),
    /// An epoch has no step.
    #[error(
        "the training set has {samples} samples, fewer than train.effective_batch = {effective_batch}, and \
         train.last_batch = \"drop\" leaves no step; lower the batch or keep the last one"
    )]
    NoSteps {
        /// Samples of the training set.
        samples: u64,
        /// The recipe's batch.
        effective_batch: usize,
    },
    /// The warm-up is longer than the run.
    #[error(
        "optim.schedule.warmup is {warmup} steps, but the schedule runs over {total} only; shorten it or train for longer"
    )]
    Warmup {
        /// Steps of warm-up.
        warmup: u64,
        /// Steps of the run, or of the stage whose schedule it is.
        total: u64,
    },
    /// One schedule over stages whose epochs have different numbers of steps, and that counts in epochs.
    #[error(
        "schedule = \"continue\" cannot count epochs here: optim.schedule moves by epochs, and an epoch has {here} steps in this \
         stage and {there} in another; give the times of optim.schedule in steps and set optim.schedule.per = \"step\", or give \
         the stages one effective_batch"
    )]
    Epochs {
        /// Steps of an epoch of this stage.
        here: u64,
        /// Steps of an epoch of another stage.
        there: u64,
    },
    /// In one stage.
    #[error("stage {name:?}: {source}")]
    Stage {
        /// The stage.
        name: String,
        /// The cause.
        source: Box<PlanError>,
    },
    /// A micro-batch is too small for the model.
    #[error(
        "a micro-batch of {smallest} sample would occur ({partition}), but BatchNorm needs at least {least} samples where \
         the last feature map is one pixel: raise train.effective_batch or memory.micro_batch, use fewer ranks, larger \
         images{remedy}"
    )]
    MicroBatch {
        /// The smallest micro-batch of the plan.
        smallest: usize,
        /// The model's least.
        least: usize,
        /// Where it occurs.
        partition: Partition,
        /// A further remedy where it is the short last step.
        remedy: &'static str,
    },
    /// Forward passes that meet, and a rank that would take fewer of them than the others.
    #[error(
        "with model.batchnorm = \"synced\", or a group that is spread over the ranks, all ranks take the same number of micro-steps, but \
         of {partition} some rank has fewer samples than another has micro-steps: set another train.effective_batch or a larger \
         memory.micro_batch, use fewer ranks{remedy}"
    )]
    Uneven {
        /// Where it occurs.
        partition: Partition,
        /// A further remedy where it is the short last step.
        remedy: &'static str,
    },
}
