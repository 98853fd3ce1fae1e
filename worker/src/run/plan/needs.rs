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
        let normalised = match (self.batch_norms, ranks > 1, accumulated) {
            (BatchNorms::None | BatchNorms::Grouped, ..) | (BatchNorms::Synced, _, false) => None,
            (BatchNorms::Local, true, false) => Some(format!(
                "BatchNorm normalises over each micro-batch, here of {micro_batch} of the step's {samples} samples; set \
                 model.batchnorm = \"synced\" to normalise over all of them"
            )),
            (BatchNorms::Local, true, true) => Some(format!(
                "BatchNorm normalises over each micro-batch, here of {micro_batch} of the step's {samples} samples; \
                 model.batchnorm = \"synced\" takes those of all ranks together, but the micro-batches of a rank still \
                 normalise alone unless memory.micro_batch is {share}"
            )),
            (BatchNorms::Local, false, _) => Some(format!(
                "BatchNorm normalises over each micro-batch, here of {micro_batch} of the step's {samples} samples; set \
                 memory.micro_batch = {share} if memory allows, since the micro-batches of a rank normalise alone"
            )),
            (BatchNorms::Synced, _, true) => Some(format!(
                "BatchNorm normalises over one micro-batch of every rank, here at most {} of the step's {samples} samples; set \
                 memory.micro_batch = {share} if memory allows, since the micro-batches of a rank still normalise alone",
                joint_samples(step)
            )),
        };
        // With groups of this size, the results of the recipe stay as they were.
        let groups = format!(
            "model.batchnorm = \"group:{micro_batch}\" keeps groups of that size, however a step is cut up"
        );
        let normalised = normalised.map(|words| format!("{words}; {groups}"));
        let same = "the same effective batch gives another result where it is cut up in another way";
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
