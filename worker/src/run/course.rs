//! The progress of a run, and its next step.

use std::time::Duration;

use dtrain_common::manifest::{Base, DataFingerprint};
use dtrain_recipe::{AnyRecipe, Recipe};

use super::best::BestKeeper;
use super::patience::Patience;
use crate::course::{PhaseId, RunPlan, StagePlan};
use crate::data::Field;
use crate::metrics::{StepHashes, StepRecord, WaitMs};
use crate::state::Stages;
use crate::step::{Replica, StepPlan, Taken};

/// A run's plan and progress.
pub(crate) struct Course {
    pub(crate) plan: RunPlan,
    /// The parameters that each of its stages trains.
    pub(crate) stages: Stages,
    /// Steps taken since the beginning of the run.
    pub(crate) done: u64,
    pub(crate) current: LaidOutPhase,
    /// A fingerprint of the training data, for the manifests of checkpoints.
    pub(crate) data: DataFingerprint,
    /// The hash of `model.file`, likewise.
    pub(crate) program: Option<String>,
    /// What checkpoints lack; only on rank 0.
    pub(crate) base: Option<Base>,
    /// The recipe as checkpoints hold it.
    pub(crate) recipe: AnyRecipe,
    pub(crate) best: BestKeeper,
    pub(crate) patience: Patience,
}

/// The phase that the model is laid out for: the phase of the last step, or the first phase.
pub(crate) struct LaidOutPhase {
    pub(crate) id: PhaseId,
    pub(crate) is_announced: bool,
    /// Whether the parameters are in the order of backward.
    pub(crate) is_laid_out: bool,
}

impl LaidOutPhase {
    pub(crate) fn new(id: PhaseId) -> Self {
        Self { id, is_announced: false, is_laid_out: false }
    }
}

impl Course {
    pub(crate) fn stage(&self) -> &StagePlan {
        &self.plan.stages[self.current.id.stage]
    }

    /// Returns why the run ends before its last step, if `train.stop_early` ends it now.
    pub(crate) fn early_end(&self) -> Option<String> {
        self.patience.end().filter(|_| self.done < self.plan.total_steps)
    }

    pub(crate) fn plan_step(&self, recipe: &Recipe, replica: &Replica, rank: usize) -> StepPlan {
        let position = self.plan.position(self.done);
        let samples = self.plan.step_samples(position);
        let step = self.done + 1;
        StepPlan {
            step,
            samples,
            micro_batches: self.plan.micro_ranges(position, rank),
            lr: self.plan.lr(self.done),
            seed: recipe.train.seed,
            expected_weight: samples as f64 * replica.model.task.facts().weight_per_sample,
            clip: recipe.optim.clip,
            group: self.plan.stage(self.done).partition.group(),
            is_evaluated: self.plan.is_evaluation(step),
            is_rehearsed: false,
        }
    }

    /// Returns the record of the last step. `elapsed` is the time since training began in this process.
    /// `fields` are those of the samples.
    pub(crate) fn record(
        &self,
        plan: &StepPlan,
        taken: &Taken,
        elapsed: Duration,
        fields: &[Field],
    ) -> StepRecord {
        let position = self.plan.position(plan.step - 1);
        let step_s = taken.took.as_secs_f64();
        StepRecord {
            step: plan.step,
            epoch: position.epoch + 1,
            stage: self.plan.stages[position.stage].name.clone(),
            samples: self.plan.samples_after(plan.step),
            loss: taken.status.totals.loss(),
            lr: plan.lr,
            grad_norm: taken.norm,
            loss_scale: taken.loss_scale,
            samples_per_s: plan.samples as f64 / step_s,
            step_ms: step_s * 1e3,
            elapsed_s: elapsed.as_secs_f64(),
            wait_ms: WaitMs { data: taken.data_wait.as_secs_f64() * 1e3, comm: taken.comm_ms },
            memory: taken.memory,
            hashes: StepHashes::of(&taken.hashes, fields),
            skipped: taken.skipped,
        }
    }
}
