//! The flags of `dtrain ckpt`.

use clap::{Args, Subcommand, ValueEnum};
use std::fmt;
use std::path::PathBuf;

/// What is to be done about checkpoints.
#[derive(Debug, Subcommand)]
pub(crate) enum CkptCommand {
    /// List the checkpoints of a run.
    #[command(after_help = help!("ckpt-ls"))]
    Ls(LsArgs),
    /// Show what a checkpoint holds, and how its recipe differs from another.
    #[command(after_help = help!("ckpt-show"))]
    Show(ShowArgs),
    /// Check every byte of checkpoints against their checksums.
    #[command(after_help = help!("ckpt-verify"))]
    Verify(VerifyArgs),
    /// Remove older checkpoints of a run, and what a crash has left.
    #[command(after_help = help!("ckpt-prune"))]
    Prune(PruneArgs),
    /// Write a checkpoint's model into one file, for other programs.
    #[command(after_help = help!("ckpt-export"))]
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The run directory, or the folder `checkpoints` in it.
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: PathBuf,

    /// One object of JSON, in a line, instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) checkpoint: PathBuf,

    /// Compare the recipe with that of another checkpoint, or with a recipe [default: the run's own recipe.toml].
    #[arg(long, value_name = "CHECKPOINT|RECIPE.toml")]
    pub(crate) against: Option<PathBuf>,

    /// One object of JSON, in a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Checkpoints, or run directories for all of theirs.
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// One object of JSON, in a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The run directory, or the folder `checkpoints` in it.
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: PathBuf,

    /// How many of the newest whole checkpoints stay [default: checkpoint.keep of the run's recipe].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,

    /// The last one of every so many steps stays too; 0: none does [default: checkpoint.keep_every of the run's recipe].
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub(crate) keep_every: Option<u64>,

    /// Also remove checkpoints that are damaged.
    #[arg(long)]
    pub(crate) damaged: bool,

    /// Also remove the checkpoints that rollbacks set aside.
    #[arg(long)]
    pub(crate) rollbacks: bool,

    /// Also remove partial checkpoints of the last ten minutes, which a run may be writing.
    #[arg(long)]
    pub(crate) force: bool,

    /// Only say what would be removed.
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

    /// Which weights: those of the moving average or those that are trained.
    #[arg(long, value_enum, default_value_t = Weights::Auto, hide_possible_values = true, value_name = "auto|raw|ema")]
    pub(crate) weights: Weights,

    /// The type of floating-point numbers; integers stay as they are.
    #[arg(long, value_enum, default_value_t = Dtype::Keep, hide_possible_values = true, value_name = "keep|f32|bf16|f16")]
    pub(crate) dtype: Dtype,

    /// Whose names the tensors get.
    #[arg(long, value_enum, default_value_t = Names::Pytorch, hide_possible_values = true,
          value_name = "pytorch|torchvision|timm|huggingface")]
    pub(crate) names: Names,

    /// Overwrite the file if it is there.
    #[arg(long)]
    pub(crate) force: bool,
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
