//! What follows a run: all parts other than steps and phases. The loop does not know their types.
//!
//! To add a follower, implement [`Follower`] and add a value to the list in [`crate::train`].

use std::fmt::Display;

use dtrain_common::result::RunResult;

use super::Training;
use crate::metrics::{EvalRecord, Line};
use crate::run::error::Result;
use crate::step::{Status, StepError, StepObserver, Taken};

/// Whether a run continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flow {
    Continue,
    /// The run is complete before its last step.
    Finished,
    Stopped,
    /// Stopped, and the work that is due now is left to the resumed run.
    Interrupted,
}

/// Follows a run. Every rank has the same followers in the same order and calls them at the same points, so
/// that they may use collectives. A follower ends the run by an error.
pub(crate) trait Follower {
    fn begin(&mut self, _: &mut Training<'_>, _others: &mut Followers<'_>) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// Adds to this rank's status, before the ranks agree on a step.
    fn add_status(&mut self, _: &mut Status, _rank: usize) -> Result<(), StepError> {
        Ok(())
    }

    /// Returns when it no longer reads parameters, moments and averages, which change next.
    fn before_update(&mut self) -> Result<(), StepError> {
        Ok(())
    }

    /// Runs after a step, when all followers have its record.
    fn after_step(&mut self, _: &mut Training<'_>, _: &Taken, _others: &mut Followers<'_>) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// Runs when `train.stop_early` is to end the run after this evaluation. An error fails the run instead.
    fn before_early_end(&mut self, _: &EvalRecord) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &mut Training<'_>, _others: &mut Followers<'_>) -> Result<()> {
        Ok(())
    }

    /// Adds its results to result.json.
    fn conclude(&self, _: &mut RunResult) {}

    fn record(&mut self, _: &Line<'_>) -> Result<()> {
        Ok(())
    }

    fn note(&mut self, _: &dyn Display) {}

    /// Reports progress within a long operation.
    fn advance(&mut self) {}
}

#[derive(Default)]
pub(crate) struct Followers<'a>(Vec<Option<Box<dyn Follower + 'a>>>);

impl<'a> Followers<'a> {
    pub(crate) fn new(list: Vec<Box<dyn Follower + 'a>>) -> Self {
        Self(list.into_iter().map(Some).collect())
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Follower + 'a>> {
        self.0.iter_mut().flatten()
    }

    /// Calls the followers in turn; each can reach the others, but not itself.
    fn call_each(
        &mut self,
        mut call: impl FnMut(&mut dyn Follower, &mut Self) -> Result<Flow>,
    ) -> Result<Flow> {
        let mut flow = Flow::Continue;
        for at in 0..self.0.len() {
            if let Some(mut follower) = self.0[at].take() {
                let outcome = call(follower.as_mut(), self);
                self.0[at] = Some(follower);
                flow = flow.max(outcome?);
            }
        }
        Ok(flow)
    }

    pub(super) fn begin(&mut self, training: &mut Training<'_>) -> Result<Flow> {
        self.call_each(|follower, others| follower.begin(training, others))
    }

    pub(super) fn after_step(&mut self, training: &mut Training<'_>, taken: &Taken) -> Result<Flow> {
        self.call_each(|follower, others| follower.after_step(training, taken, others))
    }

    pub(super) fn before_early_end(&mut self, evaluation: &EvalRecord) -> Result<()> {
        self.all().try_for_each(|follower| follower.before_early_end(evaluation))
    }

    pub(super) fn finish(&mut self, training: &mut Training<'_>) -> Result<()> {
        self.call_each(|follower, others| follower.finish(training, others).map(|()| Flow::Continue))
            .map(drop)
    }

    pub(super) fn conclude(&mut self, result: &mut RunResult) {
        self.all().for_each(|follower| follower.conclude(result));
    }

    pub(crate) fn record(&mut self, line: &Line<'_>) -> Result<()> {
        self.all().try_for_each(|follower| follower.record(line))
    }

    pub(crate) fn note(&mut self, text: impl Display) {
        self.all().for_each(|follower| follower.note(&text));
    }

    pub(crate) fn advance(&mut self) {
        self.all().for_each(|follower| follower.advance());
    }
}

impl StepObserver for Followers<'_> {
    fn add_status(&mut self, status: &mut Status, rank: usize) -> Result<(), StepError> {
        self.all().try_for_each(|follower| follower.add_status(status, rank))
    }

    fn before_update(&mut self) -> Result<(), StepError> {
        self.all().try_for_each(|follower| follower.before_update())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;

    use super::*;

    /// Records what it hears, and repeats it once.
    struct Echo<'a>(&'static str, &'a RefCell<Vec<String>>);

    impl Follower for Echo<'_> {
        fn note(&mut self, text: &dyn Display) {
            self.1.borrow_mut().push(format!("{} hears {text}", self.0));
        }
    }

    #[test]
    fn followers_are_called_in_turn_and_reach_the_others() {
        let heard = RefCell::new(Vec::new());
        let list: Vec<Box<dyn Follower + '_>> =
            vec![Box::new(Echo("a", &heard)), Box::new(Echo("b", &heard))];
        let mut followers = Followers::new(list);
        let mut turn = 0;
        let flow = followers.call_each(|_, others| {
            turn += 1;
            others.note(turn);
            Ok(if turn == 1 { Flow::Stopped } else { Flow::Continue })
        });
        assert_eq!(flow.unwrap(), Flow::Stopped);
        followers.note("all");
        assert_eq!(*heard.borrow(), ["b hears 1", "a hears 2", "a hears all", "b hears all"]);
        // A follower that fails stays in the list, and later ones are not called.
        let failed = followers.call_each(|_, _| Err(StepError::LoaderEnded.into()));
        assert!(failed.is_err());
        assert_eq!(followers.all().count(), 2);
    }
}
