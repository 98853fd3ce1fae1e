//! The plan of a run: its stages, the number of their steps, the samples of each step, and their partition
//! over the ranks. Only arithmetic.

mod needs;
mod pace;
mod rates;
mod stage;
mod timeline;
mod views;

use std::fmt;
use std::ops::Range;

use dtrain_common::manifest::DataPeriod;
use dtrain_common::run_dir::Stretch;
use dtrain_common::text::counted;
use dtrain_recipe::{LastBatch, Recipe, Train};

pub(crate) use needs::{BatchNorms, Needs, PlanError};
pub(crate) use stage::{PhasePlan, StagePlan};

use self::timeline::{Piece, Timeline};
use self::views::Views;
use crate::data::{MicroBatch, Place, SampleHashes, Sampling};

/// A run's plan, the same on every rank.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    pub(crate) train_samples: u64,
    pub(crate) total_steps: u64,
    /// Why the result depends on the partition, a sentence each: for the log and the run directory.
    pub(crate) warnings: Vec<String>,
    pub(crate) stages: Vec<StagePlan>,
    /// The sizes of the training data in the course of the run, if they changed.
    pub(crate) data_periods: Vec<DataPeriod>,
    timeline: Timeline,
    seed: u64,
    last_batch: LastBatch,
    needs: Needs,
}

/// The progress of a run, between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The stage of the next step, counted from 0; after the last step, the last stage.
    pub(crate) stage: usize,
    /// The epoch of the next step, counted from 0 over the whole run.
    pub(crate) epoch: u64,
    /// The next step within that epoch, counted from 0.
    pub(crate) step_in_epoch: u64,
}

/// A phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhaseId {
    pub(crate) stage: usize,
    /// The phase within the stage, counted from 0.
    pub(crate) phase: usize,
}

impl RunPlan {
    /// Plans `recipe` for `ranks` processes and `train_samples` samples, for a model with these needs.
    pub(crate) fn new(
        recipe: &Recipe,
        ranks: usize,
        train_samples: u64,
        needs: &Needs,
    ) -> Result<Self, PlanError> {
        Self::over(recipe, ranks, train_samples, Vec::new(), needs)
    }

    /// Works like [`RunPlan::new`] for a run with training data of several sizes, of which the last is `train_samples`.
    pub(crate) fn over(
        recipe: &Recipe,
        ranks: usize,
        train_samples: u64,
        data_periods: Vec<DataPeriod>,
        needs: &Needs,
    ) -> Result<Self, PlanError> {
        let at = |(number, error): (usize, PlanError)| match recipe.stage.get(number) {
            Some(stage) => PlanError::Stage { name: stage.name.clone(), source: Box::new(error) },
            None => error,
        };
        let lengths: Vec<Train> =
            (0..recipe.stages()).map(|number| recipe.of_stage(number).general.train).collect();
        let unchanged = [DataPeriod { step: 0, train_samples }];
        let periods: &[DataPeriod] = if data_periods.is_empty() { &unchanged } else { &data_periods };
        let views = Views::new(&lengths, periods).map_err(at)?;
        let (mut stages, mut warnings) = (Vec::new(), Vec::new());
        for number in 0..recipe.stages() {
            let stage = StagePlan::new(recipe, number, ranks, &views, needs.max_micro_batch)
                .map_err(|error| at((number, error)))?;
            let large = stage.warn_of_large_batch().filter(|_| recipe.train.overfit.is_none());
            for warning in stage.check(needs).map_err(|error| at((number, error)))?.into_iter().chain(large) {
                warnings.push(match &stage.name {
                    Some(name) => format!("stage {name:?}: {warning}"),
                    None => warning,
                });
            }
            stages.push(stage);
        }
        let timeline = views.now.timeline;
        Ok(Self {
            train_samples,
            total_steps: timeline.total_steps(),
            warnings,
            stages,
            data_periods,
            timeline,
            seed: recipe.train.seed,
            last_batch: recipe.train.last_batch,
            needs: needs.clone(),
        })
    }

