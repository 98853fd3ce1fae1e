//! Operations and the queue of those that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::error::Fault;
use crate::segment::Segment;

/// An operation that was started.
#[derive(Debug)]
pub(crate) struct StartedOperation {
    pub(crate) sequence: u32,
    pub(crate) tag: u32,
    pub(crate) operation: Operation,
    pub(crate) segment: Arc<Segment>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) timeout: Duration,
    pub(crate) outcome: Arc<Outcome>,
}

/// The result of an operation, set when it ends.
pub(crate) type Outcome = OnceLock<Result<(), Fault>>;

impl StartedOperation {
    /// Ends the operation, unless it has ended before.
    pub(crate) fn end(&self, result: Result<(), Fault>) {
        let _ = self.outcome.set(result);
    }
}

/// A dropped operation ends too: nobody waits for it forever.
impl Drop for StartedOperation {
    fn drop(&mut self) {
        self.end(Err(Fault::Stopped));
    }
}

/// An operation in flight; see [`crate::Member::start`]. Dropping it does not end the operation.
#[derive(Debug)]
pub struct Pending {
    pub(crate) outcome: Arc<Outcome>,
}

impl Pending {
    /// Waits until the operation has ended. After a fault the contents of the memory are undefined.
    pub fn wait(&self) -> Result<(), Fault> {
        self.outcome.wait().clone()
    }
}

/// A floating-point dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16; reduced in binary32 and rounded once.
    F16,
    /// bfloat16; reduced in binary32 and rounded once.
    Bf16,
}

impl Element {
    /// Returns the bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How the values of the ranks are reduced, in the order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// The sum: ((rank 0 + rank 1) + rank 2) + ...
    Sum,
    /// The minimum; NaN if any value is NaN.
    Min,
    /// The maximum; NaN if any value is NaN.
    Max,
}

/// A collective over a range, which is the same in every rank's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// Every rank's range becomes the reduction of all ranges, identical to the bit.
    AllReduce(Reduction),
    /// Rank 0's range becomes the reduction of all ranges; the other ranges stay unchanged.
    Reduce(Reduction),
    /// Every rank's range becomes that of rank 0.
    Broadcast,
    /// On rank r, the r-th part of its range becomes the reduction of that part of all ranges.
    ReduceScatter(Reduction),
    /// On every rank, the r-th of the equal parts is copied from rank r.
    AllGather,
}

/// An operation over a range of a segment's regions. Every rank starts the same on the same segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The collective.
    pub collective: Collective,
    /// The dtype of the range.
    pub element: Element,
    /// The first byte of the range in the region: a multiple of the element's size.
    pub offset: usize,
    /// The number of elements. For `ReduceScatter` and `AllGather` it is a multiple of the number of ranks.
    pub count: usize,
}

/// The queue of waiting operations, which callers and the thread share.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<StartedOperation>,
    pub(crate) stop: Option<Stop>,
    pub(crate) sequence: u32,
}

/// How the thread ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// After all started operations.
    Finish,
    /// Immediately.
    Abandon,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Control,
    queue: Mutex<Queue>,
}

impl Shared {
    pub(crate) fn new(control: Control) -> Self {
        Self { control, queue: Mutex::default() }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code under the lock panics while the queue is inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
