//! The lines of metrics.jsonl.

use serde::{Serialize, Serializer};

use crate::memory::StepMemory;
use crate::memory_report::MemoryReport;

/// A line of metrics.jsonl: a step as it is, anything else under the name of what it tells. docs/run-directory.md describes the fields.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Line<'a> {
    Eval(&'a EvalRecord),
    Test(&'a TestRecord),
    Stage(&'a StageRecord),
    /// A step or an evaluation that is taken again.
    Oom(&'a OomRecord),
    Checkpoint(&'a CheckpointRecord),
    #[serde(untagged)]
    Step(&'a StepRecord),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StepRecord {
    pub step: u64,
    pub epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    pub samples: u64,
    /// Mean loss over the step's samples, before the update.
    pub loss: f64,
    pub lr: f64,
    /// L2 norm of the mean gradient, before clipping.
    pub grad_norm: f64,
    pub loss_scale: f64,
    pub samples_per_s: f64,
    pub step_ms: f64,
    /// Since this process began to train, evaluations and all else included.
    pub elapsed_s: f64,
    pub wait_ms: WaitMs,
    /// Memory of rank 0, in bytes: at the step's end and the most in it, by owner and by phase.
    pub memory: StepMemory,
    /// Present and true where the update was left out.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_true")]
    pub skipped: Option<SkipCause>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkipCause {
    /// Its loss was not finite.
    Loss,
    /// Its loss was finite, and the gradient was not.
    Gradient,
    /// No sample or pixel in it counted.
    Nothing,
}

impl SkipCause {
    /// That of a skipped step of this loss and weight.
    pub(crate) fn of(loss: f64, weight: f64) -> Self {
        match (weight == 0.0, loss.is_finite()) {
            (true, _) => Self::Nothing,
            (false, false) => Self::Loss,
            (false, true) => Self::Gradient,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Loss => "the loss is not finite",
            Self::Gradient => "the gradient is not finite",
            Self::Nothing => "no sample or pixel counted",
        }
    }
}

fn as_true<S: Serializer>(_: &Option<SkipCause>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(true)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct WaitMs {
    pub data: f64,
    pub comm: f64,
}

/// One evaluation on the whole test set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EvalRecord {
    pub step: u64,
    /// The epoch that the step ended or belongs to, counted from 1.
    pub epoch: u64,
    pub loss: f64,
    #[serde(flatten)]
    pub metrics: Figures,
    pub samples: u64,
    pub eval_ms: f64,
    /// Whether it is the best so far, where the recipe asks for the best checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<bool>,
}

/// An evaluation of a checkpoint: at the end of a run with `[test]`, or by `dtrain eval`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TestRecord {
    pub checkpoint: String,
    /// `average` or `raw`.
    pub weights: &'static str,
    /// Samples of a batch on each rank.
    pub batch: usize,
    /// What was found; the step and the epoch are the checkpoint's.
    #[serde(flatten)]
    pub eval: EvalRecord,
}

/// A stage that begins, or a part of it at which something is unfrozen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StageRecord {
    pub step: u64,
    pub number: usize,
    pub name: String,
    /// The part of it that begins, counted from 1: another after every unfreezing.
    pub phase: usize,
    pub parameters: u64,
    pub trained: u64,
    pub effective_batch: usize,
    pub micro_batch: usize,
    pub grad_accum_steps: usize,
    /// The learning rate after scaling, before the schedule.
    pub learning_rate: f64,
    pub optimizer_bytes: u64,
    pub memory: MemoryReport,
}

/// A step that ran out of memory and is taken again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OomRecord {
    /// The step; for an evaluation the one after which it is made.
    pub step: u64,
    pub ranks: Vec<usize>,
    pub phase: &'static str,
    /// The largest micro-batch before and from now on.
    pub micro_batch: MicroBatches,
    pub grad_accum_steps: usize,
    /// Whether more of the model is computed again in backward since.
    pub recompute: bool,
    /// From the refusal on that rank to the beginning of the next try on rank 0, in milliseconds; over several machines it is as
    /// exact as their clocks.
    pub agree_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CheckpointRecord {
    pub(crate) step: u64,
    /// Of its files but the manifest.
    pub(crate) bytes: u64,
    /// How long the training stood still for it on this rank.
    pub(crate) blocked_ms: f64,
    /// How long this rank wrote, beside the training.
    pub(crate) write_ms: f64,
    /// From its beginning until it was there.
    pub(crate) total_ms: f64,
}

/// Two sizes of the largest micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MicroBatches {
    pub from: usize,
    pub to: usize,
}

/// Named figures in an order that means something.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures(pub Vec<(&'static str, f64)>);

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
