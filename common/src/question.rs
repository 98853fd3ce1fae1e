//! Questions of the launcher to the trainer, as an argument: `dtrain-worker RECIPE ... --job JSON`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::look::LookQuestion;
use crate::lr_range::LrRange;
use crate::recipe::{RecipeError, Resolved, Source};
use crate::units::ByteSize;

pub use crate::prediction::{Flips, ImageForm, Input, Wanted};

/// A question, which the trainer answers in place of training. It prints the answer and exits with 0, 2 (recipe), 3 (memory) or 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "lowercase")]
pub enum Question {
    Plan(PlanQuestion),
    Profile(ProfileQuestion),
    Range(RangeQuestion),
    Eval(EvalQuestion),
    Data(DataQuestion),
    Predict(PredictQuestion),
    Merge(MergeQuestion),
    Check(CheckQuestion),
    Names(NamesQuestion),
    Resolve(ResolveQuestion),
    /// Prints the JSON Schema of the trainer's recipes. Needs no recipe.
    Schema,
    Look(LookQuestion),
}

/// `dtrain ckpt export` of a checkpoint that lacks the parameters of its base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MergeQuestion {
    pub checkpoint: PathBuf,
    /// The safetensors file to write.
    pub out: PathBuf,
    /// Whether an existing file is replaced.
    pub force: bool,
    /// Whether the moving average takes the place of trained weights, if there is one.
    pub average: bool,
    /// The type of floating-point tensors; by default that in which the training holds them, and float32 of merged ones.
    pub floats: Option<Floats>,
}

/// A type of floating-point tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Floats {
    F32,
    Bf16,
    F16,
}

/// `dtrain plan`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanQuestion {
    pub gpus: Vec<Gpu>,
    /// Number of ranks, at least 1; each has one GPU.
    pub nproc: usize,
    #[serde(rename = "way")]
    pub mode: Mode,
    /// The stage, or `all`; the default is the first.
    #[serde(default)]
    pub stage: Option<String>,
    /// Print only the micro-batch of each GPU, in one sentence each.
    #[serde(default)]
    pub brief: bool,
    /// Print JSON instead of a table: one object on one line for each stage.
    #[serde(default)]
    pub json: bool,
}

/// A GPU to plan for, or a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// A name of the launcher's table, a size, or the driver's name.
    pub name: String,
    pub bytes: u64,
    /// Whether it supports bfloat16; `precision.amp = "auto"` depends on it.
    pub bf16: bool,
    /// Whether libtorch for CUDA 13 runs on it; true if unknown.
    #[serde(default = "yes")]
    pub supported: bool,
    /// Whether it is a CPU, whose tensors are in the machine's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cpu: bool,
    /// What the scratch memory of its kernels depends on, if known.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub properties: Option<GpuProperties>,
}

/// The size and the generation of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GpuProperties {
    pub multiprocessors: u32,
    /// Ten times the compute capability: 86 for 8.6.
    pub capability: u32,
}

fn yes() -> bool {
    true
}

/// Follows the name of a GPU that is not [`Gpu::supported`].
pub const UNSUPPORTED: &str =
    "libtorch 2.11 for CUDA 13 does not run on it: needs compute capability 7.5 or newer";

impl Gpu {
    /// Returns a recent GPU of which only the memory is known.
    pub fn of_size(bytes: u64) -> Self {
        let name = ByteSize(bytes).exact();
        Self { name, bytes, bf16: true, supported: true, cpu: false, properties: None }
    }

    /// Returns a CPU with this memory for the run; 0 for the free memory of the machine that plans.
    pub fn cpu(name: &str, bytes: u64) -> Self {
        Self { name: name.to_owned(), cpu: true, bf16: false, ..Self::of_size(bytes) }
    }
}

/// Method of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The step ran on tensors without storage.
    Symbolic,
    /// Steps ran at two micro-batches; the rest is a linear fit.
    Measured,
}

impl Mode {
    /// Returns the label of predicted figures, such as `predicted (symbolic)`.
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
pub struct ProfileQuestion {
    /// The stage, or `all`.
    pub stage: String,
    /// Whether to search for the largest micro-batch that fits.
    #[serde(default)]
    pub find_optimal: bool,
    /// Number of ranks of the measured run.
    pub nproc: usize,
    #[serde(default)]
    pub json: bool,
}

/// `dtrain profile --lr-range`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeQuestion {
    pub range: LrRange,
    #[serde(default)]
    pub json: bool,
}

/// `dtrain eval`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalQuestion {
    /// The folder of a checkpoint, or of a run: then its newest whole checkpoint is used.
    pub checkpoint: PathBuf,
    #[serde(default)]
    pub weights: EvalWeights,
    /// Batch of each rank in samples; the default is the recipe's micro-batch in training.
    #[serde(default)]
    pub batch: Option<usize>,
    #[serde(default)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvalWeights {
    /// The moving average if the checkpoint has one, as in training.
    #[default]
    Auto,
    Raw,
    Average,
}

