//! The flags of `dtrain ckpt`.

use clap::{Args, Subcommand, ValueEnum};
use std::fmt;
use std::path::PathBuf;

/// The commands about checkpoints.
#[derive(Debug, Subcommand)]
pub(crate) enum CkptCommand {
    /// List the checkpoints of a run.
    #[command(after_help = help!("ckpt-ls"))]
    Ls(LsArgs),
    /// Show the contents of a checkpoint, and how its recipe differs.
    #[command(after_help = help!("ckpt-show"))]
    Show(ShowArgs),
    /// Verify every byte of checkpoints against their checksums.
    #[command(after_help = help!("ckpt-verify"))]
    Verify(VerifyArgs),
    /// Remove older checkpoints of a run, and leftovers of crashes.
    #[command(after_help = help!("ckpt-prune"))]
    Prune(PruneArgs),
    /// Write the model of a checkpoint into one safetensors file.
    #[command(after_help = help!("ckpt-export"))]
    Export(ExportArgs),
    /// Write the mean of the weights of several checkpoints as a checkpoint.
    #[command(after_help = help!("ckpt-average"))]
    Average(AverageArgs),
}

impl CkptCommand {
    /// Returns whether a path of the command is relative.
    pub(super) fn is_relative(&self) -> bool {
        let paths: Vec<&PathBuf> = match self {
            Self::Ls(args) => vec![&args.run_dir],
            Self::Show(args) => [&args.checkpoint].into_iter().chain(&args.against).collect(),
            Self::Verify(args) => args.paths.iter().collect(),
            Self::Prune(args) => vec![&args.run_dir],
            Self::Export(args) => vec![&args.checkpoint, &args.out],
            Self::Average(args) => args.paths.iter().chain([&args.out]).collect(),
        };
        paths.iter().any(|path| path.is_relative())
    }
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The run directory, or the folder `checkpoints` in it.
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: PathBuf,

    /// Print one line of JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) checkpoint: PathBuf,

    /// Compare with this recipe [default: the run's recipe.toml].
    #[arg(long, value_name = "CHECKPOINT|RECIPE.toml")]
    pub(crate) against: Option<PathBuf>,

    /// Print one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Checkpoints, or run directories for all their checkpoints.
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// Print one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The run directory, or the folder `checkpoints` in it.
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: PathBuf,

    /// Keep the N newest whole checkpoints [default: checkpoint.keep].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,

    /// Also keep the last of every STEPS steps; 0: none [default: checkpoint.keep_every].
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub(crate) keep_every: Option<u64>,

    /// Also remove damaged checkpoints.
    #[arg(long)]
    pub(crate) damaged: bool,

    /// Also remove checkpoints that rollbacks set aside.
    #[arg(long)]
    pub(crate) rollbacks: bool,

    /// Also remove partial checkpoints younger than ten minutes.
    #[arg(long)]
    pub(crate) force: bool,

    /// Only print what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) checkpoint: PathBuf,

    /// The safetensors file to write.
    #[arg(value_name = "OUT.safetensors")]
    pub(crate) out: PathBuf,

    /// Trained weights, or their moving average; `auto` prefers the average.
    #[arg(long, value_enum, default_value_t = Weights::Auto, hide_possible_values = true, value_name = "auto|raw|ema")]
    pub(crate) weights: Weights,

    /// Type of floating-point tensors; others stay as they are.
    #[arg(long, value_enum, default_value_t = Dtype::Keep, hide_possible_values = true, value_name = "keep|f32|bf16|f16")]
    pub(crate) dtype: Dtype,

    /// Naming scheme of the tensors.
    #[arg(long, value_enum, default_value_t = Names::Pytorch, hide_possible_values = true,
          value_name = "pytorch|torchvision|timm|huggingface")]
    pub(crate) names: Names,

    /// Write adapters alone, as PEFT's folder OUT.
    #[arg(long, conflicts_with_all = ["dtype", "names"])]
    pub(crate) adapters: bool,

    /// Overwrite the file.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AverageArgs {
    /// A run directory, or checkpoints.
    #[arg(value_name = "RUN_DIR|CHECKPOINT", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// Of a run directory, average the last N whole checkpoints [default: up to 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) last: Option<u32>,

    /// The folder of the checkpoint to write.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    Auto,
    Raw,
    Ema,
}
/// The value of `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    Keep,
    F32,
    Bf16,
    F16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Names {
    Pytorch,
    Torchvision,
    Timm,
    Huggingface,
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.to_possible_value();
        f.write_str(word.as_ref().map_or("", |word| word.get_name()))
    }
}
