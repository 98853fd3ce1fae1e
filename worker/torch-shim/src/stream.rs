//! Streams and events of GPUs: what is given to a stream is done in its order, and streams run beside each other.
//!
//! Everything here is an error of kind `Other` before [`crate::cuda::load`] has succeeded: libtorch knows no such device then.

use tch::{Device, Tensor};

use crate::error::{ShimError, checked, fetched, made};
use crate::ffi;
use crate::tensor::device_index;

/// A stream of a GPU. libtorch owns it, for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(ffi::DtStream);

impl Stream {
    /// The stream to which this thread gives its work on GPU number `device`.
    pub fn current(device: usize) -> Result<Self, ShimError> {
        let op = "find the current stream";
        let device = device_index(op, Device::Cuda(device))?;
        fetched(op, |out, error| ffi::dt_stream_current(device, out, error)).map(Self)
    }

    /// A stream beside the current one, of those that libtorch keeps: work of high priority goes before that of others where
    /// both are ready.
    pub fn from_pool(device: usize, high_priority: bool) -> Result<Self, ShimError> {
        let op = "take a stream";
        let device = device_index(op, Device::Cuda(device))?;
        fetched(op, |out, error| ffi::dt_stream_from_pool(device, high_priority, out, error)).map(Self)
    }

    /// CUDA's own handle of it (`cudaStream_t`), for other libraries. Null is the default stream.
    pub fn native(self) -> Result<usize, ShimError> {
        fetched("find a stream's handle", |out, error| ffi::dt_stream_native(self.0, out, error))
    }

    /// Runs `body` with this as the current stream of this thread.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> Result<T, ShimError> {
        let _back = Back(Self(self.exchange()?));
        Ok(body())
    }

    /// Makes this the current stream of the calling thread, for good.
    pub fn make_current(self) -> Result<(), ShimError> {
        self.exchange().map(drop)
    }

    fn exchange(self) -> Result<ffi::DtStream, ShimError> {
        fetched("change the current stream", |before, error| ffi::dt_stream_exchange(self.0, before, error))
    }

    /// Waits, with the host, until all is done that the stream was given.
    pub fn synchronize(self) -> Result<(), ShimError> {
        checked("wait for a stream", |error| ffi::dt_stream_synchronize(self.0, error))
    }

    /// The place that this has been given work up to.
    pub fn mark(self) -> Result<Event, ShimError> {
        let mut event = Event::new()?;
        event.record(self)?;
        Ok(event)
    }

    /// Keeps `tensor`'s memory from being given to others until the stream has done what it was given so far, also where the
    /// tensor is dropped before. Needed for a tensor that was made on another stream.
    pub fn keep(self, tensor: &Tensor) -> Result<(), ShimError> {
        checked("keep a tensor for a stream", |error| ffi::dt_stream_keep(self.0, tensor.into(), error))
    }
}

/// Puts the stream back that was the current one, also where a panic passes.
struct Back(Stream);

impl Drop for Back {
    fn drop(&mut self) {
        // It was the current stream a moment ago.
        let _ = self.0.exchange();
    }
}

/// A place in a stream.
///
/// It is made on the device with the first [`Event::record`], and can be recorded again.
#[derive(Debug)]
pub struct Event(ffi::Owned<ffi::EventHandle>);

// SAFETY: CUDA's events may be used from any thread, and recording needs exclusive access here.
unsafe impl Send for Event {}
// SAFETY: what needs only shared access reads the event's handle, which no such method changes.
unsafe impl Sync for Event {}

impl Event {
    /// An event that marks nothing yet.
    pub fn new() -> Result<Self, ShimError> {
        made("make an event", |out, error| ffi::dt_event_new(false, out, error)).map(Self)
    }

    /// As [`Event::new`], of which the device also notes when it was reached: see [`Event::ms_since`].
    pub fn timed() -> Result<Self, ShimError> {
        made("make an event", |out, error| ffi::dt_event_new(true, out, error)).map(Self)
    }

    /// Marks the place that `stream` has been given work up to. An earlier mark is forgotten; who waits for that one still does.
    pub fn record(&mut self, stream: Stream) -> Result<(), ShimError> {
        checked("record an event", |error| ffi::dt_event_record(&mut self.0, stream.0, error))
    }

    /// What `stream` is given from now on begins when the marked place has been reached; the host does not wait.
    pub fn block(&self, stream: Stream) -> Result<(), ShimError> {
        checked("make a stream wait", |error| ffi::dt_event_block(&self.0, stream.0, error))
    }

    /// Whether the marked place has been reached; also where nothing is marked.
    /// An error is one of the device before it.
    pub fn query(&self) -> Result<bool, ShimError> {
        fetched("ask for an event", |out, error| ffi::dt_event_query(&self.0, out, error))
    }

    /// The milliseconds between the place that `earlier` marks and this one, by the device's clock. Both are [`Event::timed`] and were
    /// reached; the host does not wait.
    pub fn ms_since(&self, earlier: &Self) -> Result<f64, ShimError> {
        fetched("read the time between two events", |out, error| {
            ffi::dt_event_elapsed(&earlier.0, &self.0, out, error)
        })
    }

    /// Waits, with the host, until the marked place has been reached.
    pub fn synchronize(&self) -> Result<(), ShimError> {
        checked("wait for an event", |error| ffi::dt_event_synchronize(&self.0, error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_cuda_there_is_an_error_and_no_crash() {
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