/// `dtrain data`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataQuestion {
    /// The PNG file to draw samples into.
    #[serde(default)]
    pub show: Option<PathBuf>,
    /// Training samples to draw.
    pub samples: usize,
    /// The epoch of the samples to draw, from 0.
    pub epoch: u64,
    #[serde(default)]
    pub json: bool,
}

/// `dtrain predict`. The recipe is that of the checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictQuestion {
    /// The folder of the checkpoint.
    pub checkpoint: PathBuf,
    #[serde(default)]
    pub weights: EvalWeights,
    /// Batch of each rank in samples; the default is the recipe's micro-batch in training.
    #[serde(default)]
    pub batch: Option<usize>,
    pub input: Input,
    /// Most inputs, the first of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<usize>,
    /// The file or folder to write.
    pub out: PathBuf,
    /// What is written, and of what.
    #[serde(default)]
    pub wanted: Wanted,
    /// The overrides of the recipe, which are part of the request.
    #[serde(default)]
    pub set: Vec<String>,
    /// Print one line of JSON instead of the summary.
    #[serde(default)]
    pub json: bool,
}

/// Checks and resolves a recipe. The worker reads [`Unresolved`] from standard input, prints a [`ResolveAnswer`] and exits
/// with 0. Needs no other recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveQuestion {
    /// Whether to check that the recipe's files and folders can be read.
    pub check_paths: bool,
}

/// A recipe as the user states it: as the launcher read it, which may be from a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unresolved {
    pub source: Source,
    pub overrides: Vec<String>,
}

/// What the trainer says about a recipe.
pub type ResolveAnswer = Result<Resolved, RecipeError>;

/// `dtrain diff` of runs with changed samples: the worker prints the names of training samples as a JSON list, null for missing ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamesQuestion {
    pub samples: Vec<u32>,
}

/// The end of `dtrain import`: compares exported programs with results of PyTorch. Needs no recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckQuestion {
    /// Folders with a `check.json` each. The worker prints a [`CheckAnswer`] for each, on a line.
    pub folders: Vec<PathBuf>,
}

/// The comparison of one program with PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckAnswer {
    pub folder: PathBuf,
    /// The compared cases, in order.
    pub cases: Vec<CaseAnswer>,
    /// Why nothing could be compared.
    #[serde(default)]
    pub error: Option<String>,
}

/// The comparison of one case, such as a training step of three samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CaseAnswer {
    pub name: String,
    /// The largest relative difference, and the tensor that has it.
    #[serde(default)]
    pub largest: f64,
    #[serde(default)]
    pub of: String,
    /// The recomputed segments.
    #[serde(default)]
    pub recomputed: usize,
    /// The operations whose random numbers depend on the micro-batch, with their places in the model.
    #[serde(default)]
    pub by_micro_batch: Vec<String>,
    /// Why the case failed, or which tensor differs.
    #[serde(default)]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn jobs_travel_as_json() {
        let plan = Question::Plan(PlanQuestion {
            gpus: vec![Gpu::of_size(1 << 34)],
            nproc: 2,
            mode: Mode::Symbolic,
            stage: None,
            brief: false,
            json: true,
        });
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            text,
            r#"{"job":"plan","gpus":[{"name":"16 GiB","bytes":17179869184,"bf16":true,"supported":true}],"nproc":2,"way":"symbolic","stage":null,"brief":false,"json":true}"#
        );
        assert_eq!(serde_json::from_str::<Question>(&text).unwrap(), plan);
        let profile: Question = serde_json::from_str(r#"{"job":"profile","stage":"all","nproc":1}"#).unwrap();
        assert!(matches!(profile, Question::Profile(ProfileQuestion { find_optimal: false, .. })));
        assert!(serde_json::from_str::<Question>(r#"{"job":"train"}"#).is_err());
    }

    #[test]
    fn a_prediction_travels_as_json() {
        let wanted = Wanted { windows: Some(0.25), flips: Flips::Both, ..Wanted::default() };
        let question = Question::Predict(PredictQuestion {
            checkpoint: "run/checkpoints/step-00000001".into(),
            weights: EvalWeights::Auto,
            batch: Some(3),
            input: Input::Prompt("To be".into()),
            first: None,
            out: "out.csv".into(),
            wanted,
            set: vec!["data.workers=2".into()],
            json: false,
        });
        let text = serde_json::to_string(&question).unwrap();
        assert_eq!(serde_json::from_str::<Question>(&text).unwrap(), question);
        let least = r#"{"job":"predict","checkpoint":"c","input":{"path":"a"},"out":"o"}"#;
        assert!(matches!(serde_json::from_str(least).unwrap(), Question::Predict(_)));
    }
}
