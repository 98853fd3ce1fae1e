//! NCCL: collectives between GPUs.
//!
//! An operation is given to a stream of its own, behind what the calling thread has computed so far; the host goes on, and so does
//! what it computes, until it waits for the operation: then the GPU waits, not the host. Tensors live until that wait, by the
//! references that the work holds; a work that is dropped without it has the allocator keep their memory.
//!
//! A watchdog ends the group when an operation waits past its time-out or a peer is gone, and [`ProcessGroup::health`] says so: ask
//! it after the host has waited for the GPU, before believing what came of it. NCCL's own environment variables work as they do
//! everywhere.

mod api;
mod calls;
mod communicator;
mod pause;
#[cfg(test)]
mod tests;
mod timeline;
mod watchdog;
mod work;

use std::sync::Arc;
use std::time::Duration;

use cudarc::nccl::sys::ncclUniqueId;
use tch::{Device, Kind, Tensor};

use self::api::{Api, SUCCESS};
pub use self::api::{NcclError, Version};
use self::calls::give;
use self::communicator::Communicator;
use self::timeline::{GpuTimeline, Timeline};
use self::watchdog::Watchdog;
use self::work::InFlight;
use super::collective::{Caller, bytes_of};
use super::{Collective, CollectiveError, Done, Operation, ProcessGroup, ReduceOp, Work};

/// How a group of NCCL's is called among its ranks: rank 0 makes it, see [`Nccl::invite`].
pub type Invitation = [u8; 128];

/// A loaded NCCL, which stays for the life of the process.
#[derive(Clone, Copy)]
pub struct Nccl(&'static Api);

impl Nccl {
    /// The NCCL that libtorch uses in this process. Call it after `dtrain_torch_shim::cuda::load`.
    pub fn load() -> Result<Self, NcclError> {
        Ok(Self(Box::leak(Box::new(Api::load()?))))
    }

    /// Its version. Ranks of different versions cannot be relied on to understand each other.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// A name for a new group, on rank 0, for all ranks.
    pub fn invite(&self) -> Result<Invitation, NcclError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: id is a valid place.
        match unsafe { (self.0.functions.get_unique_id)(&mut id) } {
            SUCCESS => Ok(id.internal.map(|byte| byte as u8)),
            code => Err(self.0.fails(code)),
        }
    }
}

/// Who a rank is in a group, and how long it waits for the others to come.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// How long connecting may take.
    pub timeout: Duration,
}

/// A group of processes with a GPU each.
pub struct NcclGroup {
    device: Device,
    caller: Caller,
    /// Before the communicator: it must not look when that one goes.
    watchdog: Watchdog,
    communicator: Arc<Communicator>,
    timeline: Arc<dyn Timeline>,
}

impl NcclGroup {
    /// Connects the ranks that hold the same invitation, each with GPU number `gpu`, which is the current device of the calling
    /// thread; blocks until all have come or the time is up.
    pub fn connect(
        nccl: &Nccl,
        invitation: &Invitation,
        seat: Seat,
        gpu: usize,
    ) -> Result<Self, CollectiveError> {
        let connecting = Operation::connecting(seat.rank, seat.timeout);
        let timeline = GpuTimeline::new(gpu).map_err(|error| connecting.error(error))?;
        let communicator = Communicator::connect(nccl.0, invitation, seat.size, connecting)?;
        Self::over(communicator, seat, Device::Cuda(gpu), Arc::new(timeline))
    }

    fn over(
        communicator: Communicator,
        seat: Seat,
        device: Device,
        timeline: Arc<dyn Timeline>,
    ) -> Result<Self, CollectiveError> {
        let communicator = Arc::new(communicator);
        let watchdog = Watchdog::start(Arc::clone(&communicator), Arc::clone(&timeline), seat.rank);
        let watchdog = watchdog.map_err(|error| {
            let message = format!("no thread can be started to watch over NCCL: {error}");
            Operation::new("connect", seat.rank).failed(message)
        })?;
        Ok(Self { device, caller: Caller::new(seat.rank, seat.size), watchdog, communicator, timeline })
    }

