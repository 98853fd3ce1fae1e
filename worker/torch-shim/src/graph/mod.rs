//! GPU graphs: work is captured once and then launched as a whole, which takes the host microseconds.
//!
//! A graph contains kernels and addresses. So all memory that it reads and writes must keep its address;
//! values and decisions of the host are fixed at the capture; nothing in it may wait for the device.

mod record;

use tch::{Device, Kind, Tensor};

use self::record::{Allocator, Recorder, record};
use crate::error::{ShimError, create, fetch, try_call};
use crate::ffi;
use crate::stream::Stream;
use crate::tensor::device_index;

/// Allocator that graphs share, separate from other memory. Graphs that share it are replayed one after the
/// other, and must not expect contents that another graph left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    device: i32,
    name: ffi::DtPool,
}

impl Pool {
    /// Creates a pool on GPU number `device`. It takes no memory before a capture. Returns `LibraryMissing`
    /// before [`crate::cuda::load`] has succeeded, or if libtorch has another version than at compile time.
    pub fn new(device: usize) -> Result<Self, ShimError> {
        let op = "create a memory pool for graphs";
        Ok(Self {
            device: device_index(op, Device::Cuda(device))?,
            name: fetch(op, |out, error| ffi::dt_graph_pool(out, error))?,
        })
    }
}

/// Captured work. Only a successful capture returns a graph, so it can be replayed.
#[derive(Debug)]
pub struct Graph(ffi::Owned<ffi::GraphHandle>);

// SAFETY: any one thread at a time may use a CUDA graph, which &mut of `replay` ensures.
unsafe impl Send for Graph {}

impl Graph {
    /// Runs `body` and captures, without executing, its work on the current stream, including backward
    /// passes, with memory of `pool`. The current stream must not be the default stream. All device libraries
    /// that `body` uses must have been used before, because their initialisation cannot be captured. After an
    /// error of `body` or CUDA, nothing was executed and all state is restored.
    pub fn capture<T, E: From<ShimError>>(
        pool: Pool,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut capture = CudaCapture::new(pool)?;
        let value = record(&mut capture, body)?;
        Ok((capture.graph, value))
    }

    /// Launches the work on the current stream.
    pub fn replay(&mut self) -> Result<(), ShimError> {
        try_call("replay a graph", |error| ffi::dt_graph_replay(&mut self.0, error))
    }
}

/// A capture by libtorch.
struct CudaCapture {
    graph: Graph,
    pool: Pool,
}

impl CudaCapture {
    fn new(pool: Pool) -> Result<Self, ShimError> {
        let graph = Graph(create("create a graph", |out, error| ffi::dt_graph_new(out, error))?);
        Ok(Self { graph, pool })
    }
}

impl Recorder for CudaCapture {
    fn begin(&mut self) -> Result<(), ShimError> {
        try_call("begin the capture of a graph", |error| {
            ffi::dt_graph_begin(&mut self.graph.0, self.pool.name, error)
        })
    }

    fn end(&mut self) -> Result<(), ShimError> {
        try_call("end the capture of a graph", |error| ffi::dt_graph_end(&mut self.graph.0, error))
    }

    fn has_ended(&self) -> bool {
        // A shim without this function cannot clean up either.
        fetch("query a capture", |out, error| ffi::dt_graph_has_ended(&self.graph.0, out, error))
            .unwrap_or(true)
    }

    fn end_allocation(&mut self, allocator: Allocator, release: bool) -> Result<(), ShimError> {
        let (host, Pool { device, name }) = (allocator == Allocator::Pinned, self.pool);
        try_call("release a memory pool", |error| {
            ffi::dt_graph_leave_pool(host, release, device, name, error)
        })
    }

    /// Uses the end of a good capture, of one kernel on a fresh stream, to reset the generator.
    fn reset_generator(&mut self) -> Result<(), ShimError> {
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
    fn without_cuda_the_error_names_the_missing_library() {
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
