//! Detection of collectives that do not end. The host has queued them on a device and does not wait.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::timeline::{Mark, Timeline};
use crate::{CollectiveError, LostPeer, Operation};

/// The interval of its checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that watches a communicator and ends it when an operation exceeds its time-out or a peer is gone.
/// Then the device stops waiting, and the next call on this rank returns the error.
pub(super) struct Watchdog {
    pending: Arc<WatchedOperations>,
    /// The thread, and the channel whose closing ends it.
    thread: Option<(JoinHandle<()>, Sender<()>)>,
}

/// Operations in the order in which the device executes them.
type WatchedOperations = Mutex<VecDeque<Watched>>;

struct Watched {
    operation: Operation,
    since: Instant,
    mark: Arc<dyn Mark>,
}

fn lock(pending: &WatchedOperations) -> MutexGuard<'_, VecDeque<Watched>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchdog {
    /// Watches `communicator`, whose operations run on `timeline`, until dropped.
    pub(super) fn start(
        communicator: Arc<Communicator>,
        timeline: Arc<dyn Timeline>,
        rank: usize,
        lost_peer: Option<LostPeer>,
    ) -> std::io::Result<Self> {
        let pending = Arc::<WatchedOperations>::default();
        let (watched, (stop, stopped)) = (Arc::clone(&pending), channel());
        let thread =
            std::thread::Builder::new().name("nccl-watchdog".into()).spawn(move || {
                match timeline.set_device() {
                    Ok(()) => watch(&watched, &communicator, (rank, lost_peer), &stopped),
                    Err(error) => communicator.abort(Operation::new("watch", rank).error(error)),
                }
            })?;
        Ok(Self { pending, thread: Some((thread, stop)) })
    }

    /// Adds an operation that ends at `mark`. Call it in the order in which the device executes operations.
    pub(super) fn watch(&self, operation: Operation, mark: Arc<dyn Mark>) {
        let since = Instant::now();
        lock(&self.pending).push_back(Watched { operation, since, mark });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some((thread, stop)) = self.thread.take() {
            drop(stop);
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}

fn watch(
    pending: &WatchedOperations,
    communicator: &Communicator,
    (rank, lost_peer): (usize, Option<LostPeer>),
    stopped: &Receiver<()>,
) {
    loop {
        // Asked first: operations that ended before a peer left have ended here too, or will never.
        let lost = lost_peer.as_ref().and_then(|lost_peer| lost_peer());
        let (late, operation) = {
            let mut pending = lock(pending);
            let late = find_fault(&mut pending);
            (late, pending.front().map(|watched| watched.operation))
        };
        let of_peer = || Some(operation?.lost(lost?));
        let fault = late.or_else(of_peer);
        let operation = operation.unwrap_or(Operation::new("watch", rank));
        if let Some(fault) = fault.or_else(|| communicator.asynchronous_error(operation)) {
            // The other ranks only see that this rank is gone; log the reason here.
            tracing::error!("{fault}; dtrain aborts the NCCL group");
            communicator.abort(fault);
            return;
        }
        if stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// Removes operations that have ended. Returns the error of one that failed or timed out.
fn find_fault(pending: &mut VecDeque<Watched>) -> Option<CollectiveError> {
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
