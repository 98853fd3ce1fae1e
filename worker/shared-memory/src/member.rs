//! A rank of the team, through which operations are started.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::engine::Engine;
use crate::error::{Fault, MemoryError, failed};
use crate::queue::{Collective, Operation, Outcome, Pending, Shared, StartedOperation, Stop};
use crate::segment::Segment;

/// A rank of the team. Its thread executes operations in the order of their start. Operations in flight must
/// not overlap in memory.
///
/// Dropping it ends pending operations with [`Fault::Stopped`] and tells the other ranks that it left.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Joins the team and starts a thread named `shared-reduce`. Every rank must have opened the control
    /// memory before any rank starts an operation; otherwise it counts as dead.
    pub fn new(control: Control) -> Result<Self, MemoryError> {
        let shared = Arc::new(Shared::new(control));
        let engine = Engine::new(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("shared-reduce".into())
            .spawn(move || engine.run())
            .map_err(failed("start the communication thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Starts an operation: announces that this rank's range is ready; the thread does the rest. Nothing else
    /// may touch the range until the operation has ended. After a failed operation all later ones fail too.
    pub fn start(
        &self,
        operation: Operation,
        segment: &Arc<Segment>,
        timeout: Duration,
    ) -> Result<Pending, Fault> {
        self.check(&operation, segment)?;
        let (outcome, now) = (Arc::<Outcome>::default(), Instant::now());
        // Under the lock, operations are queued and announced in the order of their numbers, from any thread.
        let mut queue = self.shared.queue();
        if queue.stop.is_some() {
            let outcome = Arc::new(Outcome::from(Err(Fault::Stopped)));
            return Ok(Pending { outcome });
        }
        queue.sequence = queue.sequence.wrapping_add(1);
        let started = StartedOperation {
            sequence: queue.sequence,
            tag: tag(&operation, segment),
            operation,
            segment: Arc::clone(segment),
            // If the time-out exceeds the clock's range, the operation has no deadline.
            deadline: now.checked_add(timeout),
            timeout,
            outcome: Arc::clone(&outcome),
        };
        let (sequence, tag) = (started.sequence, started.tag);
        queue.waiting.push_back(started);
        self.shared.control.publish_ready(sequence, tag);
        drop(queue);
        Ok(Pending { outcome })
    }

    fn check(&self, operation: &Operation, segment: &Segment) -> Result<(), Fault> {
        let (element, offset, count) = (operation.element.bytes(), operation.offset, operation.count);
        let size = self.shared.control.size();
        let end = count.checked_mul(element).and_then(|bytes| bytes.checked_add(offset));
        let inside = end.is_some_and(|end| end <= segment.region_bytes());
        let has_parts = matches!(operation.collective, Collective::ReduceScatter(_) | Collective::AllGather);
        let fits = inside
            && (!has_parts || count.is_multiple_of(size))
            && offset.is_multiple_of(element)
            && segment.regions() == size;
        fits.then_some(()).ok_or(Fault::Range)
    }

    /// Returns a check for a rank that has left or whose process has ended. It does not keep this rank in the team.
    pub fn lost_peer(&self) -> impl Fn() -> Option<usize> + Send + Sync + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || {
            let shared = shared.upgrade()?;
            let control = &shared.control;
            let mut others = (0..control.size()).filter(|rank| *rank != control.rank());
            others.find(|rank| control.has_left(*rank) || !control.is_alive(*rank))
        }
    }

    /// Executes the started operations, then leaves. Ends early if a rank is gone or the operations time out.
    pub fn close(mut self) {
        self.end(Stop::Finish);
    }

    fn end(&mut self, stop: Stop) {
        self.shared.queue().stop = Some(stop);
        self.shared.control.ring_own();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, dropping its engine has already failed the operations.
            let _ = thread.join();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end(Stop::Abandon);
    }
}

/// Returns a digest of everything that must be equal on all ranks (FNV-1a).
fn tag(operation: &Operation, segment: &Segment) -> u32 {
    let kind = match operation.collective {
        Collective::AllReduce(reduction) => 1 + reduction as u64,
        Collective::ReduceScatter(reduction) => 11 + reduction as u64,
        Collective::AllGather => 21,
        Collective::Reduce(reduction) => 31 + reduction as u64,
        Collective::Broadcast => 41,
    };
    let words =
        [kind, operation.element as u64, operation.offset as u64, operation.count as u64, segment.identity()];
    let mut hash = 0x811c_9dc5u32;
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash
}

#[cfg(test)]
mod tests;
