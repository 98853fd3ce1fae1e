//! Copies of the state in memory, after every step.

use dtrain_common::trace::{self, Kind};

use super::contents::{Owed, manifest};
use super::evaluating::is_evaluated;
use crate::checkpoint::MemoryCopies;
use crate::heartbeat::Heartbeat;
use crate::run::Training;
use crate::run::error::Result;
use crate::run::follower::{Flow, Follower, Followers};
use crate::step::{Status, StepError, Taken};

/// Keeps a copy of the last step's state in memory that outlives the workers.
pub(crate) struct Copies {
    copies: MemoryCopies,
    heartbeat: Heartbeat,
    done: u64,
}

impl Copies {
    pub(crate) fn new(copies: MemoryCopies, heartbeat: Heartbeat, done: u64) -> Self {
        Self { copies, heartbeat, done }
    }
}

impl Follower for Copies {
    /// Completes the copy of the previous step before the ranks agree on the next step.
    fn add_status(&mut self, _: &mut Status, _: usize) -> Result<(), StepError> {
        self.before_update()
    }

    fn before_update(&mut self) -> Result<(), StepError> {
        let _copying = self.heartbeat.guard_copy();
        self.copies.wait_until_written().map_err(StepError::unwritten(self.done))
    }

    fn after_step(
        &mut self,
        training: &mut Training<'_>,
        taken: &Taken,
        _: &mut Followers<'_>,
    ) -> Result<Flow> {
        self.done = training.course.done;
        // The copy is made before the evaluation after this step.
        let owed = match is_evaluated(&training.course.plan, self.done, &taken.status) {
            true => Owed::Evaluation,
            false => Owed::Nothing,
        };
        let manifest = manifest(training, owed);
        let _writing = self.heartbeat.guard_write();
        let _copy = trace::span(Kind::Checkpoint, "copy in memory");
        let begun = self.copies.begin(&training.replica.model, manifest);
        begun.map_err(StepError::unwritten(self.done))?;
        Ok(Flow::Continue)
    }
}
