//! A stage of a run: its steps, their partition, the learning rates, and the phases between unfreezings.

use std::ops::Range;

use dtrain_common::batch::Partition;
use dtrain_common::recipe::{AtStageStart, LastBatch, Per, Recipe, Recompute, ScheduleName, Span};
use dtrain_common::schedule::Schedule;

use super::{Needs, PlanError};

/// A stage of a run. Without stages in the recipe, one stage without a name is the whole run.
#[derive(Debug, Clone)]
pub(crate) struct StagePlan {
    pub(crate) name: Option<String>,
    /// Steps, counted from 0 over the whole run; at least one.
    pub(crate) steps: Range<u64>,
    /// First epoch, counted from 0 over the whole run. Every stage begins a new epoch.
    pub(crate) first_epoch: u64,
    pub(crate) steps_per_epoch: u64,
    /// Length as in the recipe.
    pub(crate) length: Span,
    /// The partition of a full step.
    pub(crate) partition: Partition,
    /// Number of segments, from the first, that backward recomputes; larger numbers mean all.
    pub(crate) recompute: usize,
    /// Phases in order; at least one.
    pub(crate) phases: Vec<PhasePlan>,
    /// Steps between checkpoints with an evaluation; None: only at the stage's end, or also by time.
    pub(crate) checkpoint_every: Option<u64>,
    /// The learning rates, over the steps of the stage or of the whole run.
    pub(crate) schedule: Schedule,
    /// The step of the run at which the schedule begins.
    pub(crate) schedule_begins: u64,
}

/// A part of a stage that trains the same parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PhasePlan {
    /// Steps, counted from 0 over the whole run; at least one.
    pub(crate) steps: Range<u64>,
    /// How many of the stage's `unfreeze` entries apply, from the first.
    pub(crate) unfrozen: usize,
}

/// The length of a stage, before the length of the run is known.
pub(super) struct Length {
    pub(super) steps_per_epoch: u64,
    pub(super) steps: u64,
}

impl Length {
    /// Returns the length of a stage, whose recipe is `alone`.
    pub(super) fn of(alone: &Recipe, train_samples: u64) -> Result<Self, PlanError> {
        let steps_per_epoch = alone.train.steps_per_epoch(train_samples);
        if steps_per_epoch == 0 {
            let effective_batch = alone.train.effective_batch;
            return Err(PlanError::NoSteps { samples: train_samples, effective_batch });
        }
        let steps = alone.train.total_steps(steps_per_epoch);
        Ok(Self { steps_per_epoch, steps })
    }

    fn epochs(&self) -> u64 {
        self.steps.div_ceil(self.steps_per_epoch)
    }
}

pub(super) fn total(lengths: &[Length]) -> u64 {
    lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(length.steps))
}

impl StagePlan {
    pub(super) fn new(
        recipe: &Recipe,
        number: usize,
        ranks: usize,
        lengths: &[Length],
        max_micro_batch: Option<usize>,
    ) -> Result<Self, PlanError> {
        let alone = recipe.of_stage(number);
        let (before, own) = (&lengths[..number], &lengths[number]);
        let first = total(before);
        let steps = first..first.saturating_add(own.steps);
        let stage = recipe.stage.get(number);
        let (over, schedule_begins) = match stage.map(|stage| stage.schedule) {
            Some(AtStageStart::Continue) => (lengths, 0),
            Some(AtStageStart::Restart) | None => (std::slice::from_ref(own), first),
        };
        let length = match stage.and_then(|stage| stage.steps) {
            Some(steps) => Span::Steps(steps),
            None => Span::Epochs(alone.train.epochs.unwrap_or(own.epochs()) as f64),
        };
        let every = alone.checkpoint.every.span();
        Ok(Self {
            name: stage.map(|stage| stage.name.clone()),
            first_epoch: before.iter().map(Length::epochs).sum(),
            steps_per_epoch: own.steps_per_epoch,
            length,
            partition: alone.partition(ranks, alone.memory.micro_batch.value().or(max_micro_batch))?,
            recompute: if alone.memory.recompute == Recompute::On { usize::MAX } else { 0 },
            phases: phases(recipe, number, &steps),
            checkpoint_every: every.map(|span| span.steps(own.steps_per_epoch).max(1)),
            schedule: schedule(&alone, own, over)?,
            schedule_begins,
            steps,
        })
    }

