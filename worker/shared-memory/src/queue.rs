//! Operations, and those that wait for their turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::error::Fault;
use crate::segment::Segment;

/// A started operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) sequence: u32,
    pub(crate) tag: u32,
    pub(crate) operation: Operation,
    pub(crate) segment: Arc<Segment>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) timeout: Duration,
    pub(crate) outcome: Arc<Outcome>,
}

/// How an operation has ended, once it has.
pub(crate) type Outcome = OnceLock<Result<(), Fault>>;

impl Job {
    /// Ends it, where it has not ended before.
    pub(crate) fn end(&self, result: Result<(), Fault>) {
        let _ = self.outcome.set(result);
    }
}

/// However the thread ends, nobody waits for a job for ever.
impl Drop for Job {
    fn drop(&mut self) {
        self.end(Err(Fault::Stopped));
    }
}

/// An operation under way; see [`crate::Member::start`]. Dropping it does not end the operation.
#[derive(Debug)]
pub struct Pending {
    pub(crate) outcome: Arc<Outcome>,
}

impl Pending {
    /// Sleeps until the operation has ended; a rank that dies or is late ends it with a fault, and the memory is undefined then.
    pub fn wait(&self) -> Result<(), Fault> {
        self.outcome.wait().clone()
    }
}

/// A floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16; reduced in binary32, rounded once.
    F16,
    /// bfloat16; reduced in binary32, rounded once.
    Bf16,
}

impl Element {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How the ranks' values become one, in the order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// The sum: ((rank 0 + rank 1) + rank 2) + ...
    Sum,
    /// The least; a NaN where there is one.
    Min,
    /// The greatest; a NaN where there is one.
    Max,
}

/// What becomes of the range that an operation names, which is the same in every rank's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// Every rank's range becomes the reduction of all of them, to the same bits.
    AllReduce(Reduction),
    /// The rank-th of equal parts of the rank's range becomes the reduction of that part of all ranges; the rest stays.
    ReduceScatter(Reduction),
    /// Every rank's range becomes the equal parts of the ranks in their order: the r-th is taken from rank r.
    AllGather,
}

/// An operation over a range of the regions of a segment. Every rank starts the same one on the same segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// What to do.
    pub collective: Collective,
    /// What the range holds.
    pub element: Element,
    /// The first byte of the range in the region; a multiple of the element's size.
    pub offset: usize,
    /// The number of elements; of `ReduceScatter` and `AllGather` a multiple of the number of ranks.
    pub count: usize,
}

/// The operations that wait for their turn, shared by the ranks' callers and their one thread.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) stop: Option<Stop>,
    pub(crate) sequence: u32,
}

/// How the thread is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// After the operations that were started.
    Finish,
    /// At once.
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
        // Nothing in a critical section can panic half-way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
