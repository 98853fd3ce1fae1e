//! Who notices that a collective on a device does not end: the host has given it away and waits for it nowhere.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::timeline::{Mark, Timeline};
use crate::{CollectiveError, Operation};

/// How often it looks.
const TICK: Duration = Duration::from_millis(100);

/// A thread that looks after a communicator's operations, and ends the communicator when one of them waits past its time-out, or
/// when a peer is gone: the device stops waiting then, and the next call on this rank says why.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    pending: Mutex<Pending>,
    ended: Condvar,
}

#[derive(Default)]
struct Pending {
    /// In the order in which the device takes them.
    operations: VecDeque<Watched>,
    ended: bool,
}

struct Watched {
    operation: Operation,
    since: Instant,
    mark: Arc<dyn Mark>,
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    /// Looks after `communicator`, whose operations run on `timeline`, until dropped.
    pub(super) fn start(
        communicator: Arc<Communicator>,
        timeline: Arc<dyn Timeline>,
        rank: usize,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            ended: Condvar::new(),
        });
        let watched = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new()
                .name("nccl-watchdog".into())
                .spawn(move || match timeline.adopt_thread() {
                    Ok(()) => watch(&watched, &communicator, rank),
                    Err(error) => communicator.abort(Operation::new("watch", rank).error(error)),
                })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// An operation that ends at `mark`. They are given in the order in which the device takes them.
    pub(super) fn watch(&self, operation: Operation, mark: Arc<dyn Mark>) {
        self.shared.pending().operations.push_back(Watched {
            operation,
            since: Instant::now(),
            mark,
        });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.pending().ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has said what there was to say.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, communicator: &Communicator, rank: usize) {
    let mut pending = shared.pending();
    while !pending.ended {
        let late = look(&mut pending);
        let operation = pending.operations.front().map(|watched| watched.operation);
        drop(pending);
        let operation = operation.unwrap_or(Operation::new("watch", rank));
        if let Some(fault) = late.or_else(|| communicator.asynchronous(operation)) {
            // What the others see of it is that this rank is gone; here is the reason.
            tracing::error!("{fault}; the GPU stops waiting");
            communicator.abort(fault);
            return;
        }
        pending = shared.pending();
        if !pending.ended {
            let waited = shared.ended.wait_timeout(pending, TICK);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Forgets what has ended; the error of what should have.
fn look(pending: &mut Pending) -> Option<CollectiveError> {
    while let Some(first) = pending.operations.front() {
        match first.mark.is_reached() {
            Ok(true) => drop(pending.operations.pop_front()),
            Ok(false) if first.since.elapsed() > first.operation.timeout => {
                return Some(first.operation.timed_out());
            }
            Ok(false) => return None,
            Err(error) => return Some(first.operation.error(error)),
        }
    }
    None
}
