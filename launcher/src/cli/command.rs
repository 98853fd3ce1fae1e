//! The commands.

use super::batch::{BatchArgs, RequeueArgs};
use super::ckpt::CkptCommand;
use super::doctor::DoctorArgs;
use super::eval::EvalArgs;
use super::gpu::GpuCommand;
use super::import::ImportArgs;
use super::launch::LaunchArgs;
use super::plan::{DataArgs, PlanArgs, ProfileArgs};
use super::predict::PredictArgs;
use super::runs::RunsArgs;
use clap::{Parser, Subcommand};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DTRAIN_COMMIT"), ")");

/// Train on all GPUs of this machine, or run any program on them.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version = VERSION, arg_required_else_help = true, after_help = help!("launch-examples"))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a recipe, a Python script or a program, one worker per GPU.
    #[command(override_usage = USAGE, after_help = help!("launch-examples"), after_long_help = help!("launch-examples", "launch"), infer_long_args = true)]
    Launch(Box<LaunchArgs>),
    /// Describe a recipe's data: counts, balance, values, copies; draw samples.
    #[command(after_help = help!("data"))]
    Data(DataArgs),
    /// Predict the micro-batch, precision and recompute that fit each GPU.
    #[command(after_help = help!("plan-examples"), after_long_help = help!("plan-examples", "plan"))]
    Plan(PlanArgs),
    /// Measure real steps, and find the largest micro-batch that fits.
    #[command(after_help = help!("profile"))]
    Profile(ProfileArgs),
    /// Make a PyTorch model into a file that dtrain trains.
    #[command(after_help = help!("import"))]
    Import(Box<ImportArgs>),
    /// List runs: state, job, progress, best metric, remaining time.
    #[command(after_help = help!("runs"))]
    Runs(RunsArgs),
    /// Evaluate a checkpoint on the whole test set.
    #[command(after_help = help!("eval"))]
    Eval(Box<EvalArgs>),
    /// Predict images or texts with a checkpoint.
    #[command(after_help = help!("predict"))]
    Predict(Box<PredictArgs>),
    /// Write a batch script that starts dtrain on the nodes of a job.
    #[command(override_usage = BATCH_USAGE, after_help = help!("batch"))]
    Batch(Box<BatchArgs>),
    /// Decide whether the job of a batch script starts again.
    #[command(hide = true)]
    Requeue(RequeueArgs),
    /// List, show, verify, prune and export checkpoints.
    #[command(subcommand, after_help = help!("ckpt"))]
    Ckpt(CkptCommand),
    /// Show GPUs, suggest batch sizes, and free or end GPU processes.
    #[command(subcommand, after_help = help!("gpu"))]
    Gpu(GpuCommand),
    /// Print the JSON Schema of recipes, for editors.
    #[command(after_help = help!("schema"))]
    Schema,
    /// Check this machine, or the nodes of a job, and name remedies.
    #[command(after_help = help!("doctor"))]
    Doctor(Box<DoctorArgs>),
}

impl Command {
    /// Returns whether the command needs the current folder: for its processes, or for a relative path.
    pub(crate) fn needs_current_folder(&self) -> bool {
        match self {
            Self::Gpu(command) => matches!(command, GpuCommand::SuggestBatchSize(_)),
            Self::Runs(args) => args.dir().is_relative(),
            Self::Requeue(args) => args.run_dir.is_relative(),
            Self::Ckpt(command) => command.is_relative(),
            Self::Launch(args) => args.needs_current_folder(),
            Self::Data(_) | Self::Plan(_) | Self::Profile(_) | Self::Import(_) => true,
            Self::Eval(_) | Self::Predict(_) => true,
            Self::Batch(_) | Self::Doctor(_) => true,
            Self::Schema => false,
        }
    }
}

const USAGE: &str = "\
dtrain launch [FLAGS] RECIPE [FLAGS]
       dtrain launch [FLAGS] SCRIPT.py [ARGS]...
       dtrain launch [FLAGS] -m MODULE [ARGS]...
       dtrain launch [FLAGS] [--] PROGRAM [ARGS]...";

const BATCH_USAGE: &str = "\
dtrain batch SYSTEM [FLAGS] RECIPE...
       dtrain batch SYSTEM [FLAGS] -- PROGRAM [ARGS]...";
