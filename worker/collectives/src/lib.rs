//! Collective operations between the ranks of a run.
//!
//! A [`ProcessGroup`] starts operations and returns a [`Work`] for each. Every rank calls the same operations
//! in the same order, on tensors of equal shape and dtype. Several may be in flight. Tensors are dense and
//! contiguous, and nobody may read or write them between the start of an operation and the end of its `wait`.
//!
//! Backends: [`LoneGroup`] (one process, no communication), [`GlooGroup`] (CPU processes over TCP),
//! [`SharedGroup`] (CPU processes of one machine, through shared memory), [`NodesGroup`] (CPU processes of
//! several machines, through shared memory within each), [`NcclGroup`] (GPUs), and the group of the crate `dtrain-mpi`
//! (processes that `mpirun` started), which a program offers by [`offer_mpi`]. All pass the same conformance suite.
//! [`DeviceGroup`] combines a host group and NCCL.

mod address;
mod collective;
mod device;
mod error;
mod gloo;
mod gpus;
mod nccl;
mod nodes;
mod outside;
mod ranks;
mod rendezvous;
mod shared;
mod single;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use tch::{Kind, Tensor};

pub use collective::{Caller, Collective};
pub use device::DeviceGroup;
pub use dtrain_torch_shim::gloo::ReduceOp;
pub use error::{CollectiveError, Operation, RendezvousError};
pub use gloo::GlooGroup;
pub use nccl::{Nccl, NcclError, NcclGroup, RankConfig, UniqueId, Version};
pub use nodes::NodesGroup;
pub use outside::{ConnectMpi, has_mpi, offer_mpi};
pub use ranks::Ranks;
pub use rendezvous::Rendezvous;
pub use shared::{SharedGroup, first_reason};
pub use single::LoneGroup;
pub use transport::Transport;

/// The default time-out of an operation. Long enough for one rank to be late or to read a slow file system.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The ranks of a run and their collectives.
pub trait ProcessGroup: Send {
    /// Returns this process's rank, 0-based, and the number of ranks.
    fn rank_and_size(&self) -> (usize, usize);

    /// Returns this process's rank, 0-based.
    fn rank(&self) -> usize {
        self.rank_and_size().0
    }

    /// Returns the number of ranks.
    fn size(&self) -> usize {
        self.rank_and_size().1
    }

    /// Sets the time-out of operations that start later.
    fn set_timeout(&mut self, timeout: Duration);

    /// Allocates a zeroed, flat CPU tensor in the memory in which this group reduces fastest. Returns `None`
    /// if ordinary memory is equally fast. Operations on the tensor and its contiguous views are fast if
    /// every rank passes the same part of the same allocation. Every rank calls this with the same arguments
    /// in the same order. It blocks until all have called; either all get a tensor or none.
    ///
    /// [`SharedGroup`] is faster here, for Float, Double, Half and BFloat16: [`Collective::AllReduce`], and in
    /// place [`Collective::ReduceScatter`] and [`Collective::AllGather`]. [`NodesGroup`] is faster for
    /// [`Collective::AllReduce`]. Without shared memory the result is `None`.
    fn allocate(&self, _numel: usize, _kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        Ok(None)
    }

    /// Starts an operation. `InvalidTensor` comes before anything is sent; other failures from the work.
    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError>;

    /// Starts several operations, as one if the backend can: NCCL schedules them together. Every rank passes
    /// the same operations in the same order.
    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        let works = all.iter().map(|collective| self.start(*collective));
        Ok(Box::new(AllWork(works.collect::<Result<_, _>>()?)))
    }

    /// Starts [`Collective::AllReduce`].
    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.start(Collective::AllReduce(tensor, op))
    }

    /// Starts [`Collective::Broadcast`].
    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>, CollectiveError> {
        self.start(Collective::Broadcast(tensor, root))
    }

    /// Starts [`Collective::AllGather`].
    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        self.start(Collective::AllGather { output, input })
    }

    /// Starts [`Collective::ReduceScatter`].
    fn reduce_scatter(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.start(Collective::ReduceScatter { output, input, op })
    }

    /// Starts a barrier. It ends when every rank has started it.
    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError>;

    /// Checks whether the group works, as far as this rank knows. For operations on a device, `wait` cannot
    /// report failures: call this after the host has waited for the device, before using the results.
    fn health(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Returns a check for a rank that has left the group or whose process has ended, if this group knows.
    fn lost_peer(&self) -> Option<LostPeer> {
        None
    }

    /// Creates a second group of these ranks with an independent order of operations. `host` is another group
    /// in host memory. Every rank calls it in the order of this group's operations.
    fn create_second_group(
        &self,
        host: Box<dyn ProcessGroup>,
    ) -> Result<Box<dyn ProcessGroup>, CollectiveError> {
        Ok(host)
    }

    /// Waits for all ranks, then closes the connections. They stay open if the group is only dropped.
    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError>;
}

/// Returns a rank of a group that has left it or whose process has ended. It never blocks.
pub type LostPeer = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

/// An operation in flight.
pub trait Work: Send {
    /// Waits until the operation has ended and its result is in the tensors. After an error, such as a late
    /// or lost peer, the contents of the tensors are undefined and the group cannot be used any more.
    fn wait(self: Box<Self>) -> Result<(), CollectiveError>;
}

/// Several operations with one wait.
struct AllWork(Vec<Box<dyn Work>>);

impl Work for AllWork {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.0.into_iter().try_for_each(<dyn Work>::wait)
    }
}

/// An operation that has already ended.
pub struct CompletedWork;

impl Work for CompletedWork {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
