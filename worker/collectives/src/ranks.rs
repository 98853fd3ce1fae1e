//! A group that several threads start operations on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Kind, Tensor};

use super::{Collective, CollectiveError, LoneGroup, ProcessGroup, ReduceOp, Work};

/// A handle of a process group, for the training thread and for autograd's, whose hooks start reductions while backward goes
/// on. The lock makes every start whole; that the ranks start the same operations in the same order is the callers' affair.
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
    /// A handle of `group`.
    pub fn new(group: Box<dyn ProcessGroup>) -> Self {
        Self { rank: group.rank(), size: group.size(), group: Arc::new(Mutex::new(group)) }
    }

    /// The only rank.
    pub fn single() -> Self {
        Self::new(Box::new(LoneGroup(1)))
    }

    /// This process's rank, 0-based.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    fn group(&self) -> MutexGuard<'_, Box<dyn ProcessGroup>> {
        // A group whose lock was held during a panic has at worst an operation that the peers time out on.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`ProcessGroup::all_reduce`].
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().all_reduce(tensor, op)
    }

    /// As [`ProcessGroup::start`].
    pub fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().start(one)
    }

    /// As [`ProcessGroup::start_all`].
    pub fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        self.group().start_all(all)
    }

    /// As [`ProcessGroup::allocate`].
    pub fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        self.group().allocate(numel, kind)
    }

    /// As [`ProcessGroup::beside`].
    pub fn beside(&self, host: Box<dyn ProcessGroup>) -> Result<Self, CollectiveError> {
        Ok(Self::new(self.group().beside(host)?))
    }

    /// As [`ProcessGroup::health`].
    pub fn health(&self) -> Result<(), CollectiveError> {
        self.group().health()
    }

    /// Leaves the group in good order; the last handle closes it, an earlier one only waits for all ranks.
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
