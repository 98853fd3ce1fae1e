//! Ranks with one GPU each: NCCL for tensors on the GPU, a host group for tensors in host memory.

use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{AllWork, Collective, CollectiveError, NcclGroup, ProcessGroup, Work};

/// Two groups of the same ranks; the device of a tensor selects one. They do not wait for each other.
///
/// Host messages (statuses, orders, barriers) must not wait for GPU work, and must not cost a copy.
pub struct DeviceGroup {
    host: Box<dyn ProcessGroup>,
    gpus: NcclGroup,
}

impl DeviceGroup {
    /// Combines two groups of the same ranks.
    pub fn new(host: Box<dyn ProcessGroup>, gpus: NcclGroup) -> Self {
        Self { host, gpus }
    }
}

/// Undefined tensors go to the host group, which rejects them.
fn is_on_host(collective: &Collective<'_>) -> bool {
    !collective.input().defined() || collective.input().device() == Device::Cpu
}

impl ProcessGroup for DeviceGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        self.host.rank_and_size()
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.host.set_timeout(timeout);
        self.gpus.set_timeout(timeout);
    }

    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        self.host.allocate(numel, kind)
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        match is_on_host(&collective) {
            true => self.host.start(collective),
            false => self.gpus.start(collective),
        }
    }

    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        let (host, gpus): (Vec<_>, Vec<_>) = all.iter().copied().partition(is_on_host);
        let works = vec![self.host.start_all(&host)?, self.gpus.start_all(&gpus)?];
        Ok(Box::new(AllWork(works)))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        self.host.barrier()
    }

    fn health(&self) -> Result<(), CollectiveError> {
        self.gpus.health()?;
        self.host.health()
    }

    fn create_second_group(
        &self,
        host: Box<dyn ProcessGroup>,
    ) -> Result<Box<dyn ProcessGroup>, CollectiveError> {
        Ok(Box::new(Self::new(host, self.gpus.split()?)))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        // The host group goes last: through it the ranks notice that a rank is gone. None leaves before all have ended their
        // operations: until then it would count as lost.
        let Self { host, gpus } = *self;
        gpus.shutdown_after(|| host.barrier()?.wait())?;
        host.shutdown()
    }
}
