//! The children of the launcher: its workers, and processes that became its children because their own parent is gone.

use super::handlers::LatestOfJob;
use super::worker::{Streams, Worker, WorkerSpec};
use super::{descendants, handlers};
use rustix::process::{Pid, Signal, WaitOptions};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The workers that are not reaped yet, for all threads that signal or reap. While one holds the lock, no process id among
/// the children can be given to a stranger.
#[derive(Clone, Debug, Default)]
pub struct Family {
    workers: Arc<Mutex<Vec<Pid>>>,
}

impl Family {
    /// Starts a worker. The kernel kills it should the calling thread end, so call this from the main thread.
    pub fn start(&self, spec: &WorkerSpec) -> io::Result<(Worker, Streams)> {
        let mut workers = self.lock();
        let started = Worker::start(spec)?;
        workers.push(started.0.pid);
        Ok(started)
    }

    /// Kills what is left of the worker's process group and reaps its process, which has ended or been sent SIGKILL.
    pub fn sweep(&self, worker: &mut Worker) {
        let mut workers = self.lock();
        worker.sweep();
        workers.retain(|pid| *pid != worker.pid);
    }

    /// Ends every child and what becomes a child by that. All workers must have been swept.
    pub fn end_orphans(&self) {
        let _held = self.lock();
        descendants::end_all();
    }

    /// Reaps the adopted children that have ended, and no worker; the next time where another thread holds the lock.
    pub fn reap_orphans(&self) {
        let Ok(workers) = self.workers.try_lock() else {
            return;
        };
        let children = descendants::listed_children().into_iter();
        for child in children.filter(|child| !workers.contains(child)) {
            let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
        }
    }

    /// Suspends the workers, and then this process, unless SIGCONT has come while a worker was being started.
    pub fn suspend(&self, latest: &LatestOfJob) {
        let workers = self.lock();
        if latest.is_continue() {
            return;
        }
        signal_groups(&workers, Signal::TSTP);
        // No worker starts between the two.
        handlers::stop_this_process();
    }

    pub fn resume(&self) {
        signal_groups(&self.lock(), Signal::CONT);
    }

    /// Sends a signal to the process group of one worker, unless it has been reaped.
    pub(super) fn signal(&self, worker: Pid, signal: Signal) {
        let workers = self.lock();
        if workers.contains(&worker) {
            signal_groups(&[worker], signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        // A list of numbers is whole also after a panic.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signal_groups(workers: &[Pid], signal: Signal) {
    for worker in workers {
        // It fails when nothing of the group is left, or what is left is another user's.
        let _ = rustix::process::kill_process_group(*worker, signal);
    }
}
