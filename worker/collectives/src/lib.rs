//! Collective operations between the ranks of a run.
//!
//! A [`ProcessGroup`] starts operations and returns a [`Work`] for each. Every rank calls the same operations on tensors
//! of the same shape and dtype in the same order; several may be in flight. Tensors are dense and contiguous and must not
//! be read or written between the start of an operation and the end of its `wait`.
//!
//! Backends: [`LoneGroup`] (one process, no communication), [`GlooGroup`] (CPU processes over TCP),
//! [`SharedGroup`] (CPU processes of one machine, through memory that they share) and [`NcclGroup`] (GPUs).
//! All of them pass the one conformance suite of the tests. [`DeviceGroup`] is one for each kind of memory.

mod collective;
mod device;
mod error;
mod gloo;
mod gpus;
mod nccl;
mod ranks;
mod rendezvous;
mod shared;
mod single;
mod transport;

use std::time::Duration;

use tch::{Kind, Tensor};

pub use collective::Collective;
pub use device::DeviceGroup;
pub use dtrain_torch_shim::gloo::ReduceOp;
pub use error::{CollectiveError, Operation, RendezvousError};
pub use gloo::GlooGroup;
pub use nccl::{Invitation, Nccl, NcclError, NcclGroup, Seat, Version};
pub use ranks::Ranks;
pub use rendezvous::Rendezvous;
pub use shared::SharedGroup;
pub use single::LoneGroup;
pub use transport::Transport;

/// How long an operation waits for its peers unless the group was told otherwise. Long enough for one rank to read a slow file
/// system, or to be late with its share of an evaluation, while the others wait.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The ranks of a run and what they can do together.
pub trait ProcessGroup: Send {
    /// This process's rank, 0-based.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// How long operations started from now on wait for their peers.
    fn set_timeout(&mut self, timeout: Duration);

    /// A zeroed, flat tensor on the CPU in memory where this group reduces fastest, or `None` where ordinary memory serves as
    /// well. Operations on it, and on contiguous views of it, take the fast way if every rank passes the same part of the
    /// same allocation. Every rank calls this with the same arguments in the same order; it
    /// blocks until all have come, and all get a tensor or none does.
    ///
    /// The fast way is [`SharedGroup`]'s, for Float, Double, Half and BFloat16: [`Collective::AllReduce`], and
    /// [`Collective::ReduceScatter`] and [`Collective::AllGather`] in place. A lack of shared memory is no error: the answer is `None`.
    fn allocate(&self, _numel: usize, _kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        Ok(None)
    }

    /// Starts an operation. `InvalidTensor` before anything is sent; failures of peers and network come from the work.
    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError>;

    /// Starts several operations, as one where the backend can: NCCL plans them as a whole. Every rank passes the same ones in the same
    /// order, also where they are complete at different times.
    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        let works = all.iter().map(|one| self.start(*one));
        Ok(Box::new(All(works.collect::<Result<_, _>>()?)))
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

    /// Ends when every rank has called it.
    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError>;

    /// Whether the group works, as far as this rank knows. Where the operations run on a device, a `wait` that the host does not
    /// take part in cannot tell: ask here after the host has waited for the device, before believing what came of it.
    fn health(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// The same ranks once more, for operations whose order is independent of this group's: over `host`, another group of them in
    /// the hosts' memory. Every rank calls it in the order of this group's operations.
    fn beside(&self, host: Box<dyn ProcessGroup>) -> Result<Box<dyn ProcessGroup>, CollectiveError> {
        Ok(host)
    }

    /// Leaves the group in good order: waits for all ranks, then closes the connections. A group that is merely dropped
    /// leaves its connections to the end of the process.
    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError>;
}

/// An operation under way.
pub trait Work: Send {
    /// Waits until the operation has ended and its result is in the tensors.
    /// After an error, such as of a peer that is late or gone, the contents of the tensors are undefined, and
    /// the group is of no further use.
    fn wait(self: Box<Self>) -> Result<(), CollectiveError>;
}

/// Several operations that are waited for together.
struct All(Vec<Box<dyn Work>>);

impl Work for All {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.0.into_iter().try_for_each(<dyn Work>::wait)
    }
}

/// An operation that has ended already.
pub struct Done;

impl Work for Done {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
