//! A group on which several threads start operations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Kind, Tensor};

use super::{Collective, CollectiveError, LoneGroup, ProcessGroup, ReduceOp, Work};

/// A handle of a process group for several threads: the training thread, and autograd's threads, whose hooks
/// start reductions during backward. A lock serialises the starts. The callers must ensure that all ranks
/// start the same operations in the same order.
#[derive(Clone)]
pub struct Ranks {
    rank: usize,
    size: usize,
    group: Arc<Mutex<Box<dyn ProcessGroup>>>,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl Ranks {
    /// Wraps `group` in a handle.
    pub fn new(group: Box<dyn ProcessGroup>) -> Self {
        Self { rank: group.rank(), size: group.size(), group: Arc::new(Mutex::new(group)) }
    }

    /// Creates a group of one rank.
    pub fn single() -> Self {
        Self::new(Box::new(LoneGroup(1)))
    }

    /// Returns this process's rank, 0-based.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    fn group(&self) -> MutexGuard<'_, Box<dyn ProcessGroup>> {
        // If a thread panicked under the lock, at worst the peers time out on its operation.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`ProcessGroup::all_reduce`].
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().all_reduce(tensor, op)
    }

    /// See [`ProcessGroup::start`].
    pub fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().start(collective)
    }

    /// See [`ProcessGroup::start_all`].
    pub fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().start_all(all)
    }

    /// See [`ProcessGroup::allocate`].
    pub fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        self.group().allocate(numel, kind)
    }

    /// See [`ProcessGroup::create_second_group`].
    pub fn create_second_group(&self, host: Box<dyn ProcessGroup>) -> Result<Self, CollectiveError> {
        Ok(Self::new(self.group().create_second_group(host)?))
    }

    /// See [`ProcessGroup::health`].
    pub fn health(&self) -> Result<(), CollectiveError> {
        self.group().health()
    }

    /// Waits for all ranks; the last handle also closes the group.
    pub fn shutdown(self) -> Result<(), CollectiveError> {
        match Arc::try_unwrap(self.group) {
            Ok(group) => group.into_inner().unwrap_or_else(PoisonError::into_inner).shutdown(),
            Err(shared) => {
                let barrier = shared.lock().unwrap_or_else(PoisonError::into_inner).barrier()?;
                barrier.wait()
            }
        }
    }
}
