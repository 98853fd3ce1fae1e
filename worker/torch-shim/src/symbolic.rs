//! Tensors without storage: within a [`Symbolic`] region the operations of this thread on the CPU compute shapes, record
//! graphs and allocate as ever, but touch no data and take no memory. What a step would take is counted apart.
//!
//! Values are zero or undefined. A tensor made in such a region must not be computed with outside of it.

use crate::error::{ShimError, made};
use crate::ffi;
use crate::memory::{self, Usage};

/// Whose kernel a GPU takes first for attention in half precision; see [`crate::cuda::prefers_cudnn_attention`]. What this one cannot
/// compute goes to the next, as in libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// libtorch's own flash kernel.
    Flash,
    /// cuDNN's.
    Cudnn,
}

/// A region of symbolic tensors on this thread; it ends with this value. Regions nest, the last one entered ends first.
#[derive(Debug)]
pub struct Symbolic(#[expect(dead_code, reason = "the region ends with it")] ffi::Owned<ffi::SymbolicMode>);

impl Symbolic {
    /// Begins a region, in which operations take what the CPU's kernels take; or with `gpu` what a GPU's do:
    /// blocks are rounded as its caching allocator rounds them, convolutions have the workspace of cuDNN and
    /// attention that of the kernel which it prefers, as far as they are known. The tensors still say that
    /// they are on the CPU. An operation of which neither libtorch nor the shim knows the shape fails in it
    /// with an error of the kind `NotImplemented` that names it.
    pub fn enter(gpu: Option<Attention>) -> Result<Self, ShimError> {
        memory::account()?;
        let by_cudnn = gpu == Some(Attention::Cudnn);
        made("run on symbolic tensors", |out, error| {
            ffi::dt_symbolic_enter(gpu.is_some(), by_cudnn, out, error)
        })
        .map(Self)
    }

    /// What the symbolic tensors of this process would take now, and at most since [`Symbolic::reset_peak`], in bytes.
    pub fn usage(&self) -> Result<Usage, ShimError> {
        memory::read(memory::SYMBOLIC)
    }

    /// The peak counts from what is allocated now.
    pub fn reset_peak(&self) -> Result<(), ShimError> {
        memory::reset(memory::SYMBOLIC)
    }

    /// The floating-point operations of matrix products, convolutions and attention on this thread since the last call.
    pub fn take_flops(&self) -> f64 {
        ffi::dt_symbolic_flops()
    }
}
