//! Plans that cannot be made.

use dtrain_common::batch::{BatchError, Partition};
use thiserror::Error;

/// A plan that cannot be made.
#[derive(Debug, Error)]
pub enum PlanError {
    #[error("train.effective_batch: {0}")]
    Batch(#[from] BatchError),
    #[error(
        "the training set has {samples} samples, fewer than train.effective_batch = {effective_batch}, and \
         train.last_batch = \"drop\" leaves no step; lower the batch or keep the last one"
    )]
    NoSteps { samples: u64, effective_batch: usize },
    #[error(
        "optim.schedule.warmup is {warmup} steps, but the schedule runs over {total} only; shorten it or train for longer"
    )]
    Warmup { warmup: u64, total: u64 },
    #[error(
        "schedule = \"continue\" cannot count epochs here: optim.schedule moves by epochs, and an epoch has {here} steps in this \
         stage and {there} in another; give the times of optim.schedule in steps and set optim.schedule.per = \"step\", or give \
         the stages one effective_batch"
    )]
    Epochs { here: u64, there: u64 },
    #[error("stage {name:?}: {source}")]
    Stage { name: String, source: Box<PlanError> },
    #[error(
        "a micro-batch of {smallest} sample would occur ({partition}), but BatchNorm needs at least {least} samples where \
         the last feature map is one pixel: raise train.effective_batch or memory.micro_batch, use fewer ranks, larger \
         images{remedy}"
    )]
    MicroBatch { smallest: usize, least: usize, partition: Partition, remedy: &'static str },
    #[error(
        "with model.batchnorm = \"synced\", or a group that is spread over the ranks, all ranks take the same number of micro-steps, but \
         of {partition} some rank has fewer samples than another has micro-steps: set another train.effective_batch or a larger \
         memory.micro_batch, use fewer ranks{remedy}"
    )]
    Uneven { partition: Partition, remedy: &'static str },
}
