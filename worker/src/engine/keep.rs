//! What is kept of a training: its evaluations, and checkpoints with the best of them.

use std::collections::BTreeMap;

use dtrain_common::manifest::{BestSoFar, FORMAT, Manifest};
use dtrain_common::recipe::Best;

use super::ema::Ema;
use super::error::TrainError;
use super::replay::patiently;
use super::trainer::Trainer;
use crate::checkpoint::{self, Snapshot};
use crate::metrics::EvalRecord;

/// The best checkpoint of a run, by the figure that `checkpoint.best` names; nothing without that setting.
#[derive(Debug, Clone, Default)]
pub struct BestKeeper {
    by: Option<Best>,
    so_far: Option<BestSoFar>,
}

impl BestKeeper {
    /// Goes on from `earlier`, the best of the run that is resumed, where it was compared by the same figure.
    pub fn new(by: Option<Best>, earlier: Option<BestSoFar>) -> Self {
        let so_far = earlier.filter(|earlier| Some(&earlier.by) == by.as_ref());
        Self { by, so_far }
    }

    /// The best so far.
    pub fn so_far(&self) -> Option<&BestSoFar> {
        self.so_far.as_ref()
    }

    /// Forgets what it is compared with: the next one is the best.
    pub fn restart(&mut self) {
        self.so_far = None;
    }

    /// An evaluation after `step`: whether it is the best; None where none is sought.
    fn see(&mut self, figures: &BTreeMap<String, f64>, step: u64) -> Option<bool> {
        let by = self.by.as_ref()?;
        let value = figures.get(&by.figure).copied().unwrap_or(f64::NAN);
        let is_best = by.is_better(value, self.so_far.as_ref().map(|best| best.value));
        if is_best {
            let by = by.clone();
            self.so_far = Some(BestSoFar { by, value, step });
        }
        Some(is_best)
    }
}

impl Trainer<'_> {
    /// Evaluates, tells of it, and writes a checkpoint.
    pub(super) fn evaluate_and_save(&mut self) -> Result<(), TrainError> {
        let mut evaluation = self.evaluate()?;
        evaluation.best = self.best.see(&figures_of(&evaluation), self.done);
        self.report_evaluation(&evaluation)?;
        self.save(Some(&evaluation))
    }

    fn report_evaluation(&mut self, record: &EvalRecord) -> Result<(), TrainError> {
        if let Some(metrics) = &mut self.metrics {
            metrics.eval(record).map_err(TrainError::Metrics)?;
        }
        let figures: String = record
            .metrics
            .0
            .iter()
            .map(|(name, value)| format!(", {}", figure(name, *value)))
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

    /// Rank 0 writes; the others give it what they alone hold, go on, and meet it in the next reduction. The buffers are one
    /// on all ranks already.
    pub(super) fn save(&mut self, evaluation: Option<&EvalRecord>) -> Result<(), TrainError> {
        let state = self.model.optimizer_state(&self.ranks)?;
        if self.ranks.rank() != 0 {
            return Ok(());
        }
        let position = self.plan.position(self.done);
        let metrics = evaluation.map(figures_of).unwrap_or_default();
        let manifest = Manifest {
            format: FORMAT,
            dtrain: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: dtrain_torch_shim::libtorch_version().to_owned(),
            task: self.recipe.task.to_string(),
            model: self.recipe.model_name().into(),
            classes: self.model.task.classes(),
            parameters: self.model.arena.parameters(),
            step: self.done,
            epoch: position.epoch,
            step_in_epoch: position.step_in_epoch,
            stage: self.plan.stages()[self.phase.stage].name.clone(),
            samples: self.plan.samples_after(self.done),
            world_size: self.ranks.size(),
            loss_scale: self.precision.state(),
            ema_updates: self.model.ema.as_ref().map(Ema::updates),
            extra: self.model.task.extra(),
            recipe: self.recipe.clone(),
            metrics,
            best: self.best.so_far().cloned(),
            files: Vec::new(),
        };
        let snapshot = || Snapshot {
            registry: &self.model.registry,
            arena: &self.model.arena,
            buffers: &self.model.buffers,
            ema: self.model.ema.as_ref().map(Ema::flats),
            resting: &self.model.resting,
            state: &state,
            steps: self.model.optimizer.steps(),
            manifest: manifest.clone(),
        };
        let keep = self.recipe.checkpoint.keep;
        let folder = patiently(self.device, || checkpoint::write(self.run_dir, snapshot(), keep)).map_err(
            |source| TrainError::Checkpoint {
                step: self.done,
                source,
            },
        )?;
        self.summary.checkpoint = Some(folder);
        Ok(())
    }

    /// The best checkpoint, for result.json and for people.
    pub(super) fn conclude_best(&mut self) {
        let Some(best) = self.best.so_far() else {
            return;
        };
        let value = figure(&best.by.figure, best.value);
        self.progress.note(format!(
            "best checkpoint ({}): {value} after step {}",
            best.by, best.step
        ));
        self.summary.result.best = Some(best.clone());
    }
}

/// A figure for people: shares in percent.
fn figure(name: &str, value: f64) -> String {
    match name {
        "accuracy" | "pixel_accuracy" | "mean_iou" => {
            format!("{} {:.2}%", name.replace('_', " "), value * 100.0)
        }
        _ => format!("{} {value:.4}", name.replace('_', " ")),
    }
}

fn figures_of(record: &EvalRecord) -> BTreeMap<String, f64> {
    let mut figures: BTreeMap<String, f64> = record.metrics.0.iter().cloned().collect();
    figures.insert("loss".into(), record.loss);
    figures
}
