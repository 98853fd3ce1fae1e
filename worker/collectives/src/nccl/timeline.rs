//! The order of work on a device: the compute stream, the communication stream, and marks in the latter.

use std::sync::{Arc, Mutex, PoisonError};

use dtrain_torch_shim::stream::{Event, Stream};
use dtrain_torch_shim::{ShimError, cuda};
use tch::Tensor;

use super::api::CudaStream;

/// The device operations that a group needs.
pub(super) trait Timeline: Send + Sync {
    /// Prepares another thread that queries marks or the group: otherwise CUDA opens the first GPU for it.
    fn set_device(&self) -> Result<(), ShimError>;

    /// Returns the communication stream.
    fn stream(&self) -> CudaStream;

    /// Makes later work on the communication stream wait for the calling thread's work.
    fn fork(&self) -> Result<(), ShimError>;

    /// Marks the end of the work that the communication stream has so far.
    fn mark(&self) -> Result<Arc<dyn Mark>, ShimError>;

    /// Keeps a tensor's memory allocated until the stream has finished its work so far.
    fn record_tensor(&self, tensor: &Tensor) -> Result<(), ShimError>;
}

/// A position in the communication stream.
pub(super) trait Mark: Send + Sync {
    /// Makes later work of the calling thread wait for the mark. With a GPU the host does not wait.
    fn block_current_stream(&self) -> Result<(), ShimError>;

    /// Returns whether the stream has reached the mark, or an error of the device.
    fn is_reached(&self) -> Result<bool, ShimError>;
}

/// The timeline of a GPU. At high priority, a ready reduction runs before ready kernels of backward.
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
    fn set_device(&self) -> Result<(), ShimError> {
        cuda::set_device(self.device)
    }

    fn stream(&self) -> CudaStream {
        self.native as CudaStream
    }

    fn fork(&self) -> Result<(), ShimError> {
        // Recording an event again does not affect streams that already wait for it.
        let mut event = self.fork.lock().unwrap_or_else(PoisonError::into_inner);
        event.record(Stream::current(self.device)?)?;
        event.block(self.stream)
    }

    fn mark(&self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(GpuMark { device: self.device, event: self.stream.record_event()? }))
    }

    fn record_tensor(&self, tensor: &Tensor) -> Result<(), ShimError> {
        self.stream.record_tensor(tensor)
    }
}

struct GpuMark {
    device: usize,
    event: Event,
}

impl Mark for GpuMark {
    fn block_current_stream(&self) -> Result<(), ShimError> {
        self.event.block(Stream::current(self.device)?)
    }

    fn is_reached(&self) -> Result<bool, ShimError> {
        self.event.query()
    }
}
