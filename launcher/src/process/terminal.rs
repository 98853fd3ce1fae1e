//! The terminal, which one worker may read from.
//!
//! Workers are process groups of their own, and a terminal lets only one group read: the kernel stops the others with SIGTTIN.
//! The launcher does what a shell does: it makes the worker's group the terminal's as soon as the worker has been stopped for
//! reading, and lets it go on. Until then, Ctrl-C and Ctrl-Z are for the whole job; from then on they are for the worker, as a
//! debugger expects. Ctrl-Z stops the whole job all the same.

use super::{Family, SMALL_STACK, Worker};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

/// The terminal that controls the job, at standard input.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: OwnedFd,
    /// The process group that the shell knows.
    job: Pid,
}

impl Terminal {
    /// The terminal at standard input; none where it is something else, or does not control this job.
    pub(crate) fn at_stdin(job: Pid) -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(&stdin).is_err() {
            return None;
        }
        let tty = stdin.as_fd().try_clone_to_owned().ok()?;
        Some(Self { tty, job })
    }

    /// Lends the terminal to this worker whenever it is stopped for using it, on a thread of its own, until it has ended.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn lend(self, worker: &Worker, family: Family) -> io::Result<()> {
        let worker = worker.pid;
        std::thread::Builder::new()
            .name("terminal".to_owned())
            .stack_size(SMALL_STACK)
            .spawn(move || {
                while let Some(signal) = next_stop(worker) {
                    self.stopped(worker, signal, &family);
                }
                self.take_back(worker);
            })?;
        Ok(())
    }

    /// The worker was stopped by this signal.
    fn stopped(&self, worker: Pid, signal: Signal, family: &Family) {
        if signal == Signal::TTIN || signal == Signal::TTOU {
            if self.group() == Some(self.job) && tcsetpgrp(&self.tty, worker).is_ok() {
                family.signal(worker, Signal::CONT);
            } else {
                // The job is in the background, and stops as a whole until the shell brings it to the foreground.
                self.suspend_job(signal);
            }
        } else if signal == Signal::TSTP && self.take_back(worker) {
            self.suspend_job(signal);
        }
    }

    /// Suspends the job as the shell knows it, and by that the launcher and all workers.
    fn suspend_job(&self, signal: Signal) {
        // It fails when the job has ended.
        let _ = rustix::process::kill_process_group(self.job, signal);
    }

    /// Makes the terminal the job's again, if the worker has it.
    fn take_back(&self, worker: Pid) -> bool {
        self.group() == Some(worker) && tcsetpgrp(&self.tty, self.job).is_ok()
    }

    fn group(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }
}

/// Waits until a signal stops the worker; none when it has ended.
fn next_stop(worker: Pid) -> Option<Signal> {
    loop {
        match rustix::process::waitid(WaitId::Pid(worker), WaitIdOptions::STOPPED) {
            Ok(Some(status)) => {
                let signal = status.stopping_signal().and_then(Signal::from_named_raw);
                if signal.is_some() {
                    return signal;
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
