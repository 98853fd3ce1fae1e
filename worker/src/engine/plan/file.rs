//! RUN_DIR/plan.json.

use crate::memory_report::StateBytes;
use crate::plan::Prediction;
use serde::Serialize;

/// RUN_DIR/plan.json: the partition chosen, and the memory that it is predicted to take.
#[derive(Debug, Serialize)]
pub struct PlanFile {
    /// Samples per optimizer step, over all ranks.
    pub effective_batch: usize,
    /// Ranks.
    pub nproc: usize,
    /// The largest micro-batch.
    pub micro_batch: usize,
    /// Micro-steps per step of the busiest rank.
    pub grad_accum_steps: usize,
    /// The cutting in words.
    pub partition: String,
    /// What makes the result depend on the cutting, a sentence each.
    pub warnings: Vec<String>,
    /// Where the tensors lie.
    pub device: String,
    /// The learning rate after scaling.
    pub learning_rate: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// Steps of the run.
    pub total_steps: u64,
    /// Samples of the training and test sets.
    pub train_samples: u64,
    /// Samples of the test set.
    pub test_samples: u64,
    /// Trainable parameters.
    pub parameters: u64,
    /// The stages, where the recipe has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageFile>,
    /// Predicted, not measured: the bytes of a rank that last from step to step, by owner.
    pub predicted_bytes: StateBytes,
    /// What the tensors of a rank may take in bytes, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Predicted, not measured: what the cut of every stage takes, where one was chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Prediction>,
}

/// A stage in plan.json.
#[derive(Debug, Serialize)]
pub struct StageFile {
    /// Its name.
    pub name: String,
    /// The number of its first step, counted from 1 over the run, and that of its last.
    pub steps: [u64; 2],
    /// Samples per optimizer step.
    pub effective_batch: usize,
    /// The largest micro-batch.
    pub micro_batch: usize,
    /// Micro-steps per step of the busiest rank.
    pub grad_accum_steps: usize,
    /// The cutting in words.
    pub partition: String,
    /// The learning rate after scaling.
    pub learning_rate: f64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// The parts between which something is unfrozen; at least one.
    pub phases: Vec<PhaseFile>,
}

/// A phase of a stage in plan.json.
#[derive(Debug, Serialize)]
pub struct PhaseFile {
    /// The number of its first step, counted from 1 over the run.
    pub first_step: u64,
    /// Trained parameters.
    pub parameters: u64,
}
