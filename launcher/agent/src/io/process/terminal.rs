//! The terminal, which one worker may read from.
//!
//! Workers are process groups of their own, and a terminal lets only one group read: the kernel stops the others with SIGTTIN.
//! As a shell does, the launcher makes the worker's group the terminal's when the worker was stopped for reading, and lets it
//! go on. A read that has begun needs the terminal no more, so it is the job's again a moment later. Only while the worker reads
//! key by key, as debuggers do, Ctrl-C and Ctrl-Z are for the worker; Ctrl-Z then stops the whole job all the same, and so does
//! Ctrl-C where the worker dies of it.

use super::worker::Worker;
use super::{Family, ShellJob, handlers};
use crate::io::thread;
use crate::local::Outcome;
use crate::signals;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcsetpgrp};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After this the worker has most likely begun to read. One that has not gets the terminal once more.
const LOAN: Duration = Duration::from_millis(100);
/// The exit code of programs that end by Ctrl-C and do not die of the signal.
const INTERRUPTED: i32 = 128 + signals::INT;

/// The terminal that controls the job, at standard input.
#[derive(Debug)]
pub struct Terminal {
    tty: OwnedFd,
    job: ShellJob,
    /// Whether the worker has had it.
    was_lent: AtomicBool,
}

impl Terminal {
    /// The terminal at standard input; none where it is something else, or does not control this job.
    pub fn at_stdin(job: ShellJob) -> Option<Arc<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(&stdin).is_err() {
            return None;
        }
        let tty = stdin.as_fd().try_clone_to_owned().ok()?;
        Some(Arc::new(Self { tty, job, was_lent: AtomicBool::new(false) }))
    }

    /// Lends the terminal to this worker whenever it is stopped for using it, on a thread of its own, until it has ended.
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

    /// Whether the worker ended by Ctrl-C at the terminal, which it may have got instead of the job.
    pub fn ended(&self, worker: Pid, outcome: Outcome) -> bool {
        self.take_back(worker);
        let interrupted = [Outcome::Signaled(signals::INT), Outcome::Exited(INTERRUPTED)];
        self.was_lent.load(Ordering::Relaxed) && interrupted.contains(&outcome)
    }

    fn next(&self, worker: Pid) -> Next {
        // Of one that is not stopped when it reads nobody would know that it needs the terminal once more.
        let is_loan = self.group() == Some(worker) && handlers::is_stopped_by(worker, Signal::TTIN);
        if !is_loan {
            return next_stop(worker, WaitIdOptions::empty());
        }
        std::thread::sleep(LOAN);
        match next_stop(worker, WaitIdOptions::NOHANG) {
            Next::KeepsIt if self.is_read_by_line() => Next::Reads,
            other => other,
        }
    }

    /// The worker was stopped by this signal.
    fn stopped(&self, worker: Pid, signal: Signal, family: &Family) {
        let go_on = || family.signal(worker, Signal::CONT);
        if signal == Signal::TTIN || signal == Signal::TTOU {
            if self.give(worker) {
                self.was_lent.store(true, Ordering::Relaxed);
                go_on();
            } else if self.job.is_under_a_shell() {
                // The job is in the background, and stops as a whole until the shell brings it to the foreground.
                self.job.suspend(signal);
            } else {
                // Nobody ever will. The kernel sends the same to processes that it leaves stopped without a shell.
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

    /// Makes the terminal the worker's, if it is the job's or the worker's already.
    fn give(&self, worker: Pid) -> bool {
        match self.group() {
            Some(group) if group == worker => true,
            Some(group) => group == self.job.group && tcsetpgrp(&self.tty, worker).is_ok(),
            None => false,
        }
    }

    /// Makes the terminal the job's again, if the worker has it.
    fn take_back(&self, worker: Pid) {
        if self.group() == Some(worker) {
            // It fails when the terminal is gone.
            let _ = tcsetpgrp(&self.tty, self.job.group);
        }
    }

    fn group(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Whether the terminal hands over whole lines, as to programs that do not edit them themselves.
    fn is_read_by_line(&self) -> bool {
        tcgetattr(&self.tty).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
    }
}

/// What a worker does that may read from the terminal.
enum Next {
    Stopped(Signal),
    /// It has begun to read a line, or does something else.
    Reads,
    /// Nothing that gives the terminal back.
    KeepsIt,
    Ended,
}

/// What the worker does next: waits for it, unless `options` say otherwise.
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
