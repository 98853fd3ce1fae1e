//! The lines of `metrics.jsonl`.

use std::collections::BTreeMap;

use dtrain_common::metrics::{NO_FIGURES, RESERVED};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A step's line. A number that is not finite is null in the file.
#[derive(Debug, Deserialize)]
pub(super) struct StepLine<'a> {
    pub(super) step: u64,
    #[serde(default)]
    pub(super) epoch: Option<u64>,
    #[serde(default)]
    pub(super) stage: Option<String>,
    #[serde(default)]
    pub(super) loss: Option<f64>,
    #[serde(default)]
    pub(super) lr: Option<f64>,
    #[serde(default)]
    pub(super) grad_norm: Option<f64>,
    #[serde(default)]
    pub(super) loss_scale: Option<f64>,
    #[serde(default)]
    pub(super) samples_per_s: Option<f64>,
    #[serde(default)]
    pub(super) step_ms: Option<f64>,
    #[serde(default)]
    pub(super) elapsed_s: Option<f64>,
    #[serde(default)]
    pub(super) wait_ms: Wait,
    #[serde(default, borrow)]
    pub(super) memory: Memory<'a>,
    #[serde(default)]
    pub(super) skipped: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wait {
    pub(super) data: Option<f64>,
    pub(super) comm: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Memory<'a> {
    #[serde(default)]
    pub(super) peak: Option<f64>,
    /// Read only at the largest peak.
    #[serde(default, borrow)]
    pub(super) owners: Option<&'a RawValue>,
}

/// A line that is not a step's.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OtherLine {
    Eval(EvalLine),
    Test(EvalLine),
    Stage(StageLine),
    Oom(OomLine),
    Checkpoint(CheckpointLine),
    Rollback(RollbackLine),
}

#[derive(Debug, Deserialize)]
pub(super) struct EvalLine {
    pub(super) step: u64,
    #[serde(default)]
    pub(super) set: Option<String>,
    #[serde(default)]
    pub(super) best: Option<bool>,
    #[serde(default)]
    pub(super) samples: Option<u64>,
    #[serde(default)]
    pub(super) unreadable: u64,
    #[serde(default)]
    pub(super) eval_ms: Option<f64>,
    #[serde(default)]
    pub(super) checkpoint: Option<String>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

impl EvalLine {
    /// Returns loss and figures by name; null is NaN.
    pub(super) fn figures(&self) -> BTreeMap<String, f64> {
        let is_figure =
            |name: &str| name == "loss" || !NO_FIGURES.contains(&name) && !RESERVED.contains(&name);
        let value = |value: &Value| match value {
            Value::Null => Some(f64::NAN),
            other => other.as_f64(),
        };
        let named = self.rest.iter().filter(|(name, _)| is_figure(name));
        named.filter_map(|(name, found)| Some((name.clone(), value(found)?))).collect()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct StageLine {
    pub(super) step: u64,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) phase: u64,
    #[serde(default)]
    pub(super) trained: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OomLine {
    pub(super) step: u64,
    #[serde(default)]
    pub(super) ranks: Vec<u64>,
    #[serde(default)]
    pub(super) phase: String,
    #[serde(default)]
    pub(super) micro_batch: Option<FromTo>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FromTo {
    pub(super) from: u64,
    pub(super) to: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct CheckpointLine {
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) blocked_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RollbackLine {
    pub(super) from: u64,
    pub(super) to: u64,
}
