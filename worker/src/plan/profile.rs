//! `dtrain profile`: real steps, and what was predicted of them.

use serde::{Deserialize, Serialize};

use super::{Prediction, Subject};
use crate::memory_report::{Owners, PhasePeaks};

/// The whole answer; `--json` writes it as one object on a line. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// The device in words, such as `GPU 0 (NVIDIA H200)` or `CPU`.
    pub device: String,
    /// What tensors may take of it.
    pub budget: u64,
    /// One entry for each stage that was asked for.
    pub stages: Vec<ProfiledStage>,
}

/// One stage of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProfiledStage {
    /// What was measured.
    pub subject: Subject,
    /// A step as the recipe has it; none where it did not fit.
    pub measured: Option<MeasuredStage>,
    /// The largest micro-batch, where it was looked for.
    pub optimal: Option<Optimal>,
}

/// A step that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredStage {
    /// The stage's name.
    pub stage: String,
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// The highest memory of tensors, measured.
    pub peak: u64,
    /// By owner at that moment.
    pub owners: Owners,
    /// By phase.
    pub phases: PhasePeaks,
    /// The time of a step in milliseconds: the median of those measured.
    pub step_ms: f64,
    /// What was predicted of the same cut.
    pub predicted: Prediction,
}

/// What was found by trying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Optimal {
    /// The largest micro-batch whose peak was at most `limit`; none where not even the smallest was.
    pub largest: Option<usize>,
    /// What the peak may be: the device's memory less the margin, or the recipe's budget.
    pub limit: u64,
    /// Every try in the order of trying.
    pub tried: Vec<Tried>,
}

/// One try: a process of its own ran steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// What came of it.
    pub outcome: TriedOutcome,
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TriedOutcome {
    /// It ran, and this was its peak in bytes, whether within the limit or not.
    Ran(u64),
    /// Memory ran out.
    OutOfMemory,
    /// The process died, and how.
    Died(String),
}

impl MeasuredStage {
    /// Prediction less measurement, as a part of the measurement: 0.01 is 1% too much.
    pub(crate) fn error(&self) -> f64 {
        self.predicted.peak as f64 / (self.peak as f64).max(1.0) - 1.0
    }
}
