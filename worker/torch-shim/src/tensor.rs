//! A parameter's data and gradient as views of other tensors.

use tch::Tensor;

use crate::error::{ShimError, checked};
use crate::ffi;

/// Makes `target` use `source`'s storage, shape and strides; `target` stays the same leaf of the autograd graph, so
/// every layer that holds it sees the new data.
///
/// # Errors
/// `Other` where the two are of incompatible kinds (a different device type or layout).
pub fn set_data(target: &Tensor, source: &Tensor) -> Result<(), ShimError> {
    checked("set a parameter's data", |error| {
        // SAFETY: both tensors are live; libtorch takes its own reference to the storage.
        unsafe { ffi::dt_tensor_set_data(target.as_ptr().cast(), source.as_ptr().cast(), error) }
    })
}

/// Makes `grad` the gradient of the leaf `target`. Backward adds to it in place, so a view stays a view.
///
/// # Errors
/// `InvalidArgument` where shape, dtype or device differ.
pub fn set_grad(target: &Tensor, grad: &Tensor) -> Result<(), ShimError> {
    checked("set a parameter's gradient", |error| {
        // SAFETY: both tensors are live; libtorch takes its own reference.
        unsafe { ffi::dt_tensor_set_grad(target.as_ptr().cast(), grad.as_ptr().cast(), error) }
    })
}

/// Drops the gradient of `target`.
///
/// # Errors
/// None known.
pub fn clear_grad(target: &Tensor) -> Result<(), ShimError> {
    checked("drop a parameter's gradient", |error| {
        // SAFETY: null stands for no gradient.
        unsafe { ffi::dt_tensor_set_grad(target.as_ptr().cast(), std::ptr::null(), error) }
    })
}
