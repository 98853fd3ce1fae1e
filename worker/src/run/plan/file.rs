//! RUN_DIR/plan.json.

use crate::memory_report::StateBytes;
use crate::plan::Prediction;
use serde::Serialize;

/// RUN_DIR/plan.json: the partition chosen, and the memory that it is predicted to take.
#[derive(Debug, Serialize)]
pub(crate) struct PlanFile {
    /// Samples per optimizer step, over all ranks.
    pub(crate) effective_batch: usize,
    pub(crate) nproc: usize,
    pub(crate) micro_batch: usize,
    /// Micro-steps per step of the busiest rank.
    pub(crate) grad_accum_steps: usize,
    pub(crate) partition: String,
    /// What makes the result depend on the cutting, a sentence each.
    pub(crate) warnings: Vec<String>,
    pub(crate) device: String,
    pub(crate) learning_rate: f64,
    pub(crate) warmup_steps: u64,
    pub(crate) steps_per_epoch: u64,
    pub(crate) total_steps: u64,
    /// Samples of the training and test sets.
    pub(crate) train_samples: u64,
    pub(crate) test_samples: u64,
    pub(crate) parameters: u64,
    /// The stages, where the recipe has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stages: Vec<StageFile>,
    /// Predicted, not measured: the bytes of a rank that last from step to step, by owner.
    pub(crate) predicted_bytes: StateBytes,
    /// What the tensors of a rank may take in bytes, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget_bytes: Option<u64>,
    /// Predicted, not measured: what the cut of every stage takes, where one was chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) predictions: Vec<Prediction>,
}

/// A stage in plan.json.
#[derive(Debug, Serialize)]
pub(crate) struct StageFile {
    pub(crate) name: String,
    /// The number of its first step, counted from 1 over the run, and that of its last.
    pub(crate) steps: [u64; 2],
    pub(crate) effective_batch: usize,
    pub(crate) micro_batch: usize,
    /// Micro-steps per step of the busiest rank.
    pub(crate) grad_accum_steps: usize,
    pub(crate) partition: String,
    pub(crate) learning_rate: f64,
    pub(crate) steps_per_epoch: u64,
    /// The parts between which something is unfrozen; at least one.
    pub(crate) phases: Vec<PhaseFile>,
}

/// A phase of a stage in plan.json.
#[derive(Debug, Serialize)]
pub(crate) struct PhaseFile {
    /// The number of its first step, counted from 1 over the run.
    pub(crate) first_step: u64,
    pub(crate) parameters: u64,
}
