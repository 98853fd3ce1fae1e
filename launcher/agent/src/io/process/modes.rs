//! The modes of the terminal: echo, editing of lines, signals by keys.
//!
//! A program that reads key by key changes them, and cannot change them back if it is killed.

use super::{ShellJob, handlers};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

/// The modes of the terminal at standard input at one moment.
#[derive(Debug)]
pub struct TerminalModes {
    tty: OwnedFd,
    job: ShellJob,
    modes: Termios,
}

impl TerminalModes {
    /// Notes the modes for this job. `None` if standard input is no terminal, or another job has the terminal and has
    /// perhaps changed its modes.
    pub fn note(job: ShellJob) -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || !is_free(&stdin, job) {
            return None;
        }
        let tty = stdin.as_fd().try_clone_to_owned().ok()?;
        let modes = tcgetattr(&tty).ok()?;
        Some(Self { tty, job, modes })
    }

    /// Restores the modes and takes the terminal back from a group that has ended, unless another job has it.
    pub fn restore(&self) {
        // Without this, the kernel would stop a process in the background.
        if handlers::write_to_any_terminal().is_ok() && is_free(&self.tty, self.job) {
            // These fail if the terminal is gone, or does not control this job.
            let _ = tcsetpgrp(&self.tty, self.job.group);
            let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.modes);
        }
    }
}

/// Returns whether no other job has the terminal: this job has it, or a process group that has ended.
pub(super) fn is_free(tty: impl AsFd, job: ShellJob) -> bool {
    match tcgetpgrp(tty) {
        Ok(group) if group == job.group => true,
        Ok(group) => rustix::process::test_kill_process_group(group) == Err(Errno::SRCH),
        // The terminal does not control this job, as without a shell.
        Err(error) => error == Errno::NOTTY,
    }
}
