//! The flags of `dtrain gpu`.

use super::SuggestArgs;
use crate::cli_gpus::GpuIds;
use clap::{Args, Subcommand};

/// What is to be done about GPUs.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Show the GPUs of this machine, their memory, and the processes that use it.
    #[command(after_help = INFO)]
    Info(InfoArgs),
    /// Show the same again and again.
    #[command(after_help = MONITOR)]
    Monitor(MonitorArgs),
    /// Say which micro-batch fits on the GPUs of this machine.
    #[command(after_help = SUGGEST)]
    SuggestBatchSize(SuggestArgs),
    /// Ask your running trainings to give back memory that they hold and do not use.
    #[command(after_help = CLEAR)]
    Clear,
    /// End your processes that use GPUs.
    #[command(after_help = KILL)]
    Kill(KillArgs),
}

/// What `dtrain gpu info` is to do.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// One object of JSON, in a line, instead of the tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `dtrain gpu monitor` is to do.
#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub(crate) interval: f64,

    /// Look so many times, and end; without it until Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// One object of JSON, in a line, for each GPU and look.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `dtrain gpu kill` is to do.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Do not ask; for scripts.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Only processes on these GPUs: numbers of nvidia-smi, or UUIDs or their beginnings.
    #[arg(long, value_name = "IDS", allow_negative_numbers = true)]
    pub(crate) gpu_ids: Option<GpuIds>,

    /// Seconds that a process has to end after SIGTERM, before SIGKILL.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = grace)]
    pub(crate) grace: f64,
}

/// At most a day, and no busier than ten times a second.
fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.1..=86_400.0)
}

fn grace(text: &str) -> Result<f64, String> {
    within(text, 0.0..=3_600.0)
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| range.contains(seconds))
        .ok_or_else(|| format!("give seconds from {} to {}", range.start(), range.end()))
}

pub(super) const EXAMPLES: &str = "\
Examples:
  Who uses the GPUs, and how much of them:
      dtrain gpu info
  The same every second:
      dtrain gpu monitor --interval 1
  What fits on them:
      dtrain gpu suggest-batch-size recipe.toml
  Memory that your trainings hold and do not use, back to the device:
      dtrain gpu clear
  An end to your processes on GPU 2:
      dtrain gpu kill --gpu-ids 2";

const INFO: &str = "\
Examples:
  dtrain gpu info
  dtrain gpu info --json";

const MONITOR: &str = "\
On a terminal the table is painted over; elsewhere there is a line for each GPU and look.
Ctrl-C is the usual end and exits with 0.

Examples:
  dtrain gpu monitor --interval 5
  dtrain gpu monitor --interval 60 --count 10 --json >> gpus.jsonl";

const SUGGEST: &str = "\
Examples:
  dtrain gpu suggest-batch-size recipe.toml
  dtrain gpu suggest-batch-size recipe.toml --gpu t4 --nproc 2";

const CLEAR: &str = "\
Asks every running dtrain worker of this user, on GPUs or on the CPU, and prints what each
gave back. A worker that does not answer within 5 seconds is left alone.

Example:
  dtrain gpu clear";

const KILL: &str = "\
Names the processes and asks first; where standard input is no terminal, --yes has to be
given. Processes of other users are left alone. A process gets SIGTERM, and SIGKILL after
the grace.

Exit codes: 0 all have ended, or there was none; 1 you said no, or one could not be ended;
2 wrong usage, or no driver.

Examples:
  dtrain gpu kill
  dtrain gpu kill --gpu-ids 0,1 --yes --grace 30";
