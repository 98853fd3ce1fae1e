//! The lines of `metrics.jsonl`.

use std::collections::BTreeMap;

use dtrain_common::metrics::{NO_FIGURES, RESERVED};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A step's line. A number that is not finite is null in the file.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StepLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
    #[serde(default)]
    pub(crate) stage: Option<String>,
    #[serde(default)]
    pub(crate) loss: Option<f64>,
    #[serde(default)]
    pub(crate) lr: Option<f64>,
    #[serde(default)]
    pub(crate) grad_norm: Option<f64>,
    #[serde(default)]
    pub(crate) loss_scale: Option<f64>,
    #[serde(default)]
    pub(crate) samples_per_s: Option<f64>,
    #[serde(default)]
    pub(crate) step_ms: Option<f64>,
    #[serde(default)]
    pub(crate) elapsed_s: Option<f64>,
    #[serde(default)]
    pub(crate) wait_ms: Wait,
    #[serde(default)]
    pub(crate) memory: Memory,
    #[serde(default)]
    pub(crate) skipped: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wait {
    pub(crate) data: Option<f64>,
    pub(crate) comm: Option<f64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Memory {
    pub(crate) peak: Option<f64>,
    /// Read only at the largest peak.
    pub(crate) owners: Option<Box<RawValue>>,
}

/// A line that is not a step's.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OtherLine {
    Eval(EvalLine),
    Test(EvalLine),
    Stage(StageLine),
    Oom(OomLine),
    Checkpoint(CheckpointLine),
    Rollback(RollbackLine),
}

#[derive(Debug, Deserialize)]
pub(crate) struct EvalLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) set: Option<String>,
    #[serde(default)]
    pub(crate) best: Option<bool>,
    #[serde(default)]
    pub(crate) samples: Option<u64>,
    #[serde(default)]
    pub(crate) unreadable: u64,
    #[serde(default)]
    pub(crate) eval_ms: Option<f64>,
    #[serde(default)]
    pub(crate) checkpoint: Option<String>,
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

impl EvalLine {
    /// Returns the name of its set.
    pub(crate) fn set_name(&self) -> &str {
        self.set.as_deref().unwrap_or("test")
    }

    /// Returns loss and figures by name; null is NaN.
    pub(crate) fn figures(&self) -> BTreeMap<String, f64> {
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
pub(crate) struct StageLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) phase: u64,
    #[serde(default)]
    pub(crate) trained: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OomLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) ranks: Vec<u64>,
    #[serde(default)]
    pub(crate) phase: String,
    #[serde(default)]
    pub(crate) micro_batch: Option<FromTo>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FromTo {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CheckpointLine {
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) blocked_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RollbackLine {
    pub(crate) from: u64,
    pub(crate) to: u64,
}