    /// Checks the model's requirements for every step. Returns warnings.
    pub(super) fn check(&self, needs: &Needs, train_samples: u64) -> Result<Vec<String>, PlanError> {
        let step = |number| self.partition.for_samples(self.step_samples(number, train_samples));
        let first = step(0);
        needs.check(&first, "")?;
        if self.steps.end - self.steps.start >= self.steps_per_epoch {
            needs.check(&step(self.steps_per_epoch - 1), ", or set train.last_batch = \"drop\"")?;
        }
        let mut warnings = needs.warnings(&first);
        let batch = self.partition.effective_batch() as u64;
        if batch > train_samples {
            warnings.push(format!(
                "train.effective_batch = {batch} is more than the {train_samples} training samples: every step takes all \
                 {train_samples}, with the learning rate of a batch of {batch}; set train.effective_batch = {train_samples}"
            ));
        }
        Ok(warnings)
    }

    /// Returns the number of samples of a step, numbered within its epoch.
    pub(super) fn step_samples(&self, step_in_epoch: u64, train_samples: u64) -> usize {
        let batch = self.partition.effective_batch() as u64;
        let left = train_samples.saturating_sub(step_in_epoch * batch);
        left.min(batch) as usize
    }

    pub(super) fn samples(&self, steps: u64, train_samples: u64, last_batch: LastBatch) -> u64 {
        let batch = self.partition.effective_batch() as u64;
        let per_epoch = match last_batch {
            LastBatch::Keep => train_samples,
            LastBatch::Drop => self.steps_per_epoch * batch,
        };
        let (epochs, steps) = (steps / self.steps_per_epoch, steps % self.steps_per_epoch);
        epochs * per_epoch + (steps * batch).min(per_epoch)
    }

    pub(super) fn phase(&self, step: u64) -> usize {
        let phase = self.phases.iter().position(|phase| step < phase.steps.end);
        phase.unwrap_or(self.phases.len() - 1)
    }
}

/// Returns the phases of a stage. Entries of `unfreeze` for the same step apply together.
fn phases(recipe: &Recipe, number: usize, steps: &Range<u64>) -> Vec<PhasePlan> {
    let mut phases = vec![PhasePlan { steps: steps.clone(), unfrozen: 0 }];
    let entries = recipe.stage.get(number).map_or(&[][..], |stage| &stage.unfreeze);
    for (index, entry) in entries.iter().enumerate() {
        let begins = steps.start + entry.after(steps.end - steps.start);
        let phase = PhasePlan { steps: begins..steps.end, unfrozen: index + 1 };
        phases.pop_if(|last| last.steps.start == begins);
        if let Some(last) = phases.last_mut() {
            last.steps.end = begins;
        }
        phases.push(phase);
    }
    phases
}

/// Returns the schedule of `alone` over the stages in `over`, which include `own`.
fn schedule(alone: &Recipe, own: &Length, over: &[Length]) -> Result<Schedule, PlanError> {
    let stated = &alone.optim.schedule;
    let differs = |other: &&Length| other.steps_per_epoch != own.steps_per_epoch;
    let other = over.iter().find(differs);
    let in_epochs = |span: &Span| matches!(span, Span::Epochs(_));
    let counts_epochs = (stated.per == Per::Epoch && stated.name != ScheduleName::Constant)
        || stated.every.as_ref().is_some_and(in_epochs)
        || stated.milestones.iter().flatten().any(in_epochs);
    if let Some(other) = other.filter(|_| counts_epochs) {
        return Err(PlanError::Epochs { here: own.steps_per_epoch, there: other.steps_per_epoch });
    }
    let total = total(over);
    let warmup = stated.warmup.map_or(0, |span| steps_of(span, over));
    if warmup > total {
        return Err(PlanError::Warmup { warmup, total });
    }
    Ok(Schedule::of(alone, warmup, own.steps_per_epoch, total))
}

/// Returns the steps of a span from the first of these stages; beyond them, epochs are the last stage's.
fn steps_of(span: Span, over: &[Length]) -> u64 {
    let Span::Epochs(mut epochs) = span else { return span.steps(1) };
    let Some((last, earlier)) = over.split_last() else { return 0 };
    let mut steps = 0;
    for stage in earlier {
        let own = stage.steps as f64 / stage.steps_per_epoch as f64;
        if epochs <= own {
            return steps + Span::Epochs(epochs).steps(stage.steps_per_epoch);
        }
        epochs -= own;
        steps += stage.steps;
    }
    steps + Span::Epochs(epochs).steps(last.steps_per_epoch)
}