    /// A second group of the same ranks, on a stream of its own: its operations have an order of their own. Every rank calls it,
    /// in the order of this group's operations.
    pub fn split(&self) -> Result<Self, CollectiveError> {
        let seat = Seat { rank: self.caller.rank, size: self.caller.size, timeout: self.caller.timeout };
        let connecting = Operation::connecting(seat.rank, seat.timeout);
        let timeline: Arc<dyn Timeline> = match self.device {
            Device::Cuda(gpu) => Arc::new(GpuTimeline::new(gpu).map_err(|error| connecting.error(error))?),
            _ => Arc::clone(&self.timeline),
        };
        let communicator = self.communicator.split(connecting)?;
        let mut group = Self::over(communicator, seat, self.device, timeline)?;
        group.caller.timeout = self.caller.timeout;
        Ok(group)
    }

    /// Gives operations to the stream that communicates, several as one. `by_host` has a wait hold the host too.
    fn give(
        &self,
        op: &'static str,
        all: &[Collective<'_>],
        by_host: bool,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        all.iter().try_for_each(|one| self.check(*one))?;
        let all: Vec<_> = all.iter().copied().filter(|one| one.input().numel() > 0).collect();
        if all.is_empty() {
            return Ok(Box::new(Done));
        }
        let tensors: Vec<&Tensor> = all.iter().flat_map(tensors).collect();
        let bytes = tensors.iter().map(|tensor| bytes_of(tensor)).sum();
        let operation = self.caller.operation(op, bytes);
        self.timeline.fork().map_err(|error| operation.error(error))?;
        let stream = self.timeline.stream();
        self.communicator.call(operation, |api, comm| give(api, &all, comm, stream))?;
        let mark = self.timeline.mark().map_err(|error| operation.error(error))?;
        self.watchdog.watch(operation, Arc::clone(&mark));
        Ok(Box::new(InFlight {
            operation,
            by_host,
            mark,
            communicator: Arc::clone(&self.communicator),
            timeline: Arc::clone(&self.timeline),
            tensors: tensors.into_iter().map(Tensor::shallow_clone).collect(),
        }))
    }

    /// What does not fit is refused before anything is sent; NCCL reads memory of its own GPU.
    fn check(&self, one: Collective<'_>) -> Result<(), CollectiveError> {
        self.caller.check(one)?;
        let (place, own) = (one.input().device(), self.device);
        match place == own {
            true => Ok(()),
            false => {
                let reason = format!("the tensor is on {place:?}, and this rank's group on {own:?}");
                Err(CollectiveError::InvalidTensor(Operation::new(one.name(), self.caller.rank), reason))
            }
        }
    }
}

/// All that an operation reads or writes.
fn tensors<'a>(one: &Collective<'a>) -> Vec<&'a Tensor> {
    match one {
        Collective::AllReduce(..) | Collective::Broadcast(..) => vec![one.input()],
        _ => vec![one.input(), one.output()],
    }
}

impl ProcessGroup for NcclGroup {
    fn rank(&self) -> usize {
        self.caller.rank
    }

    fn size(&self) -> usize {
        self.caller.size
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
    }

    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.give(one.name(), &[one], false)
    }

    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        match all.first() {
            Some(first) => self.give(first.name(), all, false),
            None => Ok(Box::new(Done)),
        }
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        let torch = |error: tch::TchError| self.caller.operation("barrier", 0).torch(error);
        let token = Tensor::f_zeros([1], (Kind::Float, self.device)).map_err(torch)?;
        self.give("barrier", &[Collective::AllReduce(&token, ReduceOp::Sum)], true)
    }

    fn health(&self) -> Result<(), CollectiveError> {
        self.communicator.health()
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        self.barrier()?.wait()?;
        let closing = self.caller.operation("shutdown", 0);
        // It is not looked after any more: a peer that has closed already is no fault.
        drop(self.watchdog);
        self.communicator.close(closing)
    }
}
