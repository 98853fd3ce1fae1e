//! Operations in flight on the device.

use std::sync::Arc;
use std::time::Instant;

use tch::Tensor;

use super::super::{CollectiveError, Operation, Work};
use super::communicator::Communicator;
use super::pause::pause;
use super::timeline::{Mark, Timeline};

/// An operation in flight on the device, which accesses `tensors` until it reaches `mark`.
pub(super) struct InFlight {
    pub(super) operation: Operation,
    /// Whether the host waits too.
    pub(super) by_host: bool,
    pub(super) mark: Arc<dyn Mark>,
    pub(super) communicator: Arc<Communicator>,
    pub(super) timeline: Arc<dyn Timeline>,
    pub(super) tensors: Vec<Tensor>,
}

// SAFETY: libtorch counts references to a tensor atomically, and this type does not access the contents.
unsafe impl Send for InFlight {}

impl Work for InFlight {
    fn wait(mut self: Box<Self>) -> Result<(), CollectiveError> {
        let started = Instant::now();
        // If the operation does not end, the watchdog ends the group, and this returns an error.
        while self.by_host && !self.is_reached()? {
            pause(started.elapsed(), std::thread::sleep);
        }
        self.communicator.health()?;
        self.mark.block_current_stream().map_err(|error| self.operation.error(error))?;
        // Later work of the compute stream on this memory runs after the operation.
        self.tensors.clear();
        Ok(())
    }
}

impl InFlight {
    fn is_reached(&self) -> Result<bool, CollectiveError> {
        self.communicator.health()?;
        self.mark.is_reached().map_err(|error| self.operation.error(error))
    }
}

/// Without a wait, the allocator keeps the tensors' memory until the device has finished.
impl Drop for InFlight {
    fn drop(&mut self) {
        if let Err(error) = self.tensors.iter().try_for_each(|tensor| self.timeline.record_tensor(tensor)) {
            tracing::debug!("{}: {error}", self.operation.op);
        }
    }
}
