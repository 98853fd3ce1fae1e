//! Operations that the device has been given and that somebody waits for.

use std::sync::Arc;
use std::time::Instant;

use tch::Tensor;

use super::super::{CollectiveError, Operation, Work};
use super::communicator::Communicator;
use super::pause::pause;
use super::timeline::{Mark, Timeline};

/// An operation that the device has been given. The device reads and writes `tensors` until `mark` is reached.
pub(super) struct InFlight {
    pub(super) operation: Operation,
    /// The host waits for it too.
    pub(super) by_host: bool,
    pub(super) mark: Arc<dyn Mark>,
    pub(super) communicator: Arc<Communicator>,
    pub(super) timeline: Arc<dyn Timeline>,
    pub(super) tensors: Vec<Tensor>,
}

// SAFETY: libtorch counts the references to a tensor atomically, and nothing here reads or writes what is in it.
unsafe impl Send for InFlight {}

impl Work for InFlight {
    fn wait(mut self: Box<Self>) -> Result<(), CollectiveError> {
        let begun = Instant::now();
        // The watchdog ends what does not end: then this is an error.
        while self.by_host && !self.is_reached()? {
            pause(begun.elapsed(), std::thread::sleep);
        }
        self.communicator.health()?;
        self.mark.join().map_err(|error| self.operation.error(error))?;
        // What the computing stream does with their memory from now on comes after.
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

/// Without a wait the allocator keeps the tensors' memory until the device has done.
impl Drop for InFlight {
    fn drop(&mut self) {
        if let Err(error) = self.tensors.iter().try_for_each(|tensor| self.timeline.keep(tensor)) {
            tracing::debug!("{}: {error}", self.operation.op);
        }
    }
}