    /// Returns the model's needs.
    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Returns the stage of a step, counted from 0; after the run's end the last stage.
    pub(crate) fn stage(&self, step: u64) -> &StagePlan {
        &self.stages[self.stage_number(step)]
    }

    /// Returns the number of a step's stage, both counted from 0; after the run's end the last stage.
    pub(crate) fn stage_number(&self, step: u64) -> usize {
        let number = self.stages.iter().position(|stage| step < stage.steps.end);
        number.unwrap_or(self.stages.len() - 1)
    }

    /// Returns the phase of a step, counted from 0; after the run's end the last phase.
    pub(crate) fn phase_at(&self, step: u64) -> PhaseId {
        let stage = self.stage_number(step);
        let phase = self.stages[stage].phase(step);
        PhaseId { stage, phase }
    }

    pub(crate) fn phase(&self, id: PhaseId) -> &PhasePlan {
        &self.stages[id.stage].phases[id.phase]
    }

    /// Returns `id` if it exists, otherwise the last phase of its stage.
    pub(crate) fn existing_phase(&self, id: PhaseId) -> PhaseId {
        let last = self.stages[id.stage].phases.len() - 1;
        let phase = id.phase.min(last);
        PhaseId { phase, ..id }
    }

    /// Returns a plan with the same samples, but with the largest possible micro-batches of at most `most`
    /// samples in one stage. None if the model takes no such micro-batch.
    pub(crate) fn with_micro_batches(&self, stage: usize, most: usize) -> Option<Self> {
        (1..=most).rev().find_map(|limit| self.with_limit(stage, limit))
    }

    /// Returns a plan with the same samples, but with micro-batches of at most half the size in one stage; if
    /// the model takes none, with its smallest. None if they are already the smallest.
    pub(crate) fn with_smaller_micro_batches(&self, stage: usize) -> Option<Self> {
        let now = self.stages[stage].partition.micro_batch();
        let half = now / 2;
        self.with_micro_batches(stage, half)
            .or_else(|| (half + 1..now).find_map(|limit| self.with_limit(stage, limit)))
    }

    fn with_limit(&self, stage: usize, limit: usize) -> Option<Self> {
        let cut = self.stages[stage].partition.limited(limit).ok()?;
        let mut plan = self.clone();
        plan.stages[stage].partition = cut;
        let takes = plan.stages[stage].check(&self.needs);
        takes.is_ok().then_some(plan)
    }

    /// Returns the position after `done` steps.
    pub(crate) fn position(&self, done: u64) -> Position {
        self.timeline.position(done)
    }

    pub(crate) fn lr(&self, done: u64) -> f64 {
        self.stage(done).rates.lr(done)
    }

    /// Returns whether a checkpoint follows the step number `done`, which `is_evaluated` or not.
    pub(crate) fn is_checkpoint(&self, done: u64, is_evaluated: bool) -> bool {
        let Some(last) = done.checked_sub(1) else { return false };
        self.stage(last).is_checkpoint(done, self.timeline.piece(last), is_evaluated)
    }

    /// Returns whether an evaluation follows the step number `done`.
    pub(crate) fn is_evaluation(&self, done: u64) -> bool {
        let Some(last) = done.checked_sub(1) else { return false };
        self.stage(last).is_evaluation(done, self.timeline.piece(last))
    }

    /// Returns whether the training data has another size from here on.
    pub(crate) fn is_resized(&self, done: u64) -> bool {
        self.data_periods.last().is_some_and(|last| last.step == done)
    }

    /// Returns whether a run that resumes here with data of another size is at an evaluation that it has not reached before:
    /// less data can end an epoch, a stage or the run.
    pub(crate) fn ends_by_resize(&self, done: u64) -> bool {
        let Some(last) = done.checked_sub(1).filter(|_| self.is_resized(done)) else { return false };
        let (stage, piece) = (self.stage_number(last), self.timeline.piece(done));
        self.is_evaluation(done) || piece.stage == stage && self.stages[stage].is_evaluation(done, piece)
    }

