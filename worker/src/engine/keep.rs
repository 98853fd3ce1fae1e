//! What is kept of a training: its evaluations, and checkpoints with the best of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dtrain_common::manifest::{BestSoFar, FORMAT, Manifest};
use dtrain_common::recipe::{Best, OnFailure};

use super::error::TrainError;
use super::status::Status;
use super::trainer::Trainer;
use crate::state::{Average, Model};
use tch::Tensor;

use crate::checkpoint::{self, CheckpointError, Keep, Progress, Snapshot, Written};
use crate::collectives::ReduceOp;
use crate::metrics::{CheckpointRecord, EvalRecord, figure};

/// The best checkpoint of a run, by the figure that `checkpoint.best` names; nothing without that setting.
#[derive(Debug, Clone, Default)]
pub struct BestKeeper {
    by: Option<Best>,
    so_far: Option<BestSoFar>,
    /// The one before, as long as the checkpoint of the best one may fail.
    before: Option<BestSoFar>,
}

impl BestKeeper {
    /// Goes on from `earlier`, the best of the run that is resumed, where it was compared by the same figure.
    pub fn new(by: Option<Best>, earlier: Option<BestSoFar>) -> Self {
        let so_far = earlier.filter(|earlier| Some(&earlier.by) == by.as_ref());
        Self {
            by,
            so_far,
            before: None,
        }
    }

    /// The best so far.
    pub fn so_far(&self) -> Option<&BestSoFar> {
        self.so_far.as_ref()
    }

    /// Forgets what it is compared with: the next one is the best.
    pub fn restart(&mut self) {
        self.so_far = None;
    }

    /// The checkpoint after `step` could not be written: if it was to be the best, the one before is that again.
    fn forget(&mut self, step: u64) {
        if self.so_far.as_ref().is_some_and(|best| best.step == step) {
            self.so_far = self.before.take();
        }
    }

    /// An evaluation after `step`: whether it is the best; None where none is sought.
    fn see(&mut self, figures: &BTreeMap<String, f64>, step: u64) -> Option<bool> {
        let by = self.by.as_ref()?;
        let value = figures.get(&by.figure).copied().unwrap_or(f64::NAN);
        let is_best = by.is_better(value, self.so_far.as_ref().map(|best| best.value));
        if is_best {
            let by = by.clone();
            self.before = self.so_far.replace(BestSoFar { by, value, step });
        }
        Some(is_best)
    }
}

