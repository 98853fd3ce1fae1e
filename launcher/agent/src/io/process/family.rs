//! The children of the launcher or the guardian: those that it started, and processes adopted after their parent
//! ended.

use super::handlers::LatestOfJob;
use super::worker::{Streams, Worker, WorkerSpec};
use super::{descendants, handlers};
use rustix::process::{Pid, Signal, WaitOptions};
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The unreaped workers, or the launcher, for all threads that signal or reap. While a thread holds the lock, no pid
/// of a child can be reused.
#[derive(Clone, Debug, Default)]
pub struct Family {
    workers: Arc<Mutex<Vec<Pid>>>,
    /// Set under the lock of the workers.
    is_closed: Arc<AtomicBool>,
}

impl Family {
    /// Starts a worker. Call it from the main thread: the worker is killed when its calling thread ends.
    pub fn start(&self, spec: &WorkerSpec) -> io::Result<(Worker, Streams)> {
        let mut workers = self.lock();
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(io::Error::other("the lease of this node has ended"));
        }
        let started = Worker::start(spec)?;
        workers.push(started.0.pid);
        Ok(started)
    }

    /// Starts the launcher or another process of this program, which only the caller reaps.
    pub fn start_next(&self, command: &mut Command) -> io::Result<Child> {
        let mut known = self.lock();
        let child = command.spawn()?;
        known.extend(Pid::from_raw(child.id().cast_signed()));
        Ok(child)
    }

    /// Kills the rest of the worker's process group and reaps the worker, if it ends within `patience`.
    pub fn sweep(&self, worker: &mut Worker, patience: Duration) {
        let mut workers = self.lock();
        if worker.sweep(patience) {
            workers.retain(|pid| *pid != worker.pid);
        }
    }

    /// Kills all children, also those adopted meanwhile. All workers must have been swept: those that are left do not end.
    /// Returns whether no other child is left.
    pub fn end_orphans(&self) -> bool {
        let stuck = self.lock();
        descendants::end_all(&stuck)
    }

    /// Reaps adopted children that have ended. Does nothing while another thread holds the lock.
    pub fn reap_orphans(&self) {
        let Ok(workers) = self.workers.try_lock() else {
            return;
        };
        let children = descendants::listed_children().into_iter();
        for child in children.filter(|child| !workers.contains(child)) {
            let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
        }
    }

    /// Suspends the workers and then this process, unless SIGCONT came while a worker was being started.
    pub fn suspend(&self, latest: &LatestOfJob) {
        let workers = self.lock();
        if latest.is_continue() {
            return;
        }
        signal_groups(&workers, Signal::TSTP);
        // The lock is held, so no worker starts between the two.
        handlers::stop_this_process();
    }

    /// Kills the process groups of all workers, which are reaped later. No other worker starts until
    /// [`Family::open`].
    pub fn close(&self) {
        let workers = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        signal_groups(&workers, Signal::KILL);
    }

    /// Allows to start workers again.
    pub fn open(&self) {
        let _held = self.lock();
        self.is_closed.store(false, Ordering::Relaxed);
    }

    pub fn resume(&self) {
        signal_groups(&self.lock(), Signal::CONT);
    }

    /// Signals the process group of one worker, unless the worker is reaped.
    pub(super) fn signal(&self, worker: Pid, signal: Signal) {
        let workers = self.lock();
        if workers.contains(&worker) {
            signal_groups(&[worker], signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        // A list of numbers is consistent also after a panic.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signal_groups(workers: &[Pid], signal: Signal) {
    for worker in workers {
        // Fails if the group is empty, or its processes belong to another user.
        let _ = rustix::process::kill_process_group(*worker, signal);
    }
}
