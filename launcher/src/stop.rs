//! Signals to stop of a command that waits for another program.

use anyhow::Context;
use dtrain_agent::io::process::handlers;
use dtrain_agent::signals;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Passes the first signal to the program's process group as SIGINT, and the second as SIGKILL.
pub(crate) struct Stop {
    signal: Arc<AtomicI32>,
    child: Arc<AtomicI32>,
}

impl Stop {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let stop = Self { signal: Arc::default(), child: Arc::default() };
        let (signal, child) = (Arc::clone(&stop.signal), Arc::clone(&stop.child));
        let deliver = move |number, _| {
            if !signals::STOP.contains(&number) {
                return;
            }
            let first = signal.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            end(child.load(Ordering::SeqCst), if first { Signal::INT } else { Signal::KILL });
        };
        handlers::listen(&signals::STOP, deliver).context("cannot receive signals")?;
        Ok(stop)
    }

    /// Returns the first signal of the launcher.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|number| *number != 0)
    }

    /// Passes signals to this program from now on, also an earlier one.
    pub(crate) fn begin(&self, child: &Child) {
        let id = i32::try_from(child.id()).unwrap_or_default();
        self.child.store(id, Ordering::SeqCst);
        if self.signal().is_some() {
            end(id, Signal::INT);
        }
    }

    /// Passes no more signals: the program has ended.
    pub(crate) fn end(&self) {
        self.child.store(0, Ordering::SeqCst);
    }

    /// Waits for the end of the program.
    pub(crate) fn wait(&self, mut child: Child) -> io::Result<std::process::ExitStatus> {
        self.begin(&child);
        let status = child.wait();
        self.end();
        status
    }
}

fn end(child: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(child).filter(|_| child > 0) {
        // If the process has just ended, there is nothing to stop.
        let _ = kill_process_group(group, signal);
    }
}
