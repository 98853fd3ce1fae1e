//! Describes the measured machine.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde::Serialize;

use xtask::workspace::Workspace;

/// The machine and the versions.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Machine {
    /// Start of the benchmark, in UTC.
    pub(crate) date: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// The processor, if the system names it.
    pub(crate) processor: Option<String>,
    /// Memory of the whole machine.
    pub(crate) memory_bytes: Option<u64>,
    /// Average number of running or runnable processes in the minute before.
    pub(crate) load_before: Option<f64>,
    pub(crate) kernel: Option<String>,
    /// The commit of dtrain, with a plus if files have changed since.
    pub(crate) commit: Option<String>,
    /// Other facts: versions and GPUs.
    pub(crate) other: serde_json::Value,
}

impl Machine {
    /// Describes this machine now; without a workspace, there is no commit.
    pub(crate) fn describe(workspace: Option<&Workspace>, other: serde_json::Value) -> Result<Self> {
        let file = |path: &str| fs::read_to_string(path).ok();
        Ok(Self {
            date: command_output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
                .context("cannot run date")?,
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: file("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
            memory_bytes: file("/proc/meminfo")
                .and_then(|text| field(&text, "MemTotal"))
                .and_then(|value| value.trim_end_matches(" kB").parse::<u64>().ok())
                .map(|kib| 1024 * kib),
            load_before: file("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            kernel: file("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            commit: workspace.and_then(commit),
            other,
        })
    }

    /// Returns a warning if other programs use the machine.
    pub(crate) fn warning(&self) -> Option<String> {
        /// An idle desktop stays below.
        const QUIET: f64 = 0.25;
        let load = self.load_before?;
        (load > QUIET * self.cores as f64).then(|| {
            format!(
                "the machine is busy, load {load} on {} cores: figures will be noisy, ratios less so; stop other programs",
                self.cores
            )
        })
    }
}

fn commit(workspace: &Workspace) -> Option<String> {
    let git = |args: &[&str]| command_output(Command::new("git").current_dir(workspace.root()).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if clean { commit } else { format!("{commit}+") })
}

fn command_output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the first value of that name in a list of `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
