//! NCCL: collectives between GPUs.
//!
//! An operation runs on a separate stream, after the work that the calling thread has queued so far. The host
//! and its computation continue. `wait` makes the GPU wait, not the host. The work keeps its tensors alive
//! until then; if it is dropped without a wait, the allocator keeps their memory.
//!
//! A watchdog ends the group when an operation exceeds its time-out or a peer is gone, and
//! [`ProcessGroup::health`] then returns the error: call it after the host has waited for the GPU, before
//! using the results. NCCL's environment variables work as usual.

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
use self::calls::enqueue;
use self::communicator::Communicator;
use self::timeline::{GpuTimeline, Timeline};
use self::watchdog::Watchdog;
use self::work::InFlight;
use super::collective::{Caller, bytes_of};
use super::{Collective, CollectiveError, CompletedWork, LostPeer, Operation, ProcessGroup, ReduceOp, Work};

/// The identifier of an NCCL group, which rank 0 creates: see [`Nccl::create_unique_id`].
pub type UniqueId = [u8; 128];

/// A loaded NCCL, which stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Nccl(&'static Api);

impl Nccl {
    /// Loads the NCCL that libtorch uses in this process. Call it after `dtrain_torch_shim::cuda::load`.
    pub fn load() -> Result<Self, NcclError> {
        Ok(Self(Box::leak(Box::new(Api::load()?))))
    }

    /// Returns its version. Ranks with different versions may be incompatible.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Creates a unique id on rank 0, for all ranks.
    pub fn create_unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: id is valid for writes.
        match unsafe { (self.0.functions.get_unique_id)(&mut id) } {
            SUCCESS => Ok(id.internal.map(|byte| byte as u8)),
            code => Err(self.0.failure(code)),
        }
    }
}

/// A rank of a group and its connection time-out.
#[derive(Debug, Clone, Copy)]
pub struct RankConfig {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The time-out of connecting.
    pub timeout: Duration,
}

/// A group of processes with one GPU each.
pub struct NcclGroup {
    device: Device,
    caller: Caller,
    /// Dropped before the communicator, which it must not use afterwards.
    watchdog: Watchdog,
    communicator: Arc<Communicator>,
    timeline: Arc<dyn Timeline>,
    lost_peer: Option<LostPeer>,
}

impl NcclGroup {
    /// Connects the ranks with the same `unique_id`, each with GPU number `gpu`, which must be the
    /// current device of the calling thread. Blocks until all have connected or the time-out has passed.
    /// `lost_peer` ends the group early: NCCL itself may wait for a dead peer.
    pub fn connect(
        nccl: &Nccl,
        unique_id: &UniqueId,
        config: RankConfig,
        gpu: usize,
        lost_peer: Option<LostPeer>,
    ) -> Result<Self, CollectiveError> {
        let connecting = Operation::connecting(config.rank, config.timeout);
        let timeline = GpuTimeline::new(gpu).map_err(|error| connecting.error(error))?;
        let communicator = Communicator::connect(nccl.0, unique_id, config.size, connecting)?;
        Self::from_communicator(communicator, config, Device::Cuda(gpu), Arc::new(timeline), lost_peer)
    }

    fn from_communicator(
        communicator: Communicator,
        config: RankConfig,
        device: Device,
        timeline: Arc<dyn Timeline>,
        lost_peer: Option<LostPeer>,
    ) -> Result<Self, CollectiveError> {
        let communicator = Arc::new(communicator);
        let watchdog =
            Watchdog::start(Arc::clone(&communicator), Arc::clone(&timeline), config.rank, lost_peer.clone());
        let watchdog = watchdog.map_err(|error| {
            let message = format!("cannot start NCCL's watchdog thread: {error}");
            Operation::new("connect", config.rank).failed(message)
        })?;
        let caller = Caller::new(config.rank, config.size);
        Ok(Self { device, caller, watchdog, communicator, timeline, lost_peer })
    }

    /// Splits off a group of the same ranks on a separate stream, with an independent order of operations.
    /// Every rank calls it, in the order of this group's operations.
    pub fn split(&self) -> Result<Self, CollectiveError> {
        let config =
            RankConfig { rank: self.caller.rank, size: self.caller.size, timeout: self.caller.timeout };
        let connecting = Operation::connecting(config.rank, config.timeout);
        let timeline: Arc<dyn Timeline> = match self.device {
            Device::Cuda(gpu) => Arc::new(GpuTimeline::new(gpu).map_err(|error| connecting.error(error))?),
            _ => Arc::clone(&self.timeline),
        };
        let communicator = self.communicator.split(connecting)?;
        let mut group =
            Self::from_communicator(communicator, config, self.device, timeline, self.lost_peer.clone())?;
        group.caller.timeout = self.caller.timeout;
        Ok(group)
    }

    /// Waits for all ranks, stops watching, calls `all_watch_no_more`, and closes the group.
    pub(super) fn shutdown_after(
        self,
        all_watch_no_more: impl FnOnce() -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.barrier()?.wait()?;
        let closing = self.caller.operation("shutdown", 0);
        // A peer that has already closed is not a fault.
        drop(self.watchdog);
        all_watch_no_more()?;
        self.communicator.close(closing)
    }

    /// Queues operations on the communication stream, several as one. `by_host` makes `wait` block the host.
    fn enqueue(
        &self,
        op: &'static str,
        all: &[Collective<'_>],
        by_host: bool,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        all.iter().try_for_each(|collective| self.check(*collective))?;
        let all: Vec<_> = all.iter().copied().filter(|collective| collective.input().numel() > 0).collect();
        if all.is_empty() {
            return Ok(Box::new(CompletedWork));
        }
        let tensors: Vec<&Tensor> = all.iter().flat_map(tensors).collect();
        let bytes = tensors.iter().map(|tensor| bytes_of(tensor)).sum();
        let operation = self.caller.operation(op, bytes);
        self.timeline.fork().map_err(|error| operation.error(error))?;
        let stream = self.timeline.stream();
        self.communicator.call(operation, |api, comm| enqueue(api, &all, comm, stream))?;
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

    /// Checks the tensors before anything is sent. NCCL needs tensors on this group's GPU.
    fn check(&self, collective: Collective<'_>) -> Result<(), CollectiveError> {
        self.caller.check(collective)?;
        let (device, own) = (collective.input().device(), self.device);
        if device == own {
            return Ok(());
        }
        let operation = Operation::new(collective.name(), self.caller.rank);
        let reason = format!("the tensor is on {device:?}, but this rank's group uses {own:?}");
        Err(CollectiveError::InvalidTensor(operation, reason))
    }
}

/// Returns all tensors that an operation reads or writes.
fn tensors<'a>(collective: &Collective<'a>) -> Vec<&'a Tensor> {
    match collective {
        Collective::AllReduce(..) | Collective::Broadcast(..) => vec![collective.input()],
        _ => vec![collective.input(), collective.output()],
    }
}

impl ProcessGroup for NcclGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.caller.rank, self.caller.size)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.enqueue(collective.name(), &[collective], false)
    }

    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        match all.first() {
            Some(first) => self.enqueue(first.name(), all, false),
            None => Ok(Box::new(CompletedWork)),
        }
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        let torch = |error: tch::TchError| self.caller.operation("barrier", 0).torch(error);
        let token = Tensor::f_zeros([1], (Kind::Float, self.device)).map_err(torch)?;
        self.enqueue("barrier", &[Collective::AllReduce(&token, ReduceOp::Sum)], true)
    }

    fn health(&self) -> Result<(), CollectiveError> {
        self.communicator.health()
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        self.shutdown_after(|| Ok(()))
    }
}
