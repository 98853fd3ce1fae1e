//! Streams and events of GPUs: what is given to a stream is done in its order, and streams run beside each other.
//!
//! Everything here is an error of kind `Other` before [`crate::cuda::load`] has succeeded: libtorch knows no such device then.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use tch::Tensor;

use crate::error::{ErrorKind, ShimError, checked};
use crate::ffi;

/// A stream of a GPU. libtorch owns it, for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(ffi::DtStream);

impl Stream {
    /// The stream to which this thread gives its work on GPU number `device`.
    ///
    /// # Errors
    /// Where CUDA is not loaded, or the device is not there.
    pub fn current(device: usize) -> Result<Self, ShimError> {
        Self::ask("find the current stream", device, |device, out, error| {
            // SAFETY: out and error are valid places.
            unsafe { ffi::dt_stream_current(device, out, error) }
        })
    }

    /// A stream beside the current one, of those that libtorch keeps: work of high priority goes before that of others where
    /// both are ready.
    ///
    /// # Errors
    /// As [`Stream::current`].
    pub fn from_pool(device: usize, high_priority: bool) -> Result<Self, ShimError> {
        Self::ask("take a stream", device, |device, out, error| {
            // SAFETY: as above.
            unsafe { ffi::dt_stream_from_pool(device, high_priority, out, error) }
        })
    }

    fn ask(
        op: &'static str,
        device: usize,
        call: impl FnOnce(i32, *mut ffi::DtStream, *mut ffi::DtError) -> i32,
    ) -> Result<Self, ShimError> {
        let device = i32::from(i8::try_from(device).map_err(|_| {
            ShimError::new(
                op,
                ErrorKind::InvalidArgument,
                format!("there is no GPU {device}"),
            )
        })?);
        let mut out = ffi::DtStream { id: 0, device };
        checked(op, |error| call(device, &mut out, error))?;
        Ok(Self(out))
    }

    /// CUDA's own handle of it (`cudaStream_t`), for other libraries. Null is the default stream.
    ///
    /// # Errors
    /// As [`Stream::current`].
    pub fn native(self) -> Result<*mut c_void, ShimError> {
        let mut out = ptr::null_mut();
        checked("find a stream's handle", |error| {
            // SAFETY: out is a valid place.
            unsafe { ffi::dt_stream_native(self.0, &mut out, error) }
        })?;
        Ok(out)
    }

    /// Runs `body` with this as the current stream of this thread.
    ///
    /// # Errors
    /// As [`Stream::current`].
    pub fn run<T>(self, body: impl FnOnce() -> T) -> Result<T, ShimError> {
        let _back = Back(Self(self.exchange()?));
        Ok(body())
    }

    /// Makes this the current stream of the calling thread, for good.
    ///
    /// # Errors
    /// As [`Stream::current`].
    pub fn make_current(self) -> Result<(), ShimError> {
        self.exchange().map(drop)
    }

    fn exchange(self) -> Result<ffi::DtStream, ShimError> {
        let mut before = self.0;
        checked("change the current stream", |error| {
            // SAFETY: before is a valid place.
            unsafe { ffi::dt_stream_exchange(self.0, &mut before, error) }
        })?;
        Ok(before)
    }

    /// Waits, with the host, until all is done that the stream was given.
    ///
    /// # Errors
    /// What went wrong on the device meanwhile.
    pub fn synchronize(self) -> Result<(), ShimError> {
        checked("wait for a stream", |error| {
            // SAFETY: no pointers beside the error's.
            unsafe { ffi::dt_stream_synchronize(self.0, error) }
        })
    }

    /// Keeps `tensor`'s memory from being given to others until the stream has done what it was given so far, also where the
    /// tensor is dropped before. Needed for a tensor that was made on another stream.
    ///
    /// # Errors
    /// Where the tensor has no storage on the stream's device.
    pub fn keep(self, tensor: &Tensor) -> Result<(), ShimError> {
        checked("keep a tensor for a stream", |error| {
            // SAFETY: the tensor is live during the call.
            unsafe { ffi::dt_stream_keep(self.0, tensor.as_ptr().cast(), error) }
        })
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
pub struct Event {
    handle: NonNull<ffi::EventHandle>,
}

// SAFETY: CUDA's events may be used from any thread, and recording needs exclusive access here.
unsafe impl Send for Event {}
// SAFETY: what needs only shared access reads the event's handle, which no such method changes.
unsafe impl Sync for Event {}

impl Event {
    /// An event that marks nothing yet.
    ///
    /// # Errors
    /// Where CUDA is not loaded.
    pub fn new() -> Result<Self, ShimError> {
        Self::make(false)
    }

    /// As [`Event::new`], of which the device also notes when it was reached: see [`Event::ms_since`].
    ///
    /// # Errors
    /// As [`Event::new`].
    pub fn timed() -> Result<Self, ShimError> {
        Self::make(true)
    }

    fn make(timed: bool) -> Result<Self, ShimError> {
        let op = "make an event";
        let mut out = ptr::null_mut();
        checked(op, |error| {
            // SAFETY: out is a valid place.
            unsafe { ffi::dt_event_new(timed, &mut out, error) }
        })?;
        NonNull::new(out)
            .map(|handle| Self { handle })
            .ok_or_else(|| ShimError::new(op, ErrorKind::Other, "no event was made"))
    }

    /// Marks the place that `stream` has been given work up to. An earlier mark is forgotten; who waits for that one still does.
    ///
    /// # Errors
    /// What CUDA reports.
    pub fn record(&mut self, stream: Stream) -> Result<(), ShimError> {
        checked("record an event", |error| {
            // SAFETY: the handle is live and, by &mut, used by nobody else.
            unsafe { ffi::dt_event_record(self.handle.as_ptr(), stream.0, error) }
        })
    }

    /// What `stream` is given from now on begins when the marked place has been reached; the host does not wait.
    ///
    /// # Errors
    /// What CUDA reports.
    pub fn block(&self, stream: Stream) -> Result<(), ShimError> {
        checked("make a stream wait", |error| {
            // SAFETY: the handle is live.
            unsafe { ffi::dt_event_block(self.handle.as_ptr(), stream.0, error) }
        })
    }

    /// Whether the marked place has been reached; also where nothing is marked.
    ///
    /// # Errors
    /// What went wrong on the device before it.
    pub fn query(&self) -> Result<bool, ShimError> {
        let mut out = false;
        checked("ask for an event", |error| {
            // SAFETY: the handle is live and out a valid place.
            unsafe { ffi::dt_event_query(self.handle.as_ptr(), &mut out, error) }
        })?;
        Ok(out)
    }

    /// The milliseconds between the place that `earlier` marks and this one, by the device's clock. Both are [`Event::timed`] and were
    /// reached; the host does not wait.
    ///
    /// # Errors
    /// Where one of them was not.
    pub fn ms_since(&self, earlier: &Self) -> Result<f64, ShimError> {
        let mut out = 0.0;
        checked("read the time between two events", |error| {
            // SAFETY: both handles are live and out a valid place.
            unsafe { ffi::dt_event_elapsed(earlier.handle.as_ptr(), self.handle.as_ptr(), &mut out, error) }
        })?;
        Ok(out)
    }

    /// Waits, with the host, until the marked place has been reached.
    ///
    /// # Errors
    /// As [`Event::query`].
    pub fn synchronize(&self) -> Result<(), ShimError> {
        checked("wait for an event", |error| {
            // SAFETY: the handle is live.
            unsafe { ffi::dt_event_synchronize(self.handle.as_ptr(), error) }
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is live and freed once.
        unsafe { ffi::dt_event_free(self.handle.as_ptr()) }
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
