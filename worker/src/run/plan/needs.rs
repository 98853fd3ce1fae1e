//! The requirements of a model on the plan, and the effects of a partition on the result.

use dtrain_common::batch::{BatchError, Partition};
use thiserror::Error;

/// The samples over which batch normalisation computes its statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchNorms {
    /// The model has no batch normalisation.
    None,
    Local,
    /// The micro-batches of all ranks together: every rank takes the same number of micro-steps.
    Synced,
    /// Groups of a fixed size. Only the split over all ranks may divide a group.
    Grouped,
    /// As `Local`, in a TorchScript module, where `model.batchnorm` has no effect.
    InModule,
}

/// The requirements of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The smallest size of a training micro-batch.
    pub(crate) min_micro_batch: usize,
    pub(crate) batch_norms: BatchNorms,
    /// Another dependence on the micro-batch, as a text of the task.
    pub(crate) depends: Option<String>,
}

impl Needs {
    /// Checks whether a step with this partition can be trained. Errors end with `remedy`.
    pub(super) fn check(&self, partition: &Partition, remedy: &'static str) -> Result<(), PlanError> {
        let smallest = partition.smallest_micro_batch();
        let (least, partition) = (self.min_micro_batch, *partition);
        if smallest < least {
            return Err(PlanError::MicroBatch { smallest, least, partition, remedy });
        }
        let meets = self.batch_norms == BatchNorms::Synced || partition.is_spread();
        if meets && !partition.is_even() {
            return Err(PlanError::Uneven { partition, remedy });
        }
        Ok(())
    }

    /// Returns a sentence for each dependence of a step's result on its partition.
    pub(super) fn warnings(&self, step: &Partition) -> Vec<String> {
        let (samples, micro_batch) = (step.effective_batch(), step.micro_batch());
        if micro_batch >= samples {
            return Vec::new();
        }
        let (ranks, accumulated) = (step.ranks(), step.grad_accum_steps() > 1);
        let share = step.samples_of(0);
        let local = format!(
            "BatchNorm normalises over each micro-batch, here of {micro_batch} of the step's {samples} samples"
        );
        // With groups of this size, the results of the recipe stay as they were.
        let groups = format!(
            "or set model.batchnorm = \"group:{micro_batch}\" for a result that does not depend on micro-batch and ranks"
        );
        let normalised = match (self.batch_norms, ranks > 1, accumulated) {
            (BatchNorms::None | BatchNorms::Grouped, ..) | (BatchNorms::Synced, _, false) => None,
            (BatchNorms::Local, true, false) => Some(format!(
                "{local}; set model.batchnorm = \"synced\" to normalise over all of them, {groups}"
            )),
            (BatchNorms::Local, true, true) => Some(format!(
                "{local}; set model.batchnorm = \"synced\" and, if memory allows, memory.micro_batch = {share}, to normalise \
                 over all of them, {groups}"
            )),
            (BatchNorms::Local, false, _) => {
                Some(format!("{local}; if memory allows, set memory.micro_batch = {share}, {groups}"))
            }
            (BatchNorms::Synced, _, true) => Some(format!(
                "BatchNorm normalises over one micro-batch of every rank, here at most {} of the step's {samples} samples; if \
                 memory allows, set memory.micro_batch = {share}, {groups}",
                joint_samples(step)
            )),
            (BatchNorms::InModule, true, _) => Some(format!(
                "{local}; train on one rank with memory.micro_batch = {samples}, or replace the module's BatchNorm by GroupNorm"
            )),
            (BatchNorms::InModule, false, _) => Some(format!(
                "{local}; if memory allows, set memory.micro_batch = {samples}, or replace the module's BatchNorm by GroupNorm"
            )),
        };
        let same = "other micro-batches give another result for the same effective batch";
        let other = self.depends.as_ref().map(|words| format!("{words}; {same}"));
        let sentence = |words| format!("the result depends on the micro-batch: {words}");
        normalised.into_iter().chain(other).map(sentence).collect()
    }
}

/// Returns the samples of the first micro-step of all ranks, which is the largest.
fn joint_samples(step: &Partition) -> usize {
    let first = |rank| step.micro_ranges(rank).first().map_or(0, |range| range.len());
    (0..step.ranks()).map(first).sum()
}

/// A recipe for which no plan exists.
#[derive(Debug, Error)]
pub enum PlanError {
    #[error("train.effective_batch: {0}")]
    Batch(#[from] BatchError),
    #[error(
        "the training set has {samples} samples, fewer than train.effective_batch = {effective_batch}, and \
         train.last_batch = \"drop\" leaves no step; lower train.effective_batch, or set train.last_batch = \"keep\""
    )]
    NoSteps { samples: u64, effective_batch: usize },
    #[error(
        "optim.schedule.warmup is {warmup} steps, longer than the schedule of {total}; shorten the warmup or train longer"
    )]
    Warmup { warmup: u64, total: u64 },
    #[error(
        "schedule = \"continue\" cannot count epochs here: an epoch has {here} steps in this stage and {there} in another; state \
         optim.schedule in steps with optim.schedule.per = \"step\", or use one effective_batch in all stages"
    )]
    Epochs { here: u64, there: u64 },
    #[error("stage {name:?}: {source}")]
    Stage { name: String, source: Box<PlanError> },
    #[error(
        "a micro-batch of {smallest} is too small ({partition}): the model needs at least {least} samples, since BatchNorm's last \
         feature map is one pixel; raise train.effective_batch or memory.micro_batch, use fewer ranks or larger \
         images{remedy}"
    )]
    MicroBatch { smallest: usize, least: usize, partition: Partition, remedy: &'static str },
    #[error(
        "the ranks need equally many micro-steps with model.batchnorm = \"synced\" or a group over several ranks, but with \
         {partition} a rank has fewer samples than another has micro-steps; change train.effective_batch, raise \
         memory.micro_batch, use fewer ranks{remedy}"
    )]
    Uneven { partition: Partition, remedy: &'static str },
}
