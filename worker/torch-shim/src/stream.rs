//! Streams and events of GPUs. Work on one stream runs in order; streams run in parallel.
//!
//! Before [`crate::cuda::load`] has succeeded, all calls return errors of kind `Other`.

use tch::{Device, Tensor};

use crate::error::{ShimError, create, fetch, try_call};
use crate::ffi;
use crate::tensor::device_index;

/// A stream of a GPU. libtorch owns it until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(ffi::DtStream);

impl Stream {
    /// Returns the stream that this thread uses on GPU number `device`.
    pub fn current(device: usize) -> Result<Self, ShimError> {
        let op = "get the current stream";
        let device = device_index(op, Device::Cuda(device))?;
        fetch(op, |out, error| ffi::dt_stream_current(device, out, error)).map(Self)
    }

    /// Takes another stream from libtorch's pool. Ready work of high priority runs before other work.
    pub fn from_pool(device: usize, high_priority: bool) -> Result<Self, ShimError> {
        let op = "get a stream from the pool";
        let device = device_index(op, Device::Cuda(device))?;
        fetch(op, |out, error| ffi::dt_stream_from_pool(device, high_priority, out, error)).map(Self)
    }

    /// Returns CUDA's handle (`cudaStream_t`), for other libraries. Null is the default stream.
    pub fn native(self) -> Result<usize, ShimError> {
        fetch("get a stream's handle", |out, error| ffi::dt_stream_native(self.0, out, error))
    }

    /// Runs `body` with this stream as the thread's current one.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> Result<T, ShimError> {
        let _restore = RestoreStream(Self(self.exchange()?));
        Ok(body())
    }

    /// Makes this stream permanently the calling thread's current one.
    pub fn make_current(self) -> Result<(), ShimError> {
        self.exchange().map(drop)
    }

    fn exchange(self) -> Result<ffi::DtStream, ShimError> {
        fetch("change the current stream", |before, error| ffi::dt_stream_exchange(self.0, before, error))
    }

    /// Blocks the host until the stream's work so far is done.
    pub fn synchronize(self) -> Result<(), ShimError> {
        try_call("wait for a stream", |error| ffi::dt_stream_synchronize(self.0, error))
    }

    /// Marks the end of the stream's work so far.
    pub fn record_event(self) -> Result<Event, ShimError> {
        let mut event = Event::new()?;
        event.record(self)?;
        Ok(event)
    }

    /// Keeps `tensor`'s memory allocated until the stream's work so far is done, even if the tensor is
    /// dropped before. Needed for a tensor that was created on another stream.
    pub fn record_tensor(self, tensor: &Tensor) -> Result<(), ShimError> {
        try_call("record a tensor on a stream", |error| {
            ffi::dt_stream_record_tensor(self.0, tensor.into(), error)
        })
    }
}

/// Restores the earlier current stream, also after a panic.
struct RestoreStream(Stream);

impl Drop for RestoreStream {
    fn drop(&mut self) {
        // This was the current stream before, so it cannot fail.
        let _ = self.0.exchange();
    }
}

/// A position in a stream.
///
/// The first [`Event::record`] creates it on the device; it can be recorded again.
#[derive(Debug)]
pub struct Event(ffi::Owned<ffi::EventHandle>);

// SAFETY: any thread may use a CUDA event, and recording needs exclusive access here.
unsafe impl Send for Event {}
// SAFETY: methods with shared access only read the event's handle and do not change it.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that marks nothing yet.
    pub fn new() -> Result<Self, ShimError> {
        create("create an event", |out, error| ffi::dt_event_new(false, out, error)).map(Self)
    }

    /// Like [`Event::new`], but the device also records the time: see [`Event::ms_since`].
    pub fn timed() -> Result<Self, ShimError> {
        create("create an event", |out, error| ffi::dt_event_new(true, out, error)).map(Self)
    }

    /// Marks the end of `stream`'s work so far. Streams that wait for an earlier mark still wait.
    pub fn record(&mut self, stream: Stream) -> Result<(), ShimError> {
        try_call("record an event", |error| ffi::dt_event_record(&mut self.0, stream.0, error))
    }

    /// Makes later work on `stream` wait for the mark; the host does not wait.
    pub fn block(&self, stream: Stream) -> Result<(), ShimError> {
        try_call("make a stream wait for an event", |error| ffi::dt_event_block(&self.0, stream.0, error))
    }

    /// Returns whether the mark is reached, or nothing is marked. An error is an earlier one of the device.
    pub fn query(&self) -> Result<bool, ShimError> {
        fetch("query an event", |out, error| ffi::dt_event_query(&self.0, out, error))
    }

    /// Returns the milliseconds between the marks of `earlier` and this event, by the device's clock. Both
    /// must be [`Event::timed`] and reached; the host does not wait.
    pub fn ms_since(&self, earlier: &Self) -> Result<f64, ShimError> {
        fetch("read the time between two events", |out, error| {
            ffi::dt_event_elapsed(&earlier.0, &self.0, out, error)
        })
    }

    /// Blocks the host until the mark has been reached.
    pub fn synchronize(&self) -> Result<(), ShimError> {
        try_call("wait for an event", |error| ffi::dt_event_synchronize(&self.0, error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_cuda_streams_are_errors_and_not_crashes() {
        for error in [
            Stream::current(0).unwrap_err(),
            Stream::from_pool(0, true).unwrap_err(),
            Stream::current(1000).unwrap_err(),
            Event::new().unwrap_err(),
            Event::timed().unwrap_err(),
        ] {
            assert!(!error.message.is_empty(), "{error:?}");
        }
    }
}
