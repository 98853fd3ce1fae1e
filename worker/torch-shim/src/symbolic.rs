//! Tensors without storage: in a [`Symbolic`] region, CPU operations of this thread compute shapes, record
//! graphs and allocate, but touch no data. Separate stats count the memory that a real step would take.
//!
//! Values are zero or undefined. Do not use tensors of such a region outside of it.

use crate::error::{ShimError, create};
use crate::ffi;
pub use crate::ffi::SimulatedGpu;
use crate::memory::{self, Usage};

/// The bytes of cuBLASLt's workspace in libtorch, for each thread that uses it.
const LT_WORKSPACE: u64 = 1 << 20;

/// A region of symbolic tensors on this thread, while this value lives. Regions nest.
#[derive(Debug)]
pub struct Symbolic(#[expect(dead_code, reason = "the region ends with it")] ffi::Owned<ffi::SymbolicMode>);

impl Symbolic {
    /// Enters a region. Operations allocate as the CPU's kernels do. With `gpu` they allocate as a GPU's do,
    /// as far as this is known: blocks are rounded as in its caching allocator, convolutions have cuDNN's
    /// workspace, attention has that of the preferred kernel, and long sums have partial results. The tensors still report the CPU as device.
    /// An operation of unknown shape fails with an error of kind `NotImplemented` that names it.
    pub fn enter(gpu: Option<SimulatedGpu>) -> Result<Self, ShimError> {
        memory::enable_stats()?;
        create("enter a symbolic region", |out, error| ffi::dt_symbolic_enter(gpu.as_ref(), out, error))
            .map(Self)
    }

    /// Returns the bytes of the process's symbolic tensors: now, and the peak since [`Symbolic::reset_peak`].
    pub fn usage(&self) -> Result<Usage, ShimError> {
        memory::read_usage(memory::SYMBOLIC)
    }

    /// Resets the peak to the bytes that are allocated now.
    pub fn reset_peak(&self) -> Result<(), ShimError> {
        memory::reset_peak_of(memory::SYMBOLIC)
    }

    /// Returns the FLOPs of products, convolutions and attention on this thread since the last call.
    pub fn take_flops(&self) -> f64 {
        ffi::dt_symbolic_flops()
    }

    /// Returns the bytes that cuBLAS and cuBLASLt keep after the operations since the last call on this thread, in forward's
    /// and in backward's thread of a simulated GPU. `blas` is the size of a workspace of cuBLAS.
    pub fn take_library_bytes(&self, blas: u64) -> u64 {
        let (mut blas_threads, mut lt_threads) = (0, 0);
        ffi::dt_symbolic_library_threads(&mut blas_threads, &mut lt_threads);
        u64::from(blas_threads) * blas + u64::from(lt_threads) * LT_WORKSPACE
    }
}

/// Returns whether this thread is in a region, where tensors have no values.
pub fn is_symbolic() -> bool {
    ffi::dt_symbolic_here()
}

/// Returns whether this thread is in a region whose tensors stand for those of a GPU.
pub fn stands_for_gpu() -> bool {
    ffi::dt_symbolic_gpu()
}