impl Trainer<'_> {
    /// Evaluates, tells of it, and writes a checkpoint. False where a request to stop came before the end of the evaluation: the
    /// run that goes on makes it up.
    pub(super) fn evaluate_and_save(&mut self) -> Result<bool, TrainError> {
        let evaluation = self.evaluate()?;
        let broken = evaluation.as_ref().is_some_and(|record| !record.loss.is_finite());
        if broken
            && self.done == self.plan.total_steps
            && let Some(failure) = self.skipped.error()
        {
            return Err(failure);
        }
        self.owes_evaluation = evaluation.is_none();
        // Whether the one before is there counts for which is the best.
        self.make_way()?;
        let evaluation = evaluation.map(|evaluation| self.judge(evaluation)).transpose()?;
        self.save(evaluation.as_ref())?;
        Ok(!self.owes_evaluation)
    }

    /// Before the first step: makes the evaluation that the checkpoint owes which the run goes on from, and completes the
    /// checkpoint by it. False where a request to stop came first.
    pub(super) fn make_up(&mut self) -> Result<bool, TrainError> {
        if !self.owes_evaluation {
            return Ok(true);
        }
        let Some(evaluation) = self.evaluate()? else {
            return Ok(false);
        };
        self.owes_evaluation = false;
        // Another run's checkpoint stays as it is, and is never this run's best; this run's next one has the figures.
        if self.is_anothers {
            self.report_evaluation(&evaluation)?;
            return Ok(true);
        }
        let evaluation = self.judge(evaluation)?;
        if self.from_memory {
            self.save(Some(&evaluation))?;
            return Ok(true);
        }
        if self.ranks.rank() == 0 {
            let (metrics, best) = (figures_of(&evaluation), self.best.so_far().cloned());
            checkpoint::amend(self.run_dir, self.done, metrics, best)
                .map_err(|source| self.unwritten(self.done, source))?;
        }
        Ok(true)
    }

    fn judge(&mut self, mut evaluation: EvalRecord) -> Result<EvalRecord, TrainError> {
        evaluation.best = self.best.see(&figures_of(&evaluation), self.done);
        self.report_evaluation(&evaluation)?;
        Ok(evaluation)
    }

    fn report_evaluation(&mut self, record: &EvalRecord) -> Result<(), TrainError> {
        if let Some(metrics) = &mut self.metrics {
            metrics.eval(record).map_err(TrainError::Metrics)?;
        }
        let figures: String = record
            .metrics
            .0
            .iter()
            .map(|(name, value)| format!(", {}", named(name, *value)))
            .collect();
        self.progress.note(format!(
            "after step {} (epoch {}): test loss {:.4}{figures} of {} samples{}",
            record.step,
            record.epoch,
            record.loss,
            record.samples,
            if record.best == Some(true) {
                ", the best so far"
            } else {
                ""
            }
        ));
        self.summary.result.final_metrics.extend(figures_of(record));
        Ok(())
    }

    /// Begins a checkpoint. The training goes on while what every rank writes of it is copied, up to [`Trainer::settle_copy`]; the
    /// buffers are one on all ranks already.
    pub(super) fn save(&mut self, evaluation: Option<&EvalRecord>) -> Result<(), TrainError> {
        self.make_way()?;
        self.saved_at = Instant::now();
        let _writing = self.heartbeat.writing();
        let manifest = self.manifest(evaluation, self.owes_evaluation);
        let stage = &self.plan.stages()[self.phase.stage];
        let settings = &self.recipe.checkpoint;
        let keep = Keep {
            newest: settings.keep,
            every: settings
                .keep_every
                .map(|span| span.steps(stage.steps_per_epoch).max(1)),
        };
        let begun = self.checkpoints.begin(&snapshot(&self.model), manifest, keep);
        begun.map_err(|source| self.unwritten(self.done, source))
    }

    /// Waits for the checkpoint under way, if there is one, since another is to begin.
    fn make_way(&mut self) -> Result<(), TrainError> {
        if self.checkpoints.is_under_way() {
            let begun = Instant::now();
            self.settle_checkpoint(true)?;
            self.note_wait(begun.elapsed());
        }
        Ok(())
    }

    /// Before parameters, moments or the average change: what a checkpoint or a copy in memory has of them is copied.
    pub(super) fn settle_copy(&mut self) -> Result<(), TrainError> {
        self.settle_memory()?;
        let _writing = self.checkpoints.is_under_way().then(|| self.heartbeat.writing());
        let settled = self.checkpoints.settle();
        settled.map_err(|source| self.unwritten(self.done, source))
    }

    /// After a step: begins a copy in memory, where one is kept.
    pub(super) fn keep_in_memory(&mut self) -> Result<(), TrainError> {
        if self.memory_copies.is_none() {
            return Ok(());
        }
        // What comes behind the step was not done yet when this copy was made.
        let owes = self.plan.is_checkpoint(self.done);
        let manifest = self.manifest(None, owes);
        let step = self.done;
        let Some(copies) = &mut self.memory_copies else {
            return Ok(());
        };
        let _writing = self.heartbeat.writing();
        let begun = copies.begin(&snapshot(&self.model), manifest);
        begun.map_err(|source| TrainError::Checkpoint { step, source })
    }

    /// Before the ranks agree on a step: the copy in memory of the one before is whole.
    pub(super) fn settle_memory(&mut self) -> Result<(), TrainError> {
        let step = self.done;
        let Some(copies) = &mut self.memory_copies else {
            return Ok(());
        };
        let _writing = self.heartbeat.writing();
        let settled = copies.settle();
        settled.map_err(|source| TrainError::Checkpoint { step, source })
    }

    /// What a checkpoint after the last step is, but for its files.
    fn manifest(&self, evaluation: Option<&EvalRecord>, evaluation_owed: bool) -> Manifest {
        let position = self.plan.position(self.done);
        let metrics = evaluation.map(figures_of).unwrap_or_default();
        let stage = &self.plan.stages()[self.phase.stage];
        Manifest {
            format: FORMAT,
            dtrain: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: dtrain_torch_shim::libtorch_version().to_owned(),
            task: self.recipe.task.to_string(),
            model: self.recipe.model_name().into(),
            classes: self.model.task.classes(),
            class_names: self.model.task.class_names().to_vec(),
            parameters: self.model.table.trained_elements(),
            step: self.done,
            epoch: position.epoch,
            step_in_epoch: position.step_in_epoch,
            stage: stage.name.clone(),
            samples: self.plan.samples_after(self.done),
            world_size: self.ranks.size(),
            loss_scale: self.precision.state(),
            ema_updates: self.model.average.as_ref().map(Average::updates),
            extra: self.model.task.extra(),
            data: Some(self.data.clone()),
            recipe: self.recipe.clone(),
            metrics,
            best: self.best.so_far().cloned(),
            evaluation_owed,
            files: Vec::new(),
        }
    }

    /// Has memory for the first checkpoint made ready while the training goes on.
    pub(super) fn prepare_checkpoint(&mut self) -> Result<(), TrainError> {
        let prepared = self.checkpoints.prepare(&snapshot(&self.model));
        prepared.map_err(|source| self.unwritten(self.done, source))
    }

    /// Whether a length of time after which a checkpoint is written has passed; for rank 0 to say.
    pub(super) fn is_due(&self) -> bool {
        let every = self.recipe.checkpoint.every.time();
        self.ranks.rank() == 0 && every.is_some_and(|every| self.saved_at.elapsed() >= every)
    }

    /// How this rank's writing stands, for the status of a step.
    pub(super) fn writing(&mut self) -> Result<f64, TrainError> {
        match self.checkpoints.progress() {
            Ok(progress) => Ok(progress.figure()),
            Err(source) => Err(self.unwritten(self.done, source)),
        }
    }

    /// After a step: goes on with the checkpoint under way, when no rank writes any more.
    pub(super) fn follow_checkpoint(&mut self, status: &Status) -> Result<(), TrainError> {
        let progress: Vec<Progress> = status
            .writing
            .iter()
            .map(|&figure| Progress::read(figure))
            .collect();
        let step = self.checkpoints.step();
        let followed = self.checkpoints.follow(&progress);
        self.conclude_checkpoint(step, followed, true)
    }

    /// At the end of the training: waits for the checkpoint under way, if there is one, which is the last and has to be there.
    pub(super) fn finish_checkpoint(&mut self) -> Result<(), TrainError> {
        self.settle_checkpoint(false)
    }

    fn settle_checkpoint(&mut self, another_follows: bool) -> Result<(), TrainError> {
        let Some(step) = self.checkpoints.step() else {
            return Ok(());
        };
        let _writing = self.heartbeat.writing();
        let mut finished = self.checkpoints.finish();
        // Rank 0 may still give it its name; in an operation of the training nobody would give signs of life for it.
        if !matches!(finished, Err(CheckpointError::Collective(_)))
            && self.has_failed_somewhere(finished.is_err())?
            && finished.is_ok()
        {
            finished = Err(CheckpointError::Peer(0));
        }
        self.conclude_checkpoint(Some(step), finished, another_follows)
    }

    /// Whether any rank has failed. Returns when every rank has come here: on a GPU only the stream would wait, so the hosts meet.
    fn has_failed_somewhere(&self, failed: bool) -> Result<bool, TrainError> {
        let failures = Tensor::f_from_slice(&[i64::from(failed)])?;
        self.ranks.all_reduce(&failures, ReduceOp::Sum)?.wait()?;
        Ok(failures.f_int64_value(&[0])? > 0)
    }

    /// Tells of a checkpoint that is there, or of one that could not be written: it ends the run, unless the recipe says otherwise
    /// and another will follow. Nothing that only this rank knows may count here: the ranks end or go on together.
    fn conclude_checkpoint(
        &mut self,
        step: Option<u64>,
        outcome: Result<Option<Written>, CheckpointError>,
        another_follows: bool,
    ) -> Result<(), TrainError> {
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(written)) => self.report_checkpoint(written),
            Err(source) => {
                let step = step.unwrap_or(self.done);
                let error = self.unwritten(step, source);
                let goes_on = self.recipe.checkpoint.on_failure == OnFailure::Continue;
                if goes_on && another_follows && error.is_of_disk() {
                    tracing::warn!(
                        "{error}; the training goes on, and the next one is tried when its time comes"
                    );
                    self.best.forget(step);
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    fn report_checkpoint(&mut self, written: Written) -> Result<(), TrainError> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let record = CheckpointRecord {
            step: written.step,
            bytes: written.bytes,
            blocked_ms: ms(written.blocked),
            write_ms: ms(written.wrote),
            total_ms: ms(written.took),
        };
        if written.folder.is_some() {
            self.summary.checkpoint = written.folder;
        }
        match &mut self.metrics {
            Some(metrics) => metrics.checkpoint(&record).map_err(TrainError::Metrics),
            None => Ok(()),
        }
    }

    /// Says once that checkpoints are asked for more often than they can be written.
    fn note_wait(&mut self, waited: Duration) {
        /// Shorter waits are not worth a word.
        const WORTH_A_WORD: Duration = Duration::from_millis(200);
        if waited >= WORTH_A_WORD && !std::mem::replace(&mut self.told_of_waiting, true) {
            self.progress.note(format!(
                "waited {:.1} s for the checkpoint before: they are asked for more often than the disk takes them; a larger \
                 checkpoint.every costs less",
                waited.as_secs_f64()
            ));
        }
    }

    fn unwritten(&self, step: u64, source: CheckpointError) -> TrainError {
        TrainError::Checkpoint { step, source }
    }

    /// The best checkpoint, for result.json and for people.
    pub(super) fn conclude_best(&mut self) {
        let Some(best) = self.best.so_far() else {
            return;
        };
        let value = named(&best.by.figure, best.value);
        self.progress.note(format!(
            "best checkpoint ({}): {value} after step {}",
            best.by, best.step
        ));
        self.summary.result.best = Some(best.clone());
    }
}

