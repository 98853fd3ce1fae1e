//! Where epochs and stages lie among the steps of a run. The training data may get another size at a resume: then the
//! epoch and the step within it stay, and later epochs have another number of steps.

use std::ops::Range;

use dtrain_common::manifest::DataPeriod;
use dtrain_common::run_dir::Stretch;
use dtrain_recipe::{Span, Train};

use super::{PlanError, Position};

/// Steps of one stage with epochs of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stage: usize,
    /// Steps, counted from 0 over the whole run.
    pub(crate) steps: Range<u64>,
    /// Position of its first step: its epoch, counted from 0 over the whole run.
    epoch: u64,
    step_in_epoch: u64,
    /// The first epoch of its stage.
    pub(super) first_epoch: u64,
    pub(crate) steps_per_epoch: u64,
    pub(crate) train_samples: u64,
}

/// The pieces of a run in order: at least one of every stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timeline(pub(crate) Vec<Piece>);

impl Piece {
    /// Returns the steps from the start of the stage's first epoch, in epochs of this length.
    pub(super) fn epoch_steps(&self, step: u64) -> u64 {
        let before = (self.epoch - self.first_epoch) * self.steps_per_epoch + self.step_in_epoch;
        before + step.saturating_sub(self.steps.start)
    }

    /// Returns the passes over the training set in the stage up to a step.
    pub(super) fn epochs(&self, step: u64) -> f64 {
        self.epoch_steps(step) as f64 / self.steps_per_epoch as f64
    }

    pub(super) fn stretch(&self) -> Stretch {
        Stretch {
            stage: self.stage,
            begins: self.steps.start,
            epoch_steps: self.epoch_steps(self.steps.start),
            steps_per_epoch: self.steps_per_epoch,
        }
    }

    fn position(&self, step: u64) -> Position {
        let steps = self.epoch_steps(step);
        Position {
            stage: self.stage,
            epoch: self.first_epoch + steps / self.steps_per_epoch,
            step_in_epoch: steps % self.steps_per_epoch,
        }
    }

    /// Returns the first epoch of the next stage, if this is the stage's last piece.
    pub(super) fn next_epoch(&self) -> u64 {
        self.first_epoch + self.epoch_steps(self.steps.end).div_ceil(self.steps_per_epoch)
    }

    /// Returns the end of the stage, which began at `stage_begins`, if the data keeps its size.
    fn stage_end(&self, train: &Train, stage_begins: u64) -> u64 {
        let epochs_end = |epochs: u64| {
            let left = epochs.saturating_mul(self.steps_per_epoch);
            self.steps.start.saturating_add(left.saturating_sub(self.epoch_steps(self.steps.start)))
        };
        let by_epochs = train.epochs.map(epochs_end);
        let by_steps = train.steps.map(|steps| stage_begins.saturating_add(steps));
        by_epochs.into_iter().chain(by_steps).min().unwrap_or(stage_begins)
    }
}

