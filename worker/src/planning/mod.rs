//! The memory plan: chooses a cut that fits, from predictions. Pure arithmetic; a [`Predictor`] runs the step
//! on tensors without storage, or measures it.
//!
//! `dtrain plan` prints the [`report`], `dtrain profile` a [`Profile`]. [`Solver`] chooses a GPU's cut.

mod advice;
mod cost;
mod lr_range;
mod predictor;
mod profile;
pub(crate) mod rehearsal;
mod report;
mod search;
mod solve;
pub(crate) mod start;
mod table;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::memory::Owners;
use dtrain_common::batch::{BatchError, Partition};
use dtrain_recipe::Amp;

pub(crate) use dtrain_common::question::{
    EvalQuestion, EvalWeights, Flips, Gpu, GpuProperties, ImageForm, Input, Mode, PlanQuestion,
    PredictQuestion, ProfileQuestion, Question, RangeQuestion,
};
pub(crate) use lr_range::LrRangeTest;
pub(crate) use predictor::{SymbolicPredictor, Target};
pub(crate) use profile::{Measured, MeasuredStage, Optimal, Profile, ProfiledStage, Trial, TrialOutcome};
pub(crate) use report::{MemoryPlan, report};
pub(crate) use search::find_largest;
pub(crate) use solve::{Choice, CutRequest, Solver};

/// The division of a step: the values that the machine may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub ranks: usize,
    /// The largest micro-batch.
    pub micro_batch: usize,
    /// The precision: never `Auto`.
    pub amp: Amp,
    /// Number of the model's segments that are recomputed in backward, from the first one on.
    pub recompute: usize,
    /// Whether every rank keeps only its part of the optimizer's state.
    pub shard_optimizer: bool,
}

/// The predicted memory of a cut, on a rank with the largest share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prediction {
    pub cut: Cut,
    #[serde(rename = "way")]
    pub mode: Mode,
    /// The highest memory in bytes: the sum of `owners`.
    pub peak: u64,
    /// Bytes by owner at the peak.
    pub owners: Owners,
    /// Floating-point operations of matrix products and convolutions in a step of this rank, also recomputed
    /// ones; 0 if not counted.
    pub flops: f64,
}

/// The properties of a training that no cut changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) model: String,
    pub(crate) parameters: u64,
    /// Trained parameters of this stage.
    pub(crate) trained: u64,
    /// Samples of a step.
    pub(crate) effective_batch: usize,
    /// After scaling.
    pub(crate) learning_rate: f64,
    /// Fewest samples of a micro-batch.
    pub(crate) min_micro_batch: usize,
    /// Most samples of a micro-batch, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_micro_batch: Option<usize>,
    /// Samples that are normalised together, if that number is fixed.
    pub(crate) group: Option<usize>,
    /// Segments of the model that can be recomputed.
    pub(crate) segments: usize,
    /// Reasons in words why the result depends on the micro-batch.
    pub(crate) depends: Vec<String>,
    /// Why a step is one micro-batch of one rank, in words, if it must be.
    pub(crate) undivided: Option<String>,
}

impl Subject {
    /// Divides a step into micro-batches of at most `micro_batch` samples (`None`: a rank's whole share, or as much of it
    /// as the model takes).
    pub(crate) fn partition(
        &self,
        ranks: usize,
        micro_batch: Option<usize>,
    ) -> Result<Partition, BatchError> {
        let micro_batch = micro_batch.or(self.max_micro_batch);
        Partition::in_groups(self.effective_batch, ranks, micro_batch, self.group)
    }
}

/// Predicts the memory of cuts. `overrides` are settings as `key=value` on top of the recipe, for advice.
pub(crate) trait Predictor {
    /// A prediction failed, or the effective batch cannot be divided among the ranks.
    type Error: From<BatchError>;

    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, Self::Error>;

    /// Makes later predictions for another device, if they depend on it.
    fn set_device(&mut self, _device: PlannedDevice) {}
}

/// What predictions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PlannedDevice {
    Cpu,
    /// `None`: one of which only the memory is known.
    Gpu(Option<GpuProperties>),
}

impl PlannedDevice {
    pub(crate) fn of(gpu: &Gpu) -> Self {
        if gpu.cpu { Self::Cpu } else { Self::Gpu(gpu.properties) }
    }
}
