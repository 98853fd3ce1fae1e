//! Ranks of one machine: reductions in shared memory, everything else by Gloo.
//!
//! A tensor of [`ProcessGroup::allocate`] is in this rank's region of a segment that every rank maps. An
//! operation on it needs no copies and no messages: a separate thread of each rank (`dtrain_shared_memory`)
//! reduces its part of the range over all regions and writes the result to all of them.
//!
//! The tensor alone decides between shared memory and Gloo, so ranks with equal calls decide alike.
//! Operations of the two do not wait for each other: a later one may end first.

mod agree;
mod connect;
mod segments;

use std::sync::Arc;
use std::time::Duration;

use dtrain_shared_memory::{
    Collective as Kernel, Control, Fault, Member, Operation as Reduce, Pending, Segment,
};
use tch::{Device, Kind, Tensor};

use super::collective::{Caller, bytes_of};
use super::{Collective, CollectiveError, GlooGroup, LostPeer, Operation, ProcessGroup, Work};

pub(super) use agree::broadcast;
pub use agree::first_reason;
pub(super) use connect::{Decision, Facts, decide, gather_facts};
pub(super) use segments::{Located, Segments};

/// A group of CPU processes on one machine.
#[derive(Debug)]
pub struct SharedGroup {
    /// Dropped before Gloo, so that the other ranks notice immediately that this one left.
    member: Member,
    gloo: GlooGroup,
    segments: Segments,
    caller: Caller,
}

impl SharedGroup {
    /// Creates shared memory for the ranks of `gloo` and agrees with them that all have it. Blocks until all
    /// have called. If a rank fails, all get back `gloo` and the rank with its reason.
    pub fn create(gloo: GlooGroup) -> Result<Result<Self, (GlooGroup, String)>, CollectiveError> {
        let (rank, size) = gloo.rank_and_size();
        Ok(match join_team(&gloo, &gloo)? {
            Ok(member) => {
                Ok(Self { member, gloo, segments: Segments::new(rank), caller: Caller::new(rank, size) })
            }
            Err(reason) => Err((gloo, reason)),
        })
    }

    /// Returns the operation and its segment if the tensors are suitably placed in shared memory.
    fn in_shared_memory(&self, collective: Collective<'_>) -> Option<(Reduce, Arc<Segment>)> {
        let (whole, kernel) = match collective {
            Collective::AllReduce(tensor, op) => (tensor, Kernel::AllReduce(op)),
            Collective::Broadcast(..) => return None,
            Collective::AllGather { output, input } => {
                is_own_part(input, output, self.rank()).then_some((output, Kernel::AllGather))?
            }
            Collective::ReduceScatter { output, input, op } => {
                let scatter = Kernel::ReduceScatter(op);
                is_own_part(output, input, self.rank()).then_some((input, scatter))?
            }
        };
        let Located { element, offset, segment } = self.segments.locate(whole)?;
        Some((Reduce { collective: kernel, element, offset, count: whole.numel() }, segment))
    }
}

/// Joins the team of this node's ranks. All ranks of `all` join theirs, or get the reason of the first that
/// failed.
pub(super) fn join_team(
    node: &GlooGroup,
    all: &GlooGroup,
) -> Result<Result<Member, String>, CollectiveError> {
    agree::create_jointly(
        node,
        all,
        || {
            let (control, ticket) = Control::create(node.size())?;
            Ok((Member::new(control)?, ticket))
        },
        |ticket| Ok(Member::new(Control::open(ticket, node.rank())?)?),
    )
}

/// Returns whether `part` is the `rank`-th of equal parts of `whole`, in the same memory.
fn is_own_part(part: &Tensor, whole: &Tensor, rank: usize) -> bool {
    part.device() == Device::Cpu
        && part.data_ptr() as usize == (whole.data_ptr() as usize).wrapping_add(rank * bytes_of(part))
}

struct SharedWork {
    pending: Pending,
    operation: Operation,
}

impl Work for SharedWork {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.pending.wait().map_err(|fault| to_error(self.operation, fault))
    }
}

/// Converts a fault to an error of the group.
pub(super) fn to_error(operation: Operation, fault: Fault) -> CollectiveError {
    let message = fault.to_string();
    match fault {
        Fault::TimedOut(rank, _) => CollectiveError::TimedOut(operation, Some(rank)),
        Fault::PeerLost(_) => CollectiveError::PeerLost(operation, message),
        Fault::Range => CollectiveError::InvalidTensor(operation, message),
        Fault::Mismatch(_) | Fault::Stopped => operation.failed(message),
    }
}

impl ProcessGroup for SharedGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.caller.rank, self.caller.size)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
        self.gloo.set_timeout(timeout);
    }

    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        self.segments.allocate((&self.gloo, &self.gloo), numel, kind)
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check(collective)?;
        let Some((reduction, segment)) = self.in_shared_memory(collective) else {
            return self.gloo.start(collective);
        };
        let bytes = reduction.count * reduction.element.bytes();
        let operation = self.caller.operation(collective.name(), bytes);
        let pending = self.member.start(reduction, &segment, self.caller.timeout);
        Ok(Box::new(SharedWork { pending: pending.map_err(|fault| to_error(operation, fault))?, operation }))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        self.gloo.barrier()
    }

    fn lost_peer(&self) -> Option<LostPeer> {
        Some(Arc::new(self.member.lost_peer()))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        let Self { member, gloo, .. } = *self;
        member.close();
        Box::new(gloo).shutdown()
    }
}
