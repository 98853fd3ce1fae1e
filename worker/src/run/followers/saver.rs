//! Checkpoints on disk, one at a time, written during training.

use std::time::{Duration, Instant};

use dtrain_common::trace::{self, Kind};
use dtrain_recipe::OnFailure;
use dtrain_torch_shim::stream::Stream;
use tch::Device;

use super::archive::Archive;
use super::contents::{Owed, Rest, keep, manifest};
use crate::checkpoint::CheckpointError;
use crate::metrics::{CheckpointRecord, Line};
use crate::run::Training;
use crate::run::error::Result;
use crate::run::follower::Followers;
use crate::step::{Status, StepError};

impl Archive<'_> {
    /// Begins a checkpoint. Training continues during the copy, until [`Archive::settle`].
    pub(super) fn save(
        &mut self,
        training: &mut Training<'_>,
        owed: Owed,
        others: &mut Followers<'_>,
    ) -> Result<()> {
        self.finish_previous(training, others)?;
        self.saved_at = Instant::now();
        let _writing = self.heartbeat.guard_write();
        let _begin = trace::span(Kind::Checkpoint, "begin a checkpoint");
        let manifest = manifest(training, owed);
        let begun = self.checkpoints.begin(&training.replica.model, manifest, keep(training));
        Ok(begun.map_err(StepError::unwritten(self.done))?)
    }

    /// Waits for the current checkpoint, if any, before another begins.
    pub(super) fn finish_previous(
        &mut self,
        training: &mut Training<'_>,
        others: &mut Followers<'_>,
    ) -> Result<()> {
        if self.checkpoints.step().is_some() {
            let begun = Instant::now();
            self.finish_checkpoint(training, others, Rest::Another)?;
            self.report_wait(begun.elapsed(), others);
        }
        Ok(())
    }

    /// Completes the checkpoint's copies. Call it before parameters, moments or the average change.
    pub(super) fn settle(&mut self) -> Result<(), StepError> {
        let _copying = self.checkpoints.step().map(|_| self.heartbeat.guard_copy());
        let _wait = trace::span(Kind::Checkpoint, "wait for the copy");
        let settled = self.checkpoints.wait_for_copy();
        settled.map_err(StepError::unwritten(self.done))
    }

    /// Advances the current checkpoint after a step, when no rank writes any more.
    pub(super) fn follow_checkpoint(
        &mut self,
        training: &mut Training<'_>,
        status: &Status,
        others: &mut Followers<'_>,
    ) -> Result<()> {
        let step = self.checkpoints.step();
        let followed = self.checkpoints.continue_pending(&status.writing);
        self.conclude_checkpoint(training, step, followed, Rest::Another, others).map(drop)
    }

    /// Waits for the current checkpoint, if any. The last checkpoint of a run must succeed. Returns false after a failure
    /// that the recipe allows.
    pub(super) fn finish_checkpoint(
        &mut self,
        training: &mut Training<'_>,
        others: &mut Followers<'_>,
        rest: Rest,
    ) -> Result<bool> {
        let Some(step) = self.checkpoints.step() else { return Ok(true) };
        // The copy waits for the device's work. Without heartbeats here, a device that hangs is no long write.
        if let Device::Cuda(gpu) = training.device() {
            Stream::current(gpu)?.synchronize()?;
        }
        let _writing = self.heartbeat.guard_write();
        let _wait = trace::span(Kind::Checkpoint, "finish a checkpoint");
        let finished = self.checkpoints.finish();
        self.agree_on_checkpoint(training, finished, step, rest, others)
    }

    /// Concludes a checkpoint of which this rank alone knows the outcome. Every rank calls this.
    pub(super) fn agree_on_checkpoint(
        &mut self,
        training: &mut Training<'_>,
        mut finished: Result<Option<CheckpointRecord>, CheckpointError>,
        step: u64,
        rest: Rest,
        others: &mut Followers<'_>,
    ) -> Result<bool> {
        // Rank 0 may still commit it; a collective of the training would wait without heartbeats.
        if !matches!(finished, Err(CheckpointError::Collective(_)))
            && training.exchange.any_rank(finished.is_err())?
            && finished.is_ok()
        {
            finished = Err(CheckpointError::Peer(0));
        }
        self.conclude_checkpoint(training, Some(step), finished, rest, others)
    }

    /// Reports a finished checkpoint, or a failed one: this ends the run, unless the recipe allows it and
    /// another follows; then returns false. Decides by facts that all ranks know, so that all ranks end or continue.
    fn conclude_checkpoint(
        &mut self,
        training: &mut Training<'_>,
        step: Option<u64>,
        outcome: Result<Option<CheckpointRecord>, CheckpointError>,
        rest: Rest,
        others: &mut Followers<'_>,
    ) -> Result<bool> {
        match outcome {
            Ok(None) => Ok(true),
            Ok(Some(record)) => others.record(&Line::Checkpoint(&record)).map(|()| true),
            Err(source) => {
                let step = step.unwrap_or(self.done);
                let error = StepError::unwritten(step)(source);
                let may_continue = training.recipe.checkpoint.on_failure == OnFailure::Continue;
                if may_continue && rest == Rest::Another && error.is_disk_error() {
                    tracing::warn!(
                        "{error}; on_failure = \"continue\": training continues until the next checkpoint"
                    );
                    training.course.best.forget(step);
                    return Ok(false);
                }
                Err(error.into())
            }
        }
    }

    /// Reports once that checkpoints are due more often than they can be written.
    fn report_wait(&mut self, waited: Duration, others: &mut Followers<'_>) {
        const SHORTEST_REPORTED: Duration = Duration::from_millis(200);
        if waited >= SHORTEST_REPORTED && !std::mem::replace(&mut self.wait_reported, true) {
            others.note(format!(
                "training waited {:.1} s for the previous checkpoint: writing one takes longer than checkpoint.every; raise it",
                waited.as_secs_f64()
            ));
        }
    }
}
