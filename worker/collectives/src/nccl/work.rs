//! Operations that the device has been given and that somebody waits for.

use std::sync::Arc;
use std::time::Instant;

use dtrain_torch_shim::ShimError;
use tch::Tensor;

use super::super::{CollectiveError, Operation, Work};
use super::communicator::Communicator;
use super::pause::pause;
use super::timeline::{Mark, Timeline};

/// An operation that the device has been given.
pub(super) struct InFlight {
    operation: Operation,
    mark: Arc<dyn Mark>,
    communicator: Arc<Communicator>,
    kept: Option<Kept>,
}

/// Tensors that the device may still be reading.
struct Kept {
    tensors: Vec<Tensor>,
    timeline: Arc<dyn Timeline>,
}

impl InFlight {
    /// The device reads and writes `tensors` until `mark` is reached.
    pub(super) fn new(
        operation: Operation,
        mark: Arc<dyn Mark>,
        communicator: Arc<Communicator>,
        timeline: Arc<dyn Timeline>,
        tensors: Vec<Tensor>,
    ) -> Self {
        Self {
            operation,
            mark,
            communicator,
            kept: Some(Kept { tensors, timeline }),
        }
    }
}

// SAFETY: libtorch counts the references to a tensor atomically, and nothing here reads or writes what is in it.
unsafe impl Send for Kept {}

impl Kept {
    fn release(&self) -> Result<(), ShimError> {
        self.tensors
            .iter()
            .filter(|tensor| tensor.numel() > 0)
            .try_for_each(|tensor| self.timeline.keep(tensor))
    }
}

impl Work for InFlight {
    fn is_completed(&self) -> Result<bool, CollectiveError> {
        self.communicator.health()?;
        self.mark
            .is_reached()
            .map_err(|error| self.operation.error(error))
    }

    fn wait(mut self: Box<Self>) -> Result<(), CollectiveError> {
        self.communicator.health()?;
        self.mark.join().map_err(|error| self.operation.error(error))?;
        // What the computing stream does with their memory from now on comes after.
        self.kept = None;
        Ok(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept
            && let Err(error) = kept.release()
        {
            tracing::debug!("{}: {error}", self.operation.op);
        }
    }
}

/// An operation that the host waits for too.
pub(super) struct Barrier(pub(super) Box<dyn Work>);

impl Work for Barrier {
    fn is_completed(&self) -> Result<bool, CollectiveError> {
        self.0.is_completed()
    }

    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        let begun = Instant::now();
        // The watchdog ends what does not end: then this is an error.
        while !self.0.is_completed()? {
            pause(begun.elapsed(), std::thread::sleep);
        }
        self.0.wait()
    }
}