    /// Returns the stretches in which `checkpoint.keep_every` counts.
    pub(crate) fn stretches(&self) -> Vec<Stretch> {
        self.timeline.0.iter().map(Piece::stretch).collect()
    }

    pub(crate) fn step_samples(&self, position: Position) -> usize {
        self.stages[position.stage].step_samples(position.step_in_epoch)
    }

    /// Returns the micro-batches of `rank` in the step at `position`, as positions within the step.
    pub(crate) fn micro_ranges(&self, position: Position, rank: usize) -> Vec<Range<usize>> {
        let partition = &self.stages[position.stage].partition;
        let step = partition.for_samples(self.step_samples(position));
        step.micro_ranges(rank)
    }

    pub(crate) fn samples_after(&self, done: u64) -> u64 {
        let samples =
            |(piece, end): (&Piece, u64)| self.stages[piece.stage].samples(piece, end, self.last_batch);
        self.timeline.begun(done).map(samples).sum()
    }

    /// Returns the passes over the training set after `done` steps.
    pub(crate) fn epochs_after(&self, done: u64) -> f64 {
        self.timeline.epochs_after(done)
    }

    /// Describes the rest of a run whose data changed its size after `done` steps, for people.
    pub(crate) fn describe_rest(&self, done: u64) -> String {
        let Position { stage, epoch, step_in_epoch } = self.position(done);
        format!(
            "with the new size of the data, the run continues after {} and {step_in_epoch} of {}: {} left of {}",
            counted(epoch as usize, "epoch"),
            counted(self.stages[stage].steps_per_epoch as usize, "step"),
            counted(self.total_steps.saturating_sub(done) as usize, "step"),
            self.total_steps.max(done),
        )
    }

    /// Returns the number of epochs, including an incomplete last one of each stage.
    pub(crate) fn epochs(&self) -> u64 {
        self.timeline.last_of(self.stages.len() - 1).next_epoch()
    }

    /// Returns the micro-batches of `rank` after step `done`. The members of a step depend only on the
    /// seed, not on the number of ranks or the micro-batch.
    pub(crate) fn micro_batches(
        &self,
        rank: usize,
        done: u64,
        sampling: &Sampling,
    ) -> impl Iterator<Item = MicroBatch> + Send + use<> {
        let (plan, sampling) = (self.clone(), sampling.clone());
        let mut current: Option<(u64, Vec<Place>)> = None;
        (done..self.total_steps).flat_map(move |step| {
            let position = plan.position(step);
            let Position { stage, epoch, step_in_epoch } = position;
            let order = match current.take() {
                Some((of, order)) if of == epoch => order,
                _ => sampling.epoch(plan.seed, epoch),
            };
            let first = step_in_epoch as usize * plan.stages[stage].partition.effective_batch();
            let places = sampling.step(&order, first, plan.step_samples(position), plan.seed, step);
            let (width, asked) = (sampling.width(), Some(SampleHashes::order_of(&places)));
            let blends = sampling.blends(plan.step_samples(position), plan.seed, step);
            let micro_batch = |range: Range<usize>| MicroBatch {
                epoch,
                places: places[range.start * width..range.end * width].to_vec(),
                width,
                blends: blends.get(range).unwrap_or_default().to_vec(),
                order: asked,
            };
            let ranges = plan.micro_ranges(position, rank).into_iter();
            let work: Vec<MicroBatch> = ranges.map(micro_batch).collect();
            current = Some((epoch, order));
            work
        })
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stages[..] {
            [stage] if stage.name.is_none() => write!(
                f,
                "effective batch {}; {} per epoch, {} in all; learning rate {:.4e}",
                stage.partition,
                counted(stage.steps_per_epoch as usize, "step"),
                self.total_steps,
                stage.rates.schedule.peak
            ),
            stages => {
                let of = |stage: &StagePlan| {
                    let name = stage.name.as_deref().unwrap_or_default();
                    format!("{} of {name:?}", stage.steps.end - stage.steps.start)
                };
                let words: Vec<String> = stages.iter().map(of).collect();
                write!(f, "{} steps in all: {}", self.total_steps, words.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests;
