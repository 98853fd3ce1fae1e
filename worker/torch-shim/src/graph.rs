//! Graphs of GPUs: a piece of work is written down once, and then given to the device as a whole, which takes the host
//! microseconds instead of one call for every kernel.
//!
//! What is written down are kernels and addresses. So everything that a graph reads and writes lies where it lay at its capture; what
//! the host computes or decides meanwhile is what it was then; and nothing in it may wait for the device.

mod record;

use std::ptr::{self, NonNull};

use tch::{Device, Kind, TchError, Tensor};

use self::record::{Memory, Recorder, record};
use crate::error::{ErrorKind, ShimError, checked};
use crate::ffi;
use crate::stream::Stream;

/// Memory that graphs share, apart from that of everything else. Graphs that share it are replayed one after the other, and none
/// is given what another left there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    device: i32,
    first: u64,
    second: u64,
}

impl Pool {
    /// New memory on GPU number `device`. It takes none before a capture.
    ///
    /// # Errors
    /// `LibraryMissing` before [`crate::cuda::load`] has succeeded, and where libtorch is another than it was compiled for.
    pub fn new(device: usize) -> Result<Self, ShimError> {
        let op = "make a pool of memory for graphs";
        let device = i32::try_from(device).map_err(|_| {
            ShimError::new(
                op,
                ErrorKind::InvalidArgument,
                format!("there is no GPU {device}"),
            )
        })?;
        let (mut first, mut second) = (0, 0);
        checked(op, |error| {
            // SAFETY: both places are valid.
            unsafe { ffi::dt_graph_pool(&mut first, &mut second, error) }
        })?;
        Ok(Self {
            device,
            first,
            second,
        })
    }
}

/// Work that was written down.
#[derive(Debug)]
pub struct Graph {
    handle: NonNull<ffi::GraphHandle>,
}

// SAFETY: CUDA's graphs may be used from any thread, by one at a time, which &mut of `replay` sees to.
unsafe impl Send for Graph {}

impl Graph {
    /// Runs `body`; what it gives to the current stream, directly and by backward passes, is written down and not done, with
    /// memory of `pool`. The current stream is not the default one. Everything of the device that `body` uses has been used before:
    /// what a library prepares at its first use cannot be written down.
    ///
    /// # Errors
    /// That of `body`, or what CUDA says of work that cannot be written down. Nothing of it was done then, and nothing is left.
    pub fn capture<T, E: From<ShimError>>(
        pool: Pool,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut native = Native {
            graph: Self::new()?,
            pool,
        };
        let value = record(&mut native, body)?;
        Ok((native.graph, value))
    }

    fn new() -> Result<Self, ShimError> {
        let op = "make a graph";
        let mut out = ptr::null_mut();
        checked(op, |error| {
            // SAFETY: out is a valid place.
            unsafe { ffi::dt_graph_new(&mut out, error) }
        })?;
        NonNull::new(out)
            .map(|handle| Self { handle })
            .ok_or_else(|| ShimError::new(op, ErrorKind::Other, "no graph was made"))
    }

    /// Gives the work to the current stream.
    ///
    /// # Errors
    /// What CUDA reports.
    pub fn replay(&mut self) -> Result<(), ShimError> {
        checked("replay a graph", |error| {
            // SAFETY: the handle is live and, by &mut, used by nobody else; its capture has ended well.
            unsafe { ffi::dt_graph_replay(self.handle.as_ptr(), error) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // What cannot be given back ends with the process.
        let _ = checked("free a graph", |error| {
            // SAFETY: the handle is live and freed once.
            unsafe { ffi::dt_graph_free(self.handle.as_ptr(), error) }
        });
    }
}

/// libtorch's own part of a capture.
struct Native {
    graph: Graph,
    pool: Pool,
}

impl Recorder for Native {
    fn begin(&mut self) -> Result<(), ShimError> {
        checked("begin the capture of a graph", |error| {
            // SAFETY: the handle is live.
            unsafe {
                ffi::dt_graph_begin(
                    self.graph.handle.as_ptr(),
                    self.pool.first,
                    self.pool.second,
                    error,
                )
            }
        })
    }

    fn end(&mut self) -> Result<(), ShimError> {
        checked("end the capture of a graph", |error| {
            // SAFETY: the handle is live, and a capture has begun.
            unsafe { ffi::dt_graph_end(self.graph.handle.as_ptr(), error) }
        })
    }

    fn has_ended(&self) -> bool {
        let mut ended = false;
        let asked = checked("ask for a capture", |error| {
            // SAFETY: the handle is live and ended a valid place.
            unsafe { ffi::dt_graph_has_ended(self.graph.handle.as_ptr(), &mut ended, error) }
        });
        // A shim that cannot tell cannot clean up either.
        asked.is_err() || ended
    }

    fn stop(&mut self, memory: Memory) -> Result<(), ShimError> {
        self.told("end the use of a pool of memory", memory, ffi::dt_graph_stop_pool)
    }

    fn release(&mut self, memory: Memory) -> Result<(), ShimError> {
        self.told("give a pool of memory back", memory, ffi::dt_graph_release_pool)
    }

    /// The end of a good capture does it: of one kernel, on a stream on which nothing has failed.
    fn calm_generator(&mut self) -> Result<(), ShimError> {
        let failed =
            |error: TchError| ShimError::new("capture one kernel", ErrorKind::Other, error.to_string());
        let device = self.pool.device as usize;
        let mut one = Tensor::f_zeros([1], (Kind::Float, Device::Cuda(device))).map_err(failed)?;
        let mut small = Self {
            graph: Graph::new()?,
            pool: Pool::new(device)?,
        };
        Stream::from_pool(device, false)?.run(|| {
            small.begin()?;
            let zeroed = one.f_zero_().map(drop).map_err(failed);
            small.end().and(zeroed)
        })?
    }
}

impl Native {
    fn told(
        &self,
        op: &'static str,
        memory: Memory,
        tell: unsafe extern "C" fn(bool, i32, u64, u64, *mut ffi::DtError) -> i32,
    ) -> Result<(), ShimError> {
        let Pool {
            device,
            first,
            second,
        } = self.pool;
        checked(op, |error| {
            // SAFETY: no pointers beside the error's; the allocators may be called from any thread.
            unsafe { tell(memory == Memory::Pinned, device, first, second, error) }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_cuda_there_is_an_error_that_says_what_is_missing() {
        let error = Pool::new(0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::LibraryMissing, "{error}");
        assert!(error.message.contains("libtorch_cuda.so"), "{error}");
        assert_eq!(
            Pool::new(usize::MAX).unwrap_err().kind,
            ErrorKind::InvalidArgument
        );
        let pool = Pool {
            device: 0,
            first: 1,
            second: 0,
        };
        let mut ran = false;
        let captured = Graph::capture(pool, || {
            ran = true;
            Ok::<_, ShimError>(())
        });
        assert!(captured.is_err() && !ran);
    }
}
