//! Who notices that a collective on a device does not end: the host has given it away and waits for it nowhere.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    pending: Arc<Pending>,
    /// The thread, and what it ends by when it is dropped.
    thread: Option<(JoinHandle<()>, Sender<()>)>,
}

/// In the order in which the device takes them.
type Pending = Mutex<VecDeque<Watched>>;

struct Watched {
    operation: Operation,
    since: Instant,
    mark: Arc<dyn Mark>,
}

fn lock(pending: &Pending) -> MutexGuard<'_, VecDeque<Watched>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchdog {
    /// Looks after `communicator`, whose operations run on `timeline`, until dropped.
    pub(super) fn start(
        communicator: Arc<Communicator>,
        timeline: Arc<dyn Timeline>,
        rank: usize,
    ) -> std::io::Result<Self> {
        let pending = Arc::<Pending>::default();
        let (watched, (stop, stopped)) = (Arc::clone(&pending), channel());
        let thread =
            std::thread::Builder::new().name("nccl-watchdog".into()).spawn(move || {
                match timeline.adopt_thread() {
                    Ok(()) => watch(&watched, &communicator, rank, &stopped),
                    Err(error) => communicator.abort(Operation::new("watch", rank).error(error)),
                }
            })?;
        Ok(Self { pending, thread: Some((thread, stop)) })
    }

    /// An operation that ends at `mark`. They are given in the order in which the device takes them.
    pub(super) fn watch(&self, operation: Operation, mark: Arc<dyn Mark>) {
        let since = Instant::now();
        lock(&self.pending).push_back(Watched { operation, since, mark });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some((thread, stop)) = self.thread.take() {
            drop(stop);
            // It has said what there was to say.
            let _ = thread.join();
        }
    }
}

fn watch(pending: &Pending, communicator: &Communicator, rank: usize, stopped: &Receiver<()>) {
    loop {
        let (late, operation) = {
            let mut pending = lock(pending);
            let late = look(&mut pending);
            (late, pending.front().map(|watched| watched.operation))
        };
        let operation = operation.unwrap_or(Operation::new("watch", rank));
        if let Some(fault) = late.or_else(|| communicator.asynchronous(operation)) {
            // What the others see of it is that this rank is gone; here is the reason.
            tracing::error!("{fault}; the GPU stops waiting");
            communicator.abort(fault);
            return;
        }
        if stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// Forgets what has ended; the error of what should have.
fn look(pending: &mut VecDeque<Watched>) -> Option<CollectiveError> {
    while let Some(first) = pending.front() {
        match first.mark.is_reached() {
            Ok(true) => drop(pending.pop_front()),
            Ok(false) if first.since.elapsed() > first.operation.timeout => {
                return Some(first.operation.timed_out());
            }
            Ok(false) => return None,
            Err(error) => return Some(first.operation.error(error)),
        }
    }
    None
}
