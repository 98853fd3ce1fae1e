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
    /// Whether that is the minimum of model.file, and not one of BatchNorm.
    pub(crate) is_program_min: bool,
    /// The largest size, if there is a limit.
    pub(crate) max_micro_batch: Option<usize>,
    pub(crate) batch_norms: BatchNorms,
    /// Another dependence on the micro-batch, as a text of the task.
    pub(crate) depends: Option<String>,
    /// Buffers whose values of several micro-batches cannot be joined: every step is one micro-batch of one rank.
    pub(crate) undivided: Vec<String>,
    /// Whether each sample has a partner in its step.
    pub(crate) has_partners: bool,
    /// The samples of a BatchNorm group, and the fewest that the model takes.
    pub(crate) group: Option<(usize, usize)>,
}

impl Needs {
    /// Checks whether a step with this partition can be trained. Errors end with `remedy`.
    pub(super) fn check(&self, partition: &Partition, remedy: &'static str) -> Result<(), PlanError> {
        let smallest = partition.smallest_micro_batch();
        let (least, partition) = (self.min_micro_batch, *partition);
        self.check_undivided(&partition)?;
        if self.has_partners && partition.effective_batch() == 1 {
            return Err(PlanError::NoPartner { remedy });
        }
        if smallest < least {
            let (cause, larger) = match self.is_program_min {
                true => ("model.file is valid only for more", ""),
                false => ("BatchNorm's last feature map is one pixel", " or larger images"),
            };
            return Err(PlanError::MicroBatch { smallest, least, partition, cause, larger, remedy });
        }
        let largest = partition.micro_batch();
        if let Some(most) = self.max_micro_batch.filter(|most| largest > *most) {
            return Err(PlanError::LargeMicroBatch { largest, most });
        }
        if let Some((group, least)) = self.group.filter(|_| self.batch_norms == BatchNorms::Grouped) {
            let samples = partition.effective_batch();
            let smallest = if samples.is_multiple_of(group) { group } else { samples % group };
            if (1..least).contains(&smallest) {
                return Err(PlanError::Group { smallest, least, remedy });
            }
        }
        let meets = self.batch_norms == BatchNorms::Synced || partition.is_spread();
        if meets && !partition.is_even() {
            return Err(PlanError::Uneven { partition, remedy });
        }
        Ok(())
    }

    /// Checks that a step with this partition has one part, if the model needs that.
    pub(crate) fn check_undivided(&self, partition: &Partition) -> Result<(), PlanError> {
        let is_divided = partition.ranks() > 1 || partition.grad_accum_steps() > 1;
        match self.undivided_buffers().filter(|_| is_divided) {
            Some(buffers) => Err(PlanError::Undivided { buffers, partition: *partition }),
            None => Ok(()),
        }
    }

    /// Returns the fewest samples of a micro-batch in a step of `samples`.
    pub(crate) fn least_micro_batch(&self, samples: usize) -> usize {
        if self.undivided.is_empty() { self.min_micro_batch } else { samples }
    }

    /// Returns the names of the buffers that need undivided steps, in words; None without such buffers.
    fn undivided_buffers(&self) -> Option<String> {
        /// More names than this make a message too long.
        const MOST: usize = 5;
        let names: Vec<String> = self.undivided.iter().take(MOST).map(|name| format!("`{name}`")).collect();
        let rest = match self.undivided.len().saturating_sub(MOST) {
            0 => String::new(),
            rest => format!(" and {rest} others"),
        };
        (!names.is_empty()).then(|| format!("{}{rest}", names.join(", ")))
    }

    /// Returns why a step is not divided, in words; None if it may be.
    pub(crate) fn undivided_reason(&self) -> Option<String> {
        let buffers = self.undivided_buffers()?;
        Some(format!(
            "training writes {buffers}, so every step is one micro-batch of one rank: values of several micro-batches cannot \
             be joined, unless model.state says how"
        ))
    }

    /// Returns a sentence for each dependence of a step's result on its partition.
    pub(super) fn warnings(&self, step: &Partition) -> Vec<String> {
        let (samples, micro_batch) = (step.effective_batch(), step.micro_batch());
        if micro_batch >= samples {
            return self.undivided_reason().into_iter().collect();
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
        "a micro-batch of {smallest} is too small ({partition}): the model needs at least {least} samples, since {cause}; raise \
         train.effective_batch or memory.micro_batch, use fewer ranks{larger}{remedy}"
    )]
    MicroBatch {
        smallest: usize,
        least: usize,
        partition: Partition,
        cause: &'static str,
        larger: &'static str,
        remedy: &'static str,
    },
    #[error(
        "a micro-batch of {largest} is too large: model.file is valid for at most {most} samples; set memory.micro_batch = {most}, or \
         import the model again"
    )]
    LargeMicroBatch { largest: usize, most: usize },
    #[error(
        "training writes {buffers}, and the values of several micro-batches cannot be joined: {partition} is not possible; say \
         in model.state how to join them, or train on one rank with memory.micro_batch = {}",
        .partition.effective_batch()
    )]
    Undivided { buffers: String, partition: Partition },
    #[error(
        "a step of one sample has no partner for it, as data.pairs and data.mix need; change train.effective_batch{remedy}"
    )]
    NoPartner { remedy: &'static str },
    #[error(
        "a BatchNorm group of {smallest} is too small: the model needs at least {least} samples, since BatchNorm's last feature map \
         is one pixel; change model.batchnorm or train.effective_batch{remedy}"
    )]
    Group { smallest: usize, least: usize, remedy: &'static str },
    #[error(
        "the ranks need equally many micro-steps with model.batchnorm = \"synced\" or a group over several ranks, but with \
         {partition} a rank has fewer samples than another has micro-steps; change train.effective_batch, raise \
         memory.micro_batch, use fewer ranks{remedy}"
    )]
    Uneven { partition: Partition, remedy: &'static str },
}
