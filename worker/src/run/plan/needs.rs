//! What a model asks of the plan, and what becomes of a result where a step is cut up.

use dtrain_common::batch::{BatchError, Partition};
use thiserror::Error;

/// Over which samples a model's batch normalisations take their statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchNorms {
    /// The model has none.
    None,
    Local,
    /// Over the micro-batches of all ranks, whose forward passes meet: every rank takes as many micro-steps.
    Synced,
    /// Over groups of a fixed size, which no cut divides but among all ranks at once.
    Grouped,
}

/// What the plan must know of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The fewest samples of a training micro-batch.
    pub(crate) min_micro_batch: usize,
    pub(crate) batch_norms: BatchNorms,
    /// What else depends on the micro-batch, in the task's words.
    pub(crate) depends: Option<String>,
}

impl Needs {
    /// Whether a step that is cut up like this can be trained; `remedy` goes behind what helps with any step.
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

    /// A sentence for everything that makes the result of a step depend on how it is cut up; none where nothing does.
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
                joint(step)
            )),
        };
        // Groups of that size go on with what the recipe has meant so far.
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

/// The samples of the first micro-step of all ranks, which is their largest.
fn joint(step: &Partition) -> usize {
    let first = |rank| step.micro_ranges(rank).first().map_or(0, |range| range.len());
    (0..step.ranks()).map(first).sum()
}

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
