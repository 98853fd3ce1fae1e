//! A stage of a run: its steps, their partition, the learning rates, and the phases between unfreezings.

use std::ops::Range;

use dtrain_common::batch::Partition;
use dtrain_recipe::{LastBatch, Recipe, Recompute, Span, Unfreeze};

use super::rates::Rates;
use super::timeline::Piece;
use super::views::Views;
use super::{Needs, PlanError};

/// A stage of a run. Without stages in the recipe, one stage without a name is the whole run.
#[derive(Debug, Clone)]
pub(crate) struct StagePlan {
    pub(crate) name: Option<String>,
    /// Steps, counted from 0 over the whole run; at least one.
    pub(crate) steps: Range<u64>,
    /// As of its last data.
    pub(crate) steps_per_epoch: u64,
    pub(crate) train_samples: u64,
    /// Length as in the recipe.
    pub(crate) length: Span,
    /// The partition of a full step.
    pub(crate) partition: Partition,
    /// Number of segments, from the first, that backward recomputes; larger numbers mean all.
    pub(crate) recompute: usize,
    /// Phases in order; at least one.
    pub(crate) phases: Vec<PhasePlan>,
    /// Training between checkpoints; None: only at the stage's end, or also by time.
    checkpoint_every: Option<Span>,
    /// Training between evaluations; None: only at the stage's end.
    evaluate_every: Option<Span>,
    /// Whether an evaluation may make its checkpoint the best or the last, so that each has one.
    evaluations_decide: bool,
    pub(crate) rates: Rates,
}

/// A part of a stage that trains the same parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PhasePlan {
    /// Steps, counted from 0 over the whole run; at least one.
    pub(crate) steps: Range<u64>,
    /// How many of the stage's `unfreeze` entries apply, from the first.
    pub(crate) unfrozen: usize,
}

impl StagePlan {
    pub(super) fn new(
        recipe: &Recipe,
        number: usize,
        ranks: usize,
        views: &Views,
        max_micro_batch: Option<usize>,
    ) -> Result<Self, PlanError> {
        let alone = recipe.of_stage(number);
        let timeline = &views.now.timeline;
        let (steps, last) = (timeline.steps(&(number..number + 1)), timeline.last_of(number));
        let stage = recipe.stage.get(number);
        let length = match stage.and_then(|stage| stage.steps) {
            Some(steps) => Span::Steps(steps),
            None => Span::Epochs(alone.train.epochs.unwrap_or(last.next_epoch() - last.first_epoch) as f64),
        };
        Ok(Self {
            name: stage.map(|stage| stage.name.clone()),
            steps_per_epoch: last.steps_per_epoch,
            train_samples: last.train_samples,
            length,
            partition: alone.partition(ranks, alone.memory.micro_batch.value().or(max_micro_batch))?,
            recompute: if alone.memory.recompute == Recompute::On { usize::MAX } else { 0 },
            phases: phases(stage.map_or(&[], |stage| &stage.unfreeze), number, &steps, views),
            checkpoint_every: alone.checkpoint.every.span(),
            evaluate_every: alone.evaluate.every.or(alone.checkpoint.every.span()),
            evaluations_decide: alone.checkpoint.best.is_some() || alone.train.stop_early.is_some(),
            rates: Rates::new(recipe, number, &alone, views)?,
            steps,
        })
    }

    /// Returns whether a checkpoint follows the step number `done` of `piece`, which `is_evaluated` or not.
    pub(super) fn is_checkpoint(&self, done: u64, piece: &Piece, is_evaluated: bool) -> bool {
        self.is_due(self.checkpoint_every, done, piece) || self.evaluations_decide && is_evaluated
    }

    /// Returns whether an evaluation follows the step number `done` of `piece`.
    pub(super) fn is_evaluation(&self, done: u64, piece: &Piece) -> bool {
        self.is_due(self.evaluate_every, done, piece)
    }

    fn is_due(&self, every: Option<Span>, done: u64, piece: &Piece) -> bool {
        let is_multiple = |every: Span| match every {
            Span::Steps(every) => (done - self.steps.start).is_multiple_of(every.max(1)),
            Span::Epochs(_) => {
                let every = every.steps(piece.steps_per_epoch).max(1);
                piece.epoch_steps(done).is_multiple_of(every)
            }
        };
        done == self.steps.end || every.is_some_and(is_multiple)
    }

    /// Checks the model's requirements for every step. Returns warnings.
    pub(super) fn check(&self, needs: &Needs) -> Result<Vec<String>, PlanError> {
        let step = |number| self.partition.for_samples(self.step_samples(number));
        let first = step(0);
        needs.check(&first, "")?;
        if self.steps.end - self.steps.start >= self.steps_per_epoch {
            needs.check(&step(self.steps_per_epoch - 1), ", or set train.last_batch = \"drop\"")?;
        }
        Ok(needs.warnings(&first))
    }

    /// Returns a warning about a step of more samples than there are.
    pub(super) fn warn_of_large_batch(&self) -> Option<String> {
        let (batch, samples) = (self.partition.effective_batch() as u64, self.train_samples);
        (batch > samples).then(|| {
            format!(
                "train.effective_batch = {batch} is more than the {samples} training samples: every step takes all {samples}, with \
                 the learning rate of a batch of {batch}; set train.effective_batch = {samples}"
            )
        })
    }

    /// Returns the number of samples of a step, numbered within its epoch.
    pub(super) fn step_samples(&self, step_in_epoch: u64) -> usize {
        let batch = self.partition.effective_batch() as u64;
        let left = self.train_samples.saturating_sub(step_in_epoch * batch);
        left.min(batch) as usize
    }

    /// Returns the samples of a piece's steps up to `end`.
    pub(super) fn samples(&self, piece: &Piece, end: u64, last_batch: LastBatch) -> u64 {
        let batch = self.partition.effective_batch() as u64;
        let per_epoch = match last_batch {
            LastBatch::Keep => piece.train_samples,
            LastBatch::Drop => piece.steps_per_epoch * batch,
        };
        let up_to = |step| {
            let steps = piece.epoch_steps(step);
            let (epochs, steps) = (steps / piece.steps_per_epoch, steps % piece.steps_per_epoch);
            epochs * per_epoch + (steps * batch).min(per_epoch)
        };
        up_to(end) - up_to(piece.steps.start)
    }

    pub(super) fn phase(&self, step: u64) -> usize {
        let phase = self.phases.iter().position(|phase| step < phase.steps.end);
        phase.unwrap_or(self.phases.len() - 1)
    }
}

/// Returns the phases of a stage. Entries of `unfreeze` for the same step apply together. A stage that less data ended has no
/// phase for the entries after that.
fn phases(entries: &[Unfreeze], number: usize, steps: &Range<u64>, views: &Views) -> Vec<PhasePlan> {
    let mut phases = vec![PhasePlan { steps: steps.clone(), unfrozen: 0 }];
    let parts: Vec<f64> = entries.iter().map(|entry| entry.at).collect();
    for (index, begins) in views.parts_reached(number, &parts).into_iter().enumerate() {
        let begins = begins.max(phases.last().map_or(0, |last| last.steps.start));
        if begins >= steps.end && begins > steps.start {
            break;
        }
        let phase = PhasePlan { steps: begins..steps.end, unfrozen: index + 1 };
        phases.pop_if(|last| last.steps.start == begins);
        if let Some(last) = phases.last_mut() {
            last.steps.end = begins;
        }
        phases.push(phase);
    }
    phases
}
