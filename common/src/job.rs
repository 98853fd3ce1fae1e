//! What the launcher asks of the worker program, as one argument: `dtrain-worker RECIPE --set ... --job JSON`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

/// A job besides training: answers on standard output, ends with 0, 2 (recipe), 3 (memory) or 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "lowercase")]
pub enum Job {
    Plan(PlanJob),
    Profile(ProfileJob),
    Eval(EvalJob),
}

/// `dtrain plan`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanJob {
    pub gpus: Vec<Gpu>,
    /// Ranks, at least 1, each on a GPU of its own.
    pub nproc: usize,
    pub way: Way,
    /// The stage, or `all`; without it the first.
    #[serde(default)]
    pub stage: Option<String>,
    /// Only the micro-batch of each GPU, in one sentence each.
    #[serde(default)]
    pub brief: bool,
    /// JSON instead of a table: one object, a line, for each stage.
    #[serde(default)]
    pub json: bool,
}

/// A GPU to plan for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// A name of the launcher's table, a size, or what the driver calls it.
    pub name: String,
    pub bytes: u64,
    /// Whether it computes in bfloat16 itself; what `precision.amp = "auto"` is depends on it.
    pub bf16: bool,
}

impl Gpu {
    /// A GPU of which only the memory is known: a recent one.
    pub fn of_size(bytes: u64) -> Self {
        Self { name: ByteSize(bytes).exact(), bytes, bf16: true }
    }
}

/// How a prediction came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The step was run on tensors without storage.
    Symbolic,
    /// Steps were run at two micro-batches, and the rest follows by a straight line.
    Measured,
}

impl Way {
    /// `predicted (symbolic)`, as every figure of it is labelled.
    pub fn label(self) -> &'static str {
        match self {
            Self::Symbolic => "predicted (symbolic)",
            Self::Measured => "predicted (measured)",
        }
    }
}

/// `dtrain profile`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileJob {
    /// The stage, or `all`.
    pub stage: String,
    /// Whether the largest micro-batch that fits is looked for.
    #[serde(default)]
    pub find_optimal: bool,
    /// Ranks of the run for which it is measured.
    pub nproc: usize,
    #[serde(default)]
    pub json: bool,
}

/// `dtrain eval`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalJob {
    /// The folder of a checkpoint, or that of a run, whose newest whole one is meant.
    pub checkpoint: PathBuf,
    #[serde(default)]
    pub weights: EvalWeights,
    /// Samples of a batch on each rank; without it what the recipe's training takes.
    #[serde(default)]
    pub batch: Option<usize>,
    #[serde(default)]
    pub json: bool,
}

/// Which weights of a checkpoint are evaluated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvalWeights {
    /// The moving average where there is one, as in training.
    #[default]
    Auto,
    Raw,
    Average,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn jobs_travel_as_json() {
        let plan = Job::Plan(PlanJob {
            gpus: vec![Gpu::of_size(1 << 34)],
            nproc: 2,
            way: Way::Symbolic,
            stage: None,
            brief: false,
            json: true,
        });
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            text,
            r#"{"job":"plan","gpus":[{"name":"16 GiB","bytes":17179869184,"bf16":true}],"nproc":2,"way":"symbolic","stage":null,"brief":false,"json":true}"#
        );
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), plan);
        let profile: Job = serde_json::from_str(r#"{"job":"profile","stage":"all","nproc":1}"#).unwrap();
        assert!(matches!(profile, Job::Profile(ProfileJob { find_optimal: false, .. })));
        assert!(serde_json::from_str::<Job>(r#"{"job":"train"}"#).is_err());
    }
}
