//! The order of work on a device: the stream that computes, the one that communicates, and marks in them.

use std::sync::{Arc, Mutex, PoisonError};

use dtrain_torch_shim::stream::{Event, Stream};
use dtrain_torch_shim::{ShimError, cuda};
use tch::Tensor;

use super::api::CudaStream;

/// What a group asks of the device that it communicates from.
pub(super) trait Timeline: Send + Sync {
    /// Called by another thread before it asks for a mark or for the group: CUDA would otherwise open the first GPU for it, and take
    /// memory there.
    fn adopt_thread(&self) -> Result<(), ShimError>;

    /// The stream that communicates.
    fn stream(&self) -> CudaStream;

    /// What that stream is given from now on begins when what the calling thread has computed is there.
    fn fork(&self) -> Result<(), ShimError>;

    /// The place that the stream has been given work up to.
    fn mark(&self) -> Result<Arc<dyn Mark>, ShimError>;

    /// Keeps a tensor's memory from others until the stream has done what it was given.
    fn keep(&self, tensor: &Tensor) -> Result<(), ShimError>;
}

/// A place in the stream that communicates.
pub(super) trait Mark: Send + Sync {
    /// What the calling thread computes from now on begins when the place has been reached. The host does not wait on a GPU.
    fn join(&self) -> Result<(), ShimError>;

    /// Whether it has been reached; an error is one of the device.
    fn is_reached(&self) -> Result<bool, ShimError>;
}

/// A GPU's: a stream of high priority beside the one that computes, so that a reduction that is ready goes before the kernels of
/// backward that are.
pub(super) struct GpuTimeline {
    device: usize,
    stream: Stream,
    native: usize,
    fork: Mutex<Event>,
}

impl GpuTimeline {
    pub(super) fn new(device: usize) -> Result<Self, ShimError> {
        let stream = Stream::from_pool(device, true)?;
        Ok(Self { device, stream, native: stream.native()?, fork: Mutex::new(Event::new()?) })
    }
}

impl Timeline for GpuTimeline {
    fn adopt_thread(&self) -> Result<(), ShimError> {
        cuda::set_device(self.device)
    }

    fn stream(&self) -> CudaStream {
        self.native as CudaStream
    }

    fn fork(&self) -> Result<(), ShimError> {
        // An event that is recorded again forgets nothing of what streams wait for already.
        let mut event = self.fork.lock().unwrap_or_else(PoisonError::into_inner);
        event.record(Stream::current(self.device)?)?;
        event.block(self.stream)
    }

    fn mark(&self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(GpuMark { device: self.device, event: self.stream.mark()? }))
    }

    fn keep(&self, tensor: &Tensor) -> Result<(), ShimError> {
        self.stream.keep(tensor)
    }
}

struct GpuMark {
    device: usize,
    event: Event,
}

impl Mark for GpuMark {
    fn join(&self) -> Result<(), ShimError> {
        self.event.block(Stream::current(self.device)?)
    }

    fn is_reached(&self) -> Result<bool, ShimError> {
        self.event.query()
    }
}
