//! The terminal, which one worker may read from.
//!
//! Workers are separate process groups, and only one group may read from a terminal: the kernel stops the
//! others with SIGTTIN. As a shell does, the launcher gives the terminal to a worker that was stopped for
//! reading, and continues the worker. A read that has begun does not need the terminal, so the job gets it
//! back a moment later. While the worker reads key by key, as debuggers do, Ctrl-C and Ctrl-Z go to the
//! worker; Ctrl-Z still stops the whole job, and so does Ctrl-C if the worker dies of it.

use super::worker::Worker;
use super::{Family, ShellJob, TerminalModes, handlers};
use crate::io::thread;
use crate::local::Outcome;
use crate::signals;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcsetpgrp};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// After this time the worker has probably begun to read. If not, it gets the terminal again.
const LOAN: Duration = Duration::from_millis(100);
/// The exit code of programs that handle Ctrl-C and then end.
const INTERRUPTED: i32 = 128 + signals::INT;

/// The terminal that controls the job, at standard input.
#[derive(Debug)]
pub struct Terminal {
    tty: OwnedFd,
    job: ShellJob,
    /// Whether a worker has had the terminal.
    was_lent: AtomicBool,
    /// The terminal's modes from before the worker's start, or if the job was in the background, before the first loan.
    modes: OnceLock<TerminalModes>,
}

impl Terminal {
    /// Returns the terminal at standard input; `None` if it is no terminal or does not control this job.
    pub fn at_stdin(job: ShellJob) -> Option<Arc<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(&stdin).is_err() {
            return None;
        }
        let tty = stdin.as_fd().try_clone_to_owned().ok()?;
        let terminal = Self { tty, job, was_lent: AtomicBool::new(false), modes: OnceLock::new() };
        terminal.note_modes();
        Some(Arc::new(terminal))
    }

    /// Starts a thread that lends the terminal to the worker whenever the worker is stopped for using it.
    pub fn lend(self: Arc<Self>, worker: &Worker, family: Family) -> io::Result<()> {
        let worker = worker.pid;
        thread::start("terminal", move || {
            loop {
                match self.next(worker) {
                    Next::Stopped(signal) => self.stopped(worker, signal, &family),
                    Next::Reads => self.take_back(worker),
                    Next::KeepsIt => {}
                    Next::Ended => return,
                }
            }
        })
    }

    /// Returns whether the worker ended by Ctrl-C, which the terminal may have sent to it instead of the job. Restores the
    /// terminal: a worker that was killed has left its modes.
    pub fn ended(&self, worker: Pid, outcome: Outcome) -> bool {
        self.take_back(worker);
        if let Some(modes) = self.modes.get() {
            modes.restore();
        }
        let interrupted = [Outcome::Signaled(signals::INT), Outcome::Exited(INTERRUPTED)];
        self.was_lent.load(Ordering::Relaxed) && interrupted.contains(&outcome)
    }

    fn note_modes(&self) {
        if self.modes.get().is_none()
            && let Some(modes) = TerminalModes::note(self.job)
        {
            // Fails if another thread was faster.
            let _ = self.modes.set(modes);
        }
    }

    fn next(&self, worker: Pid) -> Next {
        if self.group() != Some(worker) {
            return next_stop(worker, WaitIdOptions::empty());
        }
        std::thread::sleep(LOAN);
        match next_stop(worker, WaitIdOptions::NOHANG) {
            // If SIGTTIN cannot stop the worker, its next read would not be noticed, so it keeps the terminal. Shells
            // block all signals for a moment when they start a program.
            Next::KeepsIt if self.is_read_by_line() && handlers::is_stopped_by(worker, Signal::TTIN) => {
                Next::Reads
            }
            other => other,
        }
    }

    /// Reacts to a signal that stopped the worker.
    fn stopped(&self, worker: Pid, signal: Signal, family: &Family) {
        let go_on = || family.signal(worker, Signal::CONT);
        if signal == Signal::TTIN || signal == Signal::TTOU {
            if self.give(worker) {
                self.was_lent.store(true, Ordering::Relaxed);
                go_on();
            } else if self.job.is_under_a_shell() {
                // The job is in the background. It stops until the shell brings it to the foreground.
                self.job.suspend(signal);
            } else {
                // No shell will continue it. The kernel sends the same signals to such processes.
                family.signal(worker, Signal::HUP);
                go_on();
            }
        } else if signal == Signal::TSTP && self.group() == Some(worker) {
            if self.job.is_under_a_shell() {
                self.take_back(worker);
                self.job.suspend(signal);
            } else {
                go_on();
            }
        }
    }

    /// Gives the terminal to the worker if the job or the worker has it.
    fn give(&self, worker: Pid) -> bool {
        match self.group() {
            Some(group) if group == worker => true,
            Some(group) if group == self.job.group => {
                self.note_modes();
                tcsetpgrp(&self.tty, worker).is_ok()
            }
            _ => false,
        }
    }

    /// Returns the terminal to the job if the worker has it.
    fn take_back(&self, worker: Pid) {
        if self.group() == Some(worker) {
            // Fails if the terminal is gone.
            let _ = tcsetpgrp(&self.tty, self.job.group);
        }
    }

    fn group(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Returns whether the terminal passes whole lines, as to programs that do not edit lines themselves.
    fn is_read_by_line(&self) -> bool {
        tcgetattr(&self.tty).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
    }
}

/// The next event of a worker that may read from the terminal.
enum Next {
    Stopped(Signal),
    /// The worker has begun to read a line, or does something else.
    Reads,
    /// No event that gives the terminal back.
    KeepsIt,
    Ended,
}

/// Waits for the worker's next event, unless `options` include NOHANG.
fn next_stop(worker: Pid, options: WaitIdOptions) -> Next {
    match rustix::process::waitid(WaitId::Pid(worker), WaitIdOptions::STOPPED | options) {
        Ok(Some(status)) => {
            let signal = status.stopping_signal().and_then(Signal::from_named_raw);
            signal.map_or(Next::KeepsIt, Next::Stopped)
        }
        Ok(None) | Err(rustix::io::Errno::INTR) => Next::KeepsIt,
        Err(_) => Next::Ended,
    }
}
