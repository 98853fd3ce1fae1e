//! Copies of the state in memory, after every step.

use std::path::Path;

use super::manifest::{manifest, snapshot};
use super::{Flow, Follower, Followers};
use crate::checkpoint::{CheckpointError, MemoryCopies};
use crate::collectives::Ranks;
use crate::engine::TrainError;
use crate::heartbeat::Heartbeat;
use crate::run::Training;
use crate::step::{Status, Taken};
use tch::Device;

/// Keeps a copy of the last step's state where it outlives the workers.
pub(crate) struct Copies {
    copies: MemoryCopies,
    heartbeat: Heartbeat,
    /// Steps taken.
    done: u64,
}

impl Copies {
    /// At `place`; `cores` of the machine are this rank's.
    pub(crate) fn new(
        place: &Path,
        ranks: &Ranks,
        device: Device,
        cores: usize,
        heartbeat: Heartbeat,
    ) -> Result<Self, TrainError> {
        let copies = MemoryCopies::new(place, ranks, device, cores);
        Ok(Self {
            copies: copies.map_err(|source| TrainError::Checkpoint { step: 0, source })?,
            heartbeat,
            done: 0,
        })
    }

    /// The same, where so many steps were taken before.
    pub(crate) fn after(self, done: u64) -> Self {
        Self { done, ..self }
    }

    fn at(&self) -> impl FnOnce(CheckpointError) -> TrainError + use<> {
        let step = self.done;
        move |source| TrainError::Checkpoint { step, source }
    }
}

impl Follower for Copies {
    /// The copy of the step before is whole when the ranks agree on the next one.
    fn say(&mut self, _: &mut Status, _: usize) -> Result<(), TrainError> {
        self.before_update()
    }

    fn before_update(&mut self) -> Result<(), TrainError> {
        let _writing = self.heartbeat.writing();
        self.copies.settle().map_err(self.at())
    }

    fn after_step(
        &mut self,
        training: &mut Training<'_>,
        _: &Taken,
        _: &mut Followers<'_>,
    ) -> Result<Flow, TrainError> {
        self.done = training.course.done;
        // What comes behind the step was not done yet when this copy was made.
        let owes = training.course.plan.is_checkpoint(self.done);
        let manifest = manifest(training, None, owes);
        let _writing = self.heartbeat.writing();
        let begun = self.copies.begin(&snapshot(&training.replica.model), manifest);
        begun.map(|()| Flow::On).map_err(self.at())
    }
}
