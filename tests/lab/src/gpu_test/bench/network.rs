//! The networks, the modes of training, and the operations of a step.

use std::path::PathBuf;

use anyhow::Result;

use super::super::suite::Suite;
use super::{Case, inputs};

/// Tokens per window of GPT-2.
const CONTEXT: u64 = 1024;

/// A network that both sides train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    Resnet50,
    VitB16,
    Gpt2,
}

impl Network {
    /// Returns the name for recipes and gpu.py.
    pub(super) fn recipe(self) -> &'static str {
        match self {
            Self::Resnet50 => "resnet50",
            Self::VitB16 => "vit-b16",
            Self::Gpt2 => "gpt2",
        }
    }

    /// Returns the unit of the rate.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Resnet50 | Self::VitB16 => "images",
            Self::Gpt2 => "tokens",
        }
    }

    /// Returns the units per sample.
    pub(super) fn per_sample(self) -> u64 {
        match self {
            Self::Resnet50 | Self::VitB16 => 1,
            Self::Gpt2 => CONTEXT,
        }
    }

    /// Returns the folder of its training data, written unless it exists.
    pub(super) fn input(self, suite: &Suite<'_>) -> Result<PathBuf> {
        match self {
            Self::Resnet50 | Self::VitB16 => inputs::images(&suite.work, &inputs::IMAGES),
            Self::Gpt2 => inputs::text(&suite.work),
        }
    }

    /// Returns the model's floating-point operations of forward and backward per image or token. A
    /// multiplication with its addition counts as two; backward takes twice as many as forward.
    pub(super) fn flops(self) -> f64 {
        /// Multiplications per image, in units of 1e9: "GFLOPS" of torchvision's table of weights.
        const RESNET50: f64 = 4.089;
        const VIT_B16: f64 = 17.564;
        /// Parameters of GPT-2 without its position table, which takes part in no multiplication.
        const GPT2: f64 = 124_439_808.0 - 1024.0 * 768.0;
        const DEPTH: f64 = 12.0;
        const WIDTH: f64 = 768.0;
        match self {
            Self::Resnet50 => 3.0 * 2.0 * RESNET50 * 1e9,
            Self::VitB16 => 3.0 * 2.0 * VIT_B16 * 1e9,
            // 6 N + 12 L d T per token: PaLM (Chowdhery et al. 2022), arXiv 2204.02311, B; as in nanoGPT.
            Self::Gpt2 => 6.0 * GPT2 + 12.0 * DEPTH * WIDTH * CONTEXT as f64,
        }
    }
}

/// How a network is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// PyTorch's DistributedDataParallel, one rank, eager.
    Ddp,
    /// PyTorch eager without DDP: with one rank, dtrain has no group either.
    Eager,
    /// dtrain without graphs.
    Dtrain,
    /// dtrain with the step recorded as a CUDA graph.
    Graph,
    /// `torch.compile` with default settings.
    Compile,
    /// `torch.compile` with CUDA graphs.
    CompileGraphs,
}

impl Mode {
    /// Returns the modes of a case's round in their order. The first mode changes each round, so that a warm GPU
    /// does not always slow the same mode. Round 0 begins with PyTorch, to see whether it can run.
    pub(super) fn in_round(case: &Case, round: usize) -> Vec<Self> {
        let mut modes = vec![Self::Eager, Self::Dtrain, Self::Graph, Self::Compile];
        if case.has_goals {
            modes.insert(0, Self::Ddp);
        }
        if case.is_small {
            modes.push(Self::CompileGraphs);
        }
        let first = round % modes.len();
        modes.rotate_left(first);
        modes
    }

    /// Returns whether this mode needs Triton, whose kernels fake GPUs do not load.
    pub(super) fn compiles(self) -> bool {
        matches!(self, Self::Compile | Self::CompileGraphs)
    }

    /// Returns the name for figures and files.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Eager => "eager",
            Self::Dtrain => "dtrain",
            Self::Graph => "dtrain_graph",
            Self::Compile => "compile",
            Self::CompileGraphs => "compile_graphs",
        }
    }

    /// Returns the name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Ddp => "DDP",
            Self::Eager => "eager PyTorch",
            Self::Dtrain => "dtrain",
            Self::Graph => "dtrain with graphs",
            Self::Compile => "torch.compile",
            Self::CompileGraphs => "torch.compile with graphs",
        }
    }

    /// Returns the value of `gpu.py --way`; `None` for dtrain's modes.
    pub(super) fn pytorch(self) -> Option<&'static str> {
        match self {
            Self::Ddp => Some("ddp"),
            Self::Eager => Some("eager"),
            Self::Compile => Some("compile"),
            Self::CompileGraphs => Some("compile-graphs"),
            Self::Dtrain | Self::Graph => None,
        }
    }

    /// Returns the value of `--set` for the recipe.
    pub(super) fn setting(self) -> Option<&'static str> {
        match self {
            Self::Graph => Some("model.compile=\"graph\""),
            _ => None,
        }
    }
}

/// Returns a GPU's peak bfloat16 operations per second without sparsity, from NVIDIA's data sheets. `None` if
/// its name is not in the table or it has no bfloat16.
pub(super) fn peak_flops(gpu: &str) -> Option<f64> {
    /// Words that the name must contain, and TFLOPS; the first match counts.
    const KNOWN: [(&[&str], f64); 8] = [
        (&["H100", "PCIe"], 756.0),
        (&["H100"], 989.0),
        (&["H200"], 989.0),
        (&["B200"], 2250.0),
        (&["A100"], 312.0),
        (&["L40S"], 362.0),
        (&["A10"], 125.0),
        (&["RTX", "4090"], 165.0),
    ];
    /// Parts of a GPU, and boards and laptops of the same name with other clocks.
    const OTHERS: [&str; 4] = ["MIG", "NVL", "Laptop", "D"];
    // For example `NVIDIA A100-SXM4-80GB`.
    let words: Vec<&str> = gpu.split([' ', '-']).collect();
    if OTHERS.iter().any(|other| words.contains(other)) {
        return None;
    }
    let known = KNOWN.iter().find(|(all, _)| all.iter().all(|word| words.contains(word)))?;
    Some(known.1 * 1e12)
}
