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

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dtrain_shared_memory::{
    Collective as Kernel, Control, Element, Fault, Member, Operation as Reduce, Pending, Region, Segment,
};
use dtrain_torch_shim::blob;
use tch::{Device, Kind, Tensor};

use super::collective::{Caller, bytes_of};
use super::{Collective, CollectiveError, GlooGroup, Operation, ProcessGroup, Work};

use agree::Failure;
pub(super) use agree::broadcast;
pub(super) use connect::{Decision, Facts, decide, gather_facts};

/// A group of CPU processes on one machine.
#[derive(Debug)]
pub struct SharedGroup {
    /// Dropped before Gloo, so that the other ranks notice immediately that this one left.
    member: Member,
    gloo: GlooGroup,
    /// The segments of `allocate`. A tensor or an operation keeps a segment alive.
    segments: RefCell<Vec<Weak<Segment>>>,
    caller: Caller,
}

impl SharedGroup {
    /// Creates shared memory for the ranks of `gloo` and agrees with them that all have it. Blocks until all
    /// have called. If a rank fails, all get back `gloo` and the rank with its reason.
    pub fn create(gloo: GlooGroup) -> Result<Result<Self, (GlooGroup, String)>, CollectiveError> {
        let (rank, size) = (gloo.rank(), gloo.size());
        let created = agree::create_jointly(
            &gloo,
            || {
                let (control, ticket) = Control::create(size)?;
                Ok((Member::new(control)?, ticket))
            },
            |ticket| Ok(Member::new(Control::open(ticket, rank)?)?),
        )?;
        Ok(match created {
            Ok(member) => {
                Ok(Self { member, gloo, segments: RefCell::default(), caller: Caller::new(rank, size) })
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
        if whole.device() != Device::Cpu || whole.numel() == 0 {
            return None;
        }
        let (element, count) = (element(whole.kind())?, whole.numel());
        let mut segments = self.segments.borrow_mut();
        // Remove unmapped segments: other memory may have their addresses by now.
        segments.retain(|segment| segment.strong_count() > 0);
        let (address, bytes) = (whole.data_ptr().cast(), count * element.bytes());
        let mut segments = segments.iter().filter_map(Weak::upgrade);
        let (offset, segment) =
            segments.find_map(|segment| Some((segment.offset_of(self.rank(), address, bytes)?, segment)))?;
        let operation = Reduce { collective: kernel, element, offset, count };
        offset.is_multiple_of(element.bytes()).then_some((operation, segment))
    }
}

/// Returns whether `part` is the `rank`-th of equal parts of `whole`, in the same memory.
fn is_own_part(part: &Tensor, whole: &Tensor, rank: usize) -> bool {
    part.device() == Device::Cpu
        && part.data_ptr() as usize == (whole.data_ptr() as usize).wrapping_add(rank * bytes_of(part))
}

fn element(kind: Kind) -> Option<Element> {
    match kind {
        Kind::Float => Some(Element::F32),
        Kind::Double => Some(Element::F64),
        Kind::Half => Some(Element::F16),
        Kind::BFloat16 => Some(Element::Bf16),
        _ => None,
    }
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
fn to_error(operation: Operation, fault: Fault) -> CollectiveError {
    let message = fault.to_string();
    match fault {
        Fault::TimedOut(rank, _) => CollectiveError::TimedOut(operation, Some(rank)),
        Fault::PeerLost(_) => CollectiveError::PeerLost(operation, message),
        Fault::Range => CollectiveError::InvalidTensor(operation, message),
        Fault::Mismatch(_) | Fault::Stopped => operation.failed(message),
    }
}

impl ProcessGroup for SharedGroup {
    fn rank(&self) -> usize {
        self.caller.rank
    }

    fn size(&self) -> usize {
        self.caller.size
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
        self.gloo.set_timeout(timeout);
    }

    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        let Some(element) = element(kind).filter(|_| numel > 0) else {
            return Ok(None);
        };
        let bytes = numel.checked_mul(element.bytes()).ok_or_else(|| {
            let reason = format!("{numel} elements of {kind:?} exceed the address space");
            CollectiveError::InvalidTensor(Operation::new("allocate", self.rank()), reason)
        })?;
        let map_tensor = |segment: Segment| -> Result<(Arc<Segment>, Tensor), Failure> {
            segment.reserve(self.rank())?;
            let segment = Arc::new(segment);
            let region = Region::new(&segment, self.rank()).ok_or("this rank has no region")?;
            Ok((segment, blob::from_region(region, numel, kind)?))
        };
        let created = agree::create_jointly(
            &self.gloo,
            || {
                let (segment, ticket) = Segment::create(self.size(), bytes)?;
                Ok((map_tensor(segment)?, ticket))
            },
            |ticket| match ticket.region_bytes() {
                wanted if wanted == bytes => map_tensor(Segment::open(ticket)?),
                wanted => Err(format!("rank 0 allocates {wanted} bytes, but this rank {bytes}").into()),
            },
        )?;
        match created {
            Ok((segment, tensor)) => {
                self.segments.borrow_mut().push(Arc::downgrade(&segment));
                Ok(Some(tensor))
            }
            Err(reason) => {
                if self.rank() == 0 {
                    tracing::warn!(
                        "{bytes} bytes of tensors per rank use ordinary memory, which is slower than shared memory: {reason}"
                    );
                }
                Ok(None)
            }
        }
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

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        let Self { member, gloo, .. } = *self;
        member.close();
        Box::new(gloo).shutdown()
    }
}
