//! The lines of metrics.jsonl.

use std::collections::BTreeMap;

use dtrain_parts::figures::OfClasses;
use serde::{Serialize, Serializer};

use crate::data::{Field, SampleHashes};
use crate::memory::{MemoryReport, StepMemory};

/// A line of metrics.jsonl, see docs/run-directory.md: a step as it is, other records under a name.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Line<'a> {
    Eval(&'a EvalRecord),
    Test(&'a TestRecord),
    Stage(&'a StageRecord),
    /// A retry of a step or an evaluation.
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
    /// Seconds since training began in this process, including evaluations.
    pub elapsed_s: f64,
    pub wait_ms: WaitMs,
    /// Memory of rank 0 in bytes: at the end of the step and its peak, by owner and by phase.
    pub memory: StepMemory,
    #[serde(flatten)]
    pub hashes: StepHashes,
    /// Present and true if the update was skipped.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_true")]
    pub skipped: Option<SkipCause>,
}

/// Hashes of the samples of a step in hexadecimal digits; `dtrain diff` compares them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct StepHashes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// By field.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub content: BTreeMap<String, String>,
    /// Eight digits for all samples, and for each bit of a sample's number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub content_numbers: String,
}

impl StepHashes {
    /// Writes the hashes of samples with these fields.
    pub(crate) fn of(hashes: &SampleHashes, fields: &[Field]) -> Self {
        let digits = |hash: &u64| format!("{hash:016x}");
        let content = fields.iter().zip(&hashes.fields);
        Self {
            order: hashes.order.as_ref().map(digits),
            content: content.map(|(field, hash)| (field.name.to_string(), digits(hash))).collect(),
            content_numbers: hashes.numbers.iter().map(|number| format!("{number:08x}")).collect(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkipCause {
    /// The loss was not finite.
    Loss,
    /// The loss was finite, but the gradient was not.
    Gradient,
    /// No sample or pixel counted.
    Nothing,
}

impl SkipCause {
    /// Returns the cause for a skipped step with this loss and weight.
    pub(crate) fn of(loss: f64, weight: f64) -> Self {
        match (weight == 0.0, loss.is_finite()) {
            (true, _) => Self::Nothing,
            (false, false) => Self::Loss,
            (false, true) => Self::Gradient,
        }
    }

    pub(crate) fn describe(self) -> &'static str {
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

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct WaitMs {
    pub data: f64,
    pub comm: f64,
}

/// One evaluation on a whole set.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct EvalRecord {
    /// The first field: readers find the lines of a step without parsing them.
    pub step: u64,
    /// The name of the set, such as val; none for the test set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// The epoch of the step, counted from 1.
    pub epoch: u64,
    pub loss: f64,
    #[serde(flatten)]
    pub metrics: Figures,
    /// Those of them that may be half of the 95% interval of another.
    #[serde(skip)]
    pub intervals: Vec<String>,
    /// Figures by class, which have a separate file.
    #[serde(skip)]
    pub by_class: Vec<OfClasses>,
    /// Some of its samples with their predictions, which have a separate folder.
    #[serde(skip)]
    pub shown: Vec<ShownSample>,
    /// Samples that counted.
    pub samples: u64,
    /// Samples that could not be read.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable: u64,
    pub eval_ms: f64,
    /// Whether it is the best so far, if the recipe has `checkpoint.best`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<bool>,
}

/// A sample of an evaluation with its prediction, as people see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShownSample {
    /// A picture as a PNG file.
    pub(crate) png: Option<Vec<u8>>,
    pub(crate) text: Option<String>,
    pub(crate) caption: String,
}

/// An evaluation of a checkpoint: at the end of a run with `[test]`, or by `dtrain eval`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TestRecord {
    pub checkpoint: String,
    /// `average` or `raw`.
    pub weights: &'static str,
    /// Samples per batch on each rank.
    pub batch: usize,
    /// The figures, with step and epoch of the checkpoint.
    #[serde(flatten)]
    pub eval: EvalRecord,
}

/// The start of a stage, or of a phase within it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StageRecord {
    pub step: u64,
    pub number: usize,
    pub name: String,
    /// The phase that begins, counted from 1; each unfreezing begins another.
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

/// A step or an evaluation that ran out of memory and is retried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OomRecord {
    /// The step; for an evaluation, the step before it.
    pub step: u64,
    pub ranks: Vec<usize>,
    pub phase: &'static str,
    /// The largest micro-batch before and after.
    pub micro_batch: MicroBatches,
    pub grad_accum_steps: usize,
    /// Whether backward recomputes more of the model from now on.
    pub recompute: bool,
    /// From the failed allocation to the next try on rank 0; across machines, as exact as their clocks.
    pub agree_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CheckpointRecord {
    pub(crate) step: u64,
    /// Bytes of its files, without the manifest.
    pub(crate) bytes: u64,
    /// Milliseconds for which training waited on this rank.
    pub(crate) blocked_ms: f64,
    /// Milliseconds for which this rank wrote, during training.
    pub(crate) write_ms: f64,
    /// Milliseconds from the start of the checkpoint to its completion.
    pub(crate) total_ms: f64,
}

/// Two sizes of the largest micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MicroBatches {
    pub from: usize,
    pub to: usize,
}

/// Named figures in a meaningful order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures(pub Vec<(String, f64)>);

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_common::metrics::NO_FIGURES;

    use super::*;

    /// `dtrain ckpt ls` takes every other number of an evaluation's line for a figure.
    #[test]
    fn fields_beside_the_figures_are_known_to_readers() {
        let record = EvalRecord {
            set: Some("val".to_owned()),
            step: 1,
            epoch: 1,
            loss: 0.5,
            metrics: Figures(vec![("accuracy".to_owned(), 0.5)]),
            intervals: Vec::new(),
            by_class: Vec::new(),
            shown: Vec::new(),
            samples: 10,
            unreadable: 1,
            eval_ms: 1.0,
            best: Some(true),
        };
        // `dtrain ckpt ls` reads the step of a line from its beginning.
        let line = serde_json::to_string(&super::super::Line::Eval(&record)).unwrap();
        assert!(line.starts_with("{\"eval\":{\"step\":1,\"set\":\"val\""), "{line}");
        let value = serde_json::to_value(&record).unwrap();
        let figures = value.as_object().unwrap().keys().filter(|key| !NO_FIGURES.contains(&key.as_str()));
        assert_eq!(figures.collect::<Vec<_>>(), ["accuracy", "loss"]);
    }
}