/// What a checkpoint of the model is made of.
fn snapshot(model: &Model) -> Snapshot<'_> {
    Snapshot {
        registry: &model.registry,
        table: &model.table,
        keeps_parameters: model.task.keeps_parameters(),
    }
}

/// A figure with its name, for people.
fn named(name: &str, value: f64) -> String {
    format!("{} {}", name.replace('_', " "), figure(name, value))
}

pub(crate) fn figures_of(record: &EvalRecord) -> BTreeMap<String, f64> {
    let mut figures: BTreeMap<String, f64> = record.metrics.0.iter().cloned().collect();
    figures.insert("loss".into(), record.loss);
    figures
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_checkpoint_that_could_not_be_written_is_not_the_best() {
        let mut best = BestKeeper::new(Some("min loss".parse().unwrap()), None);
        let see = |best: &mut BestKeeper, loss, step| best.see(&[("loss".to_owned(), loss)].into(), step);
        let step = |best: &BestKeeper| best.so_far().map(|best| best.step);
        assert_eq!(see(&mut best, 2.0, 16), Some(true));
        assert_eq!(see(&mut best, 1.0, 32), Some(true));
        // A later one that is not the best changes nothing.
        best.forget(48);
        assert_eq!(step(&best), Some(32));
        best.forget(32);
        assert_eq!(step(&best), Some(16));
        assert_eq!(see(&mut best, 1.5, 64), Some(true));
        best.forget(32);
        assert_eq!(step(&best), Some(64));
    }
}
