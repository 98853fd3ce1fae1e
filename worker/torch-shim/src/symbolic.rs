//! Tensors without storage: within a [`Symbolic`] region the operations of this thread on the CPU compute shapes, record
//! graphs and allocate as ever, but touch no data and take no memory. What a step would take is then in books of their own.
//!
//! Values are zero or undefined. A tensor made in such a region must not be computed with outside of it.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::error::{ShimError, checked};
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
pub struct Symbolic {
    mode: *mut c_void,
    /// The region is the thread's.
    _not_send: PhantomData<*const ()>,
}

impl Symbolic {
    /// Begins a region, in which operations take what the CPU's kernels take.
    ///
    /// # Errors
    /// None known. Within it an operation of which neither libtorch nor the shim knows the shape fails with an error of the
    /// kind `NotImplemented` that names it.
    pub fn enter() -> Result<Self, ShimError> {
        Self::enter_as(None)
    }

    /// Begins a region, in which operations take what a GPU's kernels take: blocks are rounded as its caching allocator rounds them,
    /// convolutions have the workspace of cuDNN and attention that of the kernel which `attention` prefers, as far as they are known. The
    /// tensors still say that they are on the CPU.
    ///
    /// # Errors
    /// As [`Symbolic::enter`].
    pub fn enter_as_gpu(attention: Attention) -> Result<Self, ShimError> {
        Self::enter_as(Some(attention))
    }

    fn enter_as(gpu: Option<Attention>) -> Result<Self, ShimError> {
        memory::account()?;
        let mut mode = std::ptr::null_mut();
        checked("run on symbolic tensors", |error| {
            // SAFETY: mode is a valid place.
            unsafe { ffi::dt_symbolic_enter(gpu.is_some(), gpu == Some(Attention::Cudnn), &mut mode, error) }
        })?;
        Ok(Self {
            mode,
            _not_send: PhantomData,
        })
    }

    /// What the symbolic tensors of this process would take now, and at most since [`Symbolic::reset_peak`], in bytes.
    ///
    /// # Errors
    /// None known.
    pub fn usage(&self) -> Result<Usage, ShimError> {
        memory::read(memory::SYMBOLIC)
    }

    /// The peak counts from what is allocated now.
    ///
    /// # Errors
    /// None known.
    pub fn reset_peak(&self) -> Result<(), ShimError> {
        memory::reset(memory::SYMBOLIC)
    }

    /// The floating-point operations of matrix products, convolutions and attention on this thread since the last call.
    pub fn take_flops(&self) -> f64 {
        // SAFETY: reads a number of this thread.
        unsafe { ffi::dt_symbolic_flops() }
    }
}

impl Drop for Symbolic {
    fn drop(&mut self) {
        // SAFETY: the mode was made by enter on this thread, and is freed once.
        unsafe { ffi::dt_symbolic_leave(self.mode) }
    }
}