impl Timeline {
    /// Makes the timeline of stages with these settings, over periods of which the first begins at step 0.
    pub(super) fn new(stages: &[Train], periods: &[DataPeriod]) -> Result<Self, (usize, PlanError)> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (stage, train) in stages.iter().enumerate() {
            let begins = pieces.last().map_or(0, |last| last.steps.end);
            let first_epoch = pieces.last().map_or(0, Piece::next_epoch);
            let mut at = Position { stage, epoch: first_epoch, step_in_epoch: 0 };
            let mut start = begins;
            loop {
                let period = periods.iter().rfind(|period| period.step <= start);
                let train_samples = period.map_or(0, |period| period.train_samples);
                let steps_per_epoch = train.steps_per_epoch(train_samples);
                if steps_per_epoch == 0 {
                    let effective_batch = train.effective_batch;
                    return Err((stage, PlanError::NoSteps { samples: train_samples, effective_batch }));
                }
                let mut piece = Piece {
                    stage,
                    steps: start..start,
                    epoch: at.epoch,
                    // A shorter epoch may be over.
                    step_in_epoch: at.step_in_epoch.min(steps_per_epoch),
                    first_epoch,
                    steps_per_epoch,
                    train_samples,
                };
                let end = piece.stage_end(train, begins);
                let next = periods.iter().map(|period| period.step).find(|&step| step > start && step < end);
                piece.steps.end = next.unwrap_or(end);
                start = piece.steps.end;
                at = piece.position(start);
                pieces.push(piece);
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(Self(pieces))
    }

    pub(super) fn total_steps(&self) -> u64 {
        self.0.last().map_or(0, |last| last.steps.end)
    }

    /// Returns the piece of a step, counted from 0; after the run's end the last piece.
    pub(super) fn piece(&self, step: u64) -> &Piece {
        let number = self.0.iter().position(|piece| step < piece.steps.end);
        &self.0[number.unwrap_or(self.0.len() - 1)]
    }

    pub(super) fn position(&self, done: u64) -> Position {
        self.piece(done).position(done)
    }

    /// Returns the pieces that have begun after `done` steps, each with the end of its steps taken so far.
    pub(super) fn begun(&self, done: u64) -> impl Iterator<Item = (&Piece, u64)> {
        let last = self.0.iter().position(|piece| done < piece.steps.end).unwrap_or(self.0.len() - 1);
        self.0[..=last].iter().enumerate().map(move |(number, piece)| {
            let end = if number == last { done } else { piece.steps.end };
            (piece, end)
        })
    }

    /// Returns the passes over the training set after `done` steps. Every stage begins a new epoch.
    pub(super) fn epochs_after(&self, done: u64) -> f64 {
        let mut stages: Vec<f64> = Vec::new();
        for (piece, end) in self.begun(done) {
            stages.truncate(piece.stage);
            stages.push(piece.epochs(end));
        }
        stages.iter().sum()
    }

    /// Returns the last piece of a stage.
    pub(super) fn last_of(&self, stage: usize) -> &Piece {
        let number = self.0.iter().rposition(|piece| piece.stage == stage);
        &self.0[number.unwrap_or(0)]
    }

    /// Returns the epochs that are over at a step, from the start of these stages.
    pub(super) fn epoch(&self, step: u64, stages: &Range<usize>) -> u64 {
        let (steps, per_epoch) = self.epoch_steps(step, stages);
        steps / per_epoch
    }

    /// Returns the steps of these stages.
    pub(super) fn steps(&self, stages: &Range<usize>) -> Range<u64> {
        let begins = self.within(stages).next().map_or(0, |piece| piece.steps.start);
        begins..self.last_of(stages.end - 1).steps.end
    }

    /// Returns the step of the run at which `span`, counted from the start of these stages, is over. Beyond them, epochs are
    /// the last stage's.
    pub(super) fn step_after(&self, span: Span, stages: &Range<usize>) -> u64 {
        let begins = self.steps(stages).start;
        let Span::Epochs(mut left) = span else { return begins.saturating_add(span.steps(1)) };
        let (mut pieces, mut reached) = (self.within(stages).peekable(), begins);
        while let Some(piece) = pieces.next() {
            let steps = Span::Epochs(left).steps(piece.steps_per_epoch);
            let first = piece.epoch_steps(piece.steps.start);
            reached = piece.steps.start.saturating_add(steps.saturating_sub(first));
            let own = piece.epochs(piece.steps.end);
            match pieces.peek() {
                Some(_) if left <= own => break,
                Some(next) if next.stage != piece.stage => left -= own,
                _ => {}
            }
        }
        reached
    }

    /// Returns the steps up to a step from the start of these stages, in epochs of its length, and that length.
    pub(super) fn epoch_steps(&self, step: u64, stages: &Range<usize>) -> (u64, u64) {
        let (mut before, mut of_stage, mut of) = (0.0, (0, stages.start), 1);
        for piece in self.within(stages).take_while(|piece| piece.steps.start <= step) {
            let end = piece.steps.end.min(step);
            if piece.stage != of_stage.1 {
                before += of_stage.0 as f64 / of as f64;
            }
            (of_stage, of) = ((piece.epoch_steps(end), piece.stage), piece.steps_per_epoch);
        }
        ((before * of as f64).round() as u64 + of_stage.0, of)
    }

    fn within(&self, stages: &Range<usize>) -> impl Iterator<Item = &Piece> {
        self.0.iter().filter(|piece| stages.contains(&piece.stage))
    }
}
