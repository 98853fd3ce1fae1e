//! The commands.

use super::batch::{BatchArgs, RequeueArgs};
use super::ckpt::CkptCommand;
use super::complete::Shell;
use super::diff::DiffArgs;
use super::doctor::DoctorArgs;
use super::eval::EvalArgs;
use super::gpu::GpuCommand;
use super::import::ImportArgs;
use super::launch::LaunchArgs;
use super::new::NewArgs;
use super::plan::{DataArgs, PlanArgs, ProfileArgs};
use super::predict::PredictArgs;
use super::report::ReportArgs;
use super::runs::RunsArgs;
use super::trace::TraceArgs;
use clap::{ColorChoice, Parser, Subcommand};
use dtrain_common::log_line::LogFormat;
use std::path::PathBuf;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DTRAIN_COMMIT"), ")");

/// Train on all GPUs of this machine, or run any program on them.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version = VERSION, arg_required_else_help = true, after_help = help!("launch-examples"))]
pub(crate) struct Cli {
    /// Colours: auto, always or never [default: auto].
    #[arg(long, global = true, value_name = "WHEN", hide_possible_values = true)]
    color: Option<ColorChoice>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the command. Output has the colours of `--color` from now on.
    pub(crate) fn into_command(self) -> Command {
        if let Some(color) = self.color {
            let choice = match color {
                ColorChoice::Auto => anstream::ColorChoice::Auto,
                ColorChoice::Always => anstream::ColorChoice::Always,
                ColorChoice::Never => anstream::ColorChoice::Never,
            };
            choice.write_global();
        }
        self.command
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a recipe, a Python script or a program, one worker per GPU.
    #[command(override_usage = USAGE, after_help = help!("launch-examples"), after_long_help = help!("launch-examples", "launch"), infer_long_args = true)]
    Launch(Box<LaunchArgs>),
    /// Write a recipe from a look at the data and the machine.
    #[command(override_usage = NEW_USAGE, after_help = help!("new"))]
    New(NewArgs),
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
    /// Find the first step at which two runs differ, and why.
    #[command(after_help = help!("diff"))]
    Diff(DiffArgs),
    /// Write one HTML page about runs, or serve it during them.
    #[command(after_help = help!("report"))]
    Report(ReportArgs),
    /// Join the timelines of a run, and say what its steps wait for.
    #[command(after_help = help!("trace"))]
    Trace(TraceArgs),
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
    Schema {
        /// The file to write [default: standard output].
        #[arg(short, long, value_name = "FILE.json")]
        output: Option<PathBuf>,
    },
    /// Print the script with which a shell completes words.
    #[command(after_help = help!("completions"))]
    Completions {
        /// The shell.
        #[arg(value_enum, value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the pages of the manual.
    #[command(hide = true)]
    Man {
        /// The folder to write them into.
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
    },
    /// Check this machine, or the nodes of a job, and name remedies.
    #[command(after_help = help!("doctor"))]
    Doctor(Box<DoctorArgs>),
}

impl Command {
    /// Returns the form of lines on standard error.
    pub(crate) fn log_format(&self) -> LogFormat {
        match self {
            Self::Launch(args) => args.output.format(),
            _ => LogFormat::Text,
        }
    }

    /// Returns whether the command needs the current folder: for its processes, or for a relative path.
    pub(crate) fn needs_current_folder(&self) -> bool {
        match self {
            Self::Gpu(command) => matches!(command, GpuCommand::SuggestBatchSize(_)),
            Self::Runs(args) => args.dir().is_relative(),
            Self::Diff(args) => args.a.is_relative() || args.b.is_relative(),
            Self::Report(args) => args.is_relative(),
            Self::Trace(args) => args.run.is_relative(),
            Self::Requeue(args) => args.run_dir.is_relative(),
            Self::Ckpt(command) => command.is_relative(),
            Self::Launch(args) => args.needs_current_folder(),
            Self::New(_) | Self::Data(_) | Self::Plan(_) | Self::Profile(_) | Self::Import(_) => true,
            Self::Eval(_) | Self::Predict(_) => true,
            Self::Batch(_) | Self::Doctor(_) => true,
            Self::Schema { output } => output.as_ref().is_some_and(|path| path.is_relative()),
            Self::Man { output } => output.is_relative(),
            Self::Completions { .. } => false,
        }
    }
}

const USAGE: &str = "\
dtrain launch [FLAGS] RECIPE [FLAGS]
       dtrain launch [FLAGS] SCRIPT.py [ARGS]...
       dtrain launch [FLAGS] -m MODULE [ARGS]...
       dtrain launch [FLAGS] [--] PROGRAM [ARGS]...";

const NEW_USAGE: &str = "\
dtrain new TASK [DATA] [FLAGS]
       dtrain new --like timm:NAME [TASK] DATA [FLAGS]
       dtrain new --from RUN_DIR [FLAGS]";

const BATCH_USAGE: &str = "\
dtrain batch SYSTEM [FLAGS] RECIPE...
       dtrain batch SYSTEM [FLAGS] -- PROGRAM [ARGS]...";
