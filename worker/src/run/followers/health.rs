//! Ends runs that cannot succeed.

use std::collections::HashSet;

use dtrain_common::result::RunResult;

use crate::data::too_many_bad;
use crate::metrics::{EvalRecord, Line, SkipCause};
use crate::run::Training;
use crate::run::error::{Result, TrainError};
use crate::run::follower::{Flow, Follower, Followers};
use crate::step::Taken;

/// Ends a run that will not recover. All ranks have the same figures and end together. As the first follower
/// it prevents a checkpoint of the last step: a run resumed from it would have no steps left.
pub(crate) struct Health {
    total_steps: u64,
    skipped: Skipped,
    /// The numbers of the training images that could not be read; an image is bad in every epoch.
    unreadable: HashSet<u32>,
}

impl Health {
    pub(crate) fn new(total_steps: u64) -> Self {
        Self { total_steps, skipped: Skipped::default(), unreadable: HashSet::new() }
    }

    /// Fails after a last step that was skipped, if the loss of the evaluation after it is not finite.
    fn check_last(&self, evaluation: &EvalRecord) -> Result<()> {
        let failure = self.skipped.error().filter(|_| !evaluation.loss.is_finite());
        failure.map_or(Ok(()), Err)
    }
}

impl Follower for Health {
    /// Fails on a last evaluation without a finite loss.
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        match line {
            Line::Eval(record) if record.step == self.total_steps => self.check_last(record),
            _ => Ok(()),
        }
    }

    /// Fails as after the run's last step: the early end makes this step the last.
    fn before_early_end(&mut self, evaluation: &EvalRecord) -> Result<()> {
        self.skipped.failure(true).map_or(Ok(()), Err)?;
        self.check_last(evaluation)
    }

    fn after_step(
        &mut self,
        training: &mut Training<'_>,
        taken: &Taken,
        _: &mut Followers<'_>,
    ) -> Result<Flow> {
        let done = training.course.done;
        self.skipped.record(done, taken.skipped);
        if let Some(failure) = self.skipped.failure(done == self.total_steps) {
            return Err(failure);
        }
        self.unreadable.extend(&taken.unreadable);
        let (bad, total) = (self.unreadable.len(), training.replica.model.task.facts().train.count_singles());
        if too_many_bad(bad, total) {
            return Err(TrainError::TooManyBad { what: "training".to_owned(), bad, total });
        }
        Ok(Flow::Continue)
    }

    fn conclude(&self, result: &mut RunResult) {
        result.skipped_images = Some(self.unreadable.len() as u64);
    }
}

/// Skipped steps in a row that end a run.
const FATAL_SKIPS_IN_A_ROW: u64 = 20;

/// Skipped steps at the end that make a run fail. Fewer may result from a falling loss scale or one batch.
const FATAL_SKIPS_AT_THE_END: u64 = 3;

/// The steps skipped since the last update.
#[derive(Debug, Default)]
struct Skipped {
    steps: u64,
    /// The first of them, with its cause.
    first: Option<(u64, SkipCause)>,
}

impl Skipped {
    /// Records a step, counted from 1.
    fn record(&mut self, step: u64, skipped: Option<SkipCause>) {
        match skipped {
            Some(cause) => {
                self.steps += 1;
                self.first.get_or_insert((step, cause));
            }
            None => *self = Self::default(),
        }
    }

    /// Returns the failure after too many skipped steps in a row; if the run `is_over`, fewer are enough.
    fn failure(&self, is_over: bool) -> Option<TrainError> {
        let too_many = match is_over {
            true => self.steps >= FATAL_SKIPS_AT_THE_END || self.first.is_some_and(|(first, _)| first == 1),
            false => self.steps >= FATAL_SKIPS_IN_A_ROW,
        };
        self.error().filter(|_| too_many)
    }

    /// Returns the failure for these steps, for any number of them.
    fn error(&self) -> Option<TrainError> {
        let (first, cause) = self.first?;
        let last = first + self.steps - 1;
        Some(match cause {
            SkipCause::Nothing => TrainError::NothingCounted { first, last },
            SkipCause::Loss => TrainError::NonFinite { what: "loss", first, last },
            SkipCause::Gradient => TrainError::NonFinite { what: "gradient", first, last },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the failure of a run with these steps; `x` is a skipped one.
    fn failure(steps: &str, is_over: bool) -> Option<String> {
        let mut skipped = Skipped::default();
        for (step, kind) in (1..).zip(steps.chars()) {
            skipped.record(step, (kind == 'x').then_some(SkipCause::Loss));
        }
        skipped.failure(is_over).map(|error| error.to_string())
    }

    #[test]
    fn skipped_steps_at_the_end_fail_the_run() {
        assert_eq!(failure("..xx", true), None);
        assert_eq!(failure("..xxx.", true), None);
        let text = failure("..xxx", true).unwrap_or_default();
        assert!(text.starts_with("the loss was not finite from step 3 to step 5"), "{text}");
        assert_eq!(failure("..xxx", false), None);
    }

    #[test]
    fn a_run_with_only_skipped_steps_fails() {
        for steps in ["x", "xx", "xxx"] {
            assert!(failure(steps, true).is_some(), "{steps}");
        }
        assert_eq!(failure("", true), None);
    }

    #[test]
    fn the_first_step_does_not_blame_the_learning_rate() {
        let text = failure("xxx", true).unwrap_or_default();
        assert!(text.contains("no update has been made, so optim.lr is not the cause"), "{text}");
        let text = failure(".xxx", true).unwrap_or_default();
        assert!(text.contains("lower optim.lr"), "{text}");
    }

    #[test]
    fn an_early_end_fails_as_the_end_of_the_run_does() {
        let end = |steps: &str, loss: f64| {
            let mut health = Health::new(100);
            for (step, kind) in (1..).zip(steps.chars()) {
                health.skipped.record(step, (kind == 'x').then_some(SkipCause::Loss));
            }
            let step = steps.len() as u64;
            let evaluation = EvalRecord { step, loss, ..EvalRecord::default() };
            let recorded = health.record(&Line::Eval(&evaluation));
            (recorded.is_ok(), health.before_early_end(&evaluation).is_ok())
        };
        // Later steps may still recover, so only the early end fails.
        assert_eq!(end("..xxx", 1.0), (true, false));
        assert_eq!(end("....x", f64::NAN), (true, false));
        assert_eq!(end("....x", 1.0), (true, true));
        assert_eq!(end(".....", f64::NAN), (true, true));
    }

    #[test]
    fn twenty_skipped_steps_in_a_row_end_the_run() {
        let nineteen = "x".repeat(19);
        assert_eq!(failure(&nineteen, false), None);
        assert_eq!(failure(&format!("{nineteen}.x"), false), None);
        assert!(failure(&format!(".{nineteen}x"), false).is_some());
    }

    #[test]
    fn the_error_has_the_cause_of_the_first_skipped_step() {
        let mut skipped = Skipped::default();
        skipped.record(1, Some(SkipCause::Nothing));
        skipped.record(2, Some(SkipCause::Loss));
        let text = skipped.error().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("counted from step 1 to step 2"), "{text}");
    }
}
