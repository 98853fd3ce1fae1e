//! Graphs of GPUs: a piece of work is written down once, and then given to the device as a whole, which takes the host
//! microseconds instead of one call for every kernel.
//!
//! What is written down are kernels and addresses. So everything that a graph reads and writes lies where it lay at its capture; what
//! the host computes or decides meanwhile is what it was then; and nothing in it may wait for the device.

mod record;

use tch::{Device, Kind, Tensor};

use self::record::{Memory, Recorder, record};
use crate::error::{ShimError, checked, fetched, made};
use crate::ffi;
use crate::stream::Stream;
use crate::tensor::device_index;

/// Memory that graphs share, apart from that of everything else. Graphs that share it are replayed one after the other, and none
/// is given what another left there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    device: i32,
    name: ffi::DtPool,
}

impl Pool {
    /// New memory on GPU number `device`. It takes none before a capture. `LibraryMissing` before
    /// [`crate::cuda::load`] has succeeded, and where libtorch is another than it was compiled for.
    pub fn new(device: usize) -> Result<Self, ShimError> {
        let op = "make a pool of memory for graphs";
        Ok(Self {
            device: device_index(op, Device::Cuda(device))?,
            name: fetched(op, |out, error| ffi::dt_graph_pool(out, error))?,
        })
    }
}

/// Work that was written down, by a capture that has ended well: nobody else has one to replay.
#[derive(Debug)]
pub struct Graph(ffi::Owned<ffi::GraphHandle>);

// SAFETY: CUDA's graphs may be used from any thread, by one at a time, which &mut of `replay` sees to.
unsafe impl Send for Graph {}

impl Graph {
    /// Runs `body`; what it gives to the current stream, directly and by backward passes, is written down and not done, with
    /// memory of `pool`. The current stream is not the default one. Everything of the device that `body` uses has been used before:
    /// what a library prepares at its first use cannot be written down.
    /// After an error, of `body` or of CUDA, nothing of it was done, and nothing is left.
    pub fn capture<T, E: From<ShimError>>(
        pool: Pool,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut native = Native::new(pool)?;
        let value = record(&mut native, body)?;
        Ok((native.graph, value))
    }

    /// Gives the work to the current stream.
    pub fn replay(&mut self) -> Result<(), ShimError> {
        checked("replay a graph", |error| ffi::dt_graph_replay(&mut self.0, error))
    }
}

/// libtorch's own part of a capture.
struct Native {
    graph: Graph,
    pool: Pool,
}

impl Native {
    fn new(pool: Pool) -> Result<Self, ShimError> {
        let graph = Graph(made("make a graph", |out, error| ffi::dt_graph_new(out, error))?);
        Ok(Self { graph, pool })
    }
}

impl Recorder for Native {
    fn begin(&mut self) -> Result<(), ShimError> {
        checked("begin the capture of a graph", |error| {
            ffi::dt_graph_begin(&mut self.graph.0, self.pool.name, error)
        })
    }

    fn end(&mut self) -> Result<(), ShimError> {
        checked("end the capture of a graph", |error| ffi::dt_graph_end(&mut self.graph.0, error))
    }

    fn has_ended(&self) -> bool {
        // A shim that cannot tell cannot clean up either.
        fetched("ask for a capture", |out, error| ffi::dt_graph_has_ended(&self.graph.0, out, error))
            .unwrap_or(true)
    }

    fn leave(&mut self, memory: Memory, release: bool) -> Result<(), ShimError> {
        let (host, Pool { device, name }) = (memory == Memory::Pinned, self.pool);
        checked("end the use of a pool of memory", |error| {
            ffi::dt_graph_leave_pool(host, release, device, name, error)
        })
    }

    /// The end of a good capture does it: of one kernel, on a stream on which nothing has failed.
    fn calm_generator(&mut self) -> Result<(), ShimError> {
        let device = self.pool.device as usize;
        let mut one = Tensor::f_zeros([1], (Kind::Float, Device::Cuda(device)))?;
        let mut small = Self::new(Pool::new(device)?)?;
        Stream::from_pool(device, false)?.run(|| {
            small.begin()?;
            let zeroed = one.f_zero_().map(drop);
            small.end()?;
            Ok(zeroed?)
        })?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn without_cuda_there_is_an_error_that_says_what_is_missing() {
        let error = Pool::new(0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::LibraryMissing, "{error}");
        assert!(error.message.contains("libtorch_cuda.so"), "{error}");
        assert_eq!(Pool::new(usize::MAX).unwrap_err().kind, ErrorKind::InvalidArgument);
        let name = ffi::DtPool::default();
        let pool = Pool { device: 0, name };
        let mut ran = false;
        let captured = Graph::capture(pool, || {
            ran = true;
            Ok::<_, ShimError>(())
        });
        assert!(captured.is_err() && !ran);
    }
}
