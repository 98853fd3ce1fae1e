//! Finds the processes of a run by a mark in their environment, which child processes inherit.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that holds the mark.
const NAME: &str = "DTRAIN_XTASK_RUN";

/// The mark of all processes of a run.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    entry: Vec<u8>,
}

/// The role of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The process that was started.
    Guardian,
    /// The launcher proper.
    Launcher,
    /// The worker of this rank.
    Worker(u32),
}

/// A process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
    pub(crate) role: Role,
}

/// Shows its number and role.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.as_raw_nonzero();
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&command_line).replace('\0', " ");
        write!(f, "{pid} ({})", command_line.trim_end())
    }
}

impl Process {
    pub(crate) fn kill(self) {
        // It fails only if the process has ended.
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

impl Mark {
    /// Creates a mark; `number` distinguishes the runs of this program.
    pub(crate) fn new(number: u64) -> Self {
        let entry = format!("{NAME}={}-{number}", std::process::id());
        Self { entry: entry.into_bytes() }
    }

    /// Adds the mark to the command's environment.
    pub(crate) fn add_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let value = String::from_utf8_lossy(&self.entry[NAME.len() + 1..]).into_owned();
        command.env(NAME, value)
    }

    /// Returns the living processes. An ended one has no environment, even before it is reaped.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid: i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let role = self.role(&environment)?;
            Pid::from_raw(pid).map(|pid| Process { pid, role })
        })
        .collect()
    }

    /// Returns the living workers.
    pub(crate) fn workers(&self) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| matches!(process.role, Role::Worker(_)));
        found
    }

    fn role(&self, environment: &[u8]) -> Option<Role> {
        let entries = || environment.split(|byte| *byte == 0);
        if !entries().any(|entry| entry == self.entry) {
            return None;
        }
        let rank = entries().find_map(|entry| std::str::from_utf8(entry.strip_prefix(b"RANK=")?).ok());
        Some(match rank.and_then(|rank| rank.parse().ok()) {
            Some(rank) => Role::Worker(rank),
            None if entries().any(|entry| entry.starts_with(b"DTRAIN_GUARDIAN=")) => Role::Launcher,
            None => Role::Guardian,
        })
    }

    /// Waits until all have ended, for at most `within`; returns whether they have.
    pub(crate) fn wait_until_gone(&self, within: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if self.processes().is_empty() {
                return true;
            }
            if begun.elapsed() > within {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the remaining processes until none is left.
    pub(crate) fn kill_all(&self) {
        for _ in 0..1000 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(Process::kill);
            thread::sleep(Duration::from_millis(2));
        }
    }
}
