//! The flags of `dtrain gpu`.

use super::{GpuIds, SuggestArgs};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Show GPUs, their memory, and the processes that use it.
    #[command(after_help = help!("gpu-info"))]
    Info(InfoArgs),
    /// Repeat the tables of `dtrain gpu info`.
    #[command(after_help = help!("gpu-monitor"))]
    Monitor(MonitorArgs),
    /// Print the first stage's micro-batch for each GPU.
    #[command(after_help = help!("gpu-suggest-batch-size"))]
    SuggestBatchSize(SuggestArgs),
    /// Free unused memory of your running dtrain workers.
    #[command(after_help = help!("gpu-clear"))]
    Clear,
    /// End your processes that use GPUs.
    #[command(after_help = help!("gpu-kill"))]
    Kill(KillArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Print one line of JSON instead of the tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub(crate) interval: f64,

    /// Number of updates [default: until Ctrl-C].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Print one line of JSON per GPU and update.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Only processes on these GPUs: numbers of nvidia-smi, or prefixes of UUIDs.
    #[arg(long, value_name = "IDS", allow_negative_numbers = true)]
    pub(crate) gpu_ids: Option<GpuIds>,

    /// Seconds from SIGTERM until SIGKILL.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = grace)]
    pub(crate) grace: f64,
}

/// Parses seconds from 0.1 to one day.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.1..=86_400.0)
}

fn grace(text: &str) -> Result<f64, String> {
    within(text, 0.0..=3_600.0)
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| range.contains(seconds));
    seconds.ok_or_else(|| format!("give seconds from {} to {}", range.start(), range.end()))
}
