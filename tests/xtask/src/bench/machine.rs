//! On what was measured.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::workspace::Workspace;

/// The machine and the versions.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    /// Start of the benchmark, in UTC.
    pub(super) date: String,
    /// Cores that this process may use.
    pub(super) cores: usize,
    /// The processor, where the system names it.
    pub(super) processor: Option<String>,
    /// Of the whole machine.
    pub(super) memory_bytes: Option<u64>,
    /// Processes that ran or wanted to, over the minute before.
    pub(super) load_before: Option<f64>,
    pub(super) kernel: Option<String>,
    /// The commit of dtrain, with a plus where files were changed since.
    pub(super) commit: Option<String>,
    /// The version of PyTorch, as it names itself.
    pub(super) torch: String,
    /// The version of torchvision.
    pub(super) torchvision: String,
}

impl Machine {
    pub(super) fn look(workspace: &Workspace, torch: String, torchvision: String) -> Result<Self> {
        let file = |path: &str| fs::read_to_string(path).ok();
        Ok(Self {
            date: said(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
                .context("cannot run date")?,
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: file("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
            memory_bytes: file("/proc/meminfo")
                .and_then(|text| field(&text, "MemTotal"))
                .and_then(|value| value.trim_end_matches(" kB").parse::<u64>().ok())
                .map(|kib| 1024 * kib),
            load_before: file("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            kernel: file("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            commit: commit(workspace),
            torch,
            torchvision,
        })
    }

    /// A sentence where others use the machine.
    pub(super) fn warning(&self) -> Option<String> {
        /// A desktop at rest stays below.
        const QUIET: f64 = 0.25;
        let load = self.load_before?;
        (load > QUIET * self.cores as f64).then(|| {
            format!(
                "the machine is busy (load {load} on {} cores): the figures will be noisy; the ratios are less so",
                self.cores
            )
        })
    }
}

fn commit(workspace: &Workspace) -> Option<String> {
    let git = |args: &[&str]| said(Command::new("git").current_dir(workspace.root()).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if clean { commit } else { format!("{commit}+") })
}

fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first value of that name in a list of `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_the_files_of_proc() {
        let text = "processor\t: 0\nmodel name\t: A CPU: fast\nprocessor\t: 1\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU: fast"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn only_a_busy_machine_is_warned_of() {
        let machine = |load| Machine {
            date: String::new(),
            cores: 2,
            processor: None,
            memory_bytes: None,
            load_before: load,
            kernel: None,
            commit: None,
            torch: String::new(),
            torchvision: String::new(),
        };
        assert_eq!(machine(Some(0.4)).warning(), None);
        assert_eq!(machine(None).warning(), None);
        assert!(
            machine(Some(3.0))
                .warning()
                .is_some_and(|text| text.contains("load 3 on 2 cores"))
        );
    }
}
