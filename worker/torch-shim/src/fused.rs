//! libtorch's fused kernels on the CPU and on CUDA: an optimizer's update in one pass over parameter,
//! gradient and state, the unscaling of gradients, and one operation on many tensors.

use tch::Tensor;

use crate::error::{ShimError, create_tensor, try_call};
use crate::ffi::{self, Borrowed, BorrowedList};
pub use crate::ffi::{Adam, Sgd, WeightDecay};

/// Values about the gradients that are on the device, so that the host need not wait before an update. Both
/// are float32 scalars on the gradients' device.
#[derive(Debug, Clone, Copy)]
pub struct ScaleAndSkip<'a> {
    /// The divisor of the gradients, which are divided in place.
    pub scale: &'a Tensor,
    /// 1 to skip the update, otherwise 0.
    pub skip: &'a Tensor,
}

fn borrow(device_values: Option<ScaleAndSkip<'_>>) -> [Option<Borrowed<'_>>; 2] {
    [device_values.map(|values| values.scale.into()), device_values.map(|values| values.skip.into())]
}

/// Updates `parameter`, `exp_avg` and `exp_avg_sq` in place from `grad`; all four have the same shape, dtype
/// and device. `step` is a float32 scalar there that already counts this update (1 at the first).
pub fn adam(
    parameter: &Tensor,
    grad: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    step: &Tensor,
    device_values: Option<ScaleAndSkip<'_>>,
    options: Adam,
) -> Result<(), ShimError> {
    let [scale, skip] = borrow(device_values);
    let [parameter, grad, exp_avg, exp_avg_sq, step] =
        [parameter, grad, exp_avg, exp_avg_sq, step].map(Borrowed::from);
    try_call("update a parameter by Adam", |error| {
        ffi::dt_fused_adam(parameter, grad, exp_avg, exp_avg_sq, step, scale, skip, options, error)
    })
}

/// Updates `parameter` and any `momentum_buffer` in place from `grad`, all of equal shape, dtype and device.
pub fn sgd(
    parameter: &Tensor,
    grad: &Tensor,
    momentum_buffer: Option<&Tensor>,
    device_values: Option<ScaleAndSkip<'_>>,
    options: Sgd,
) -> Result<(), ShimError> {
    let op = "update a parameter by SGD";
    if options.momentum != 0.0 && momentum_buffer.is_none() {
        return Err(ShimError::invalid(op, "momentum needs a momentum buffer"));
    }
    let [scale, skip] = borrow(device_values);
    let buffer = momentum_buffer.map(Borrowed::from);
    try_call(op, |error| {
        ffi::dt_fused_sgd(parameter.into(), grad.into(), buffer, scale, skip, options, error)
    })
}

/// Multiplies all tensors of `grads` by `inv_scale` in place, and sets `found_inf` to 1 if an element was not
/// finite before; it does not detect products that overflow. Otherwise `found_inf` keeps its value, so that
/// several calls can share it: the caller first sets it to 0. Both are float32 scalars on the device of
/// `grads`, which may have several dtypes.
///
/// torch.amp.GradScaler.unscale_ uses the same kernel; after non-finite elements the step is skipped.
pub fn unscale(grads: &[&Tensor], found_inf: &Tensor, inv_scale: &Tensor) -> Result<(), ShimError> {
    if grads.is_empty() {
        return Ok(());
    }
    let grads = borrow_all(grads);
    try_call("unscale the gradients", |error| {
        ffi::dt_unscale(BorrowedList::new(&grads), found_inf.into(), inv_scale.into(), error)
    })
}

/// Copies each tensor of `sources` to the tensor of `targets` at the same place, of equal shape and strides, without
/// gradient. On CUDA it is one kernel for some 60 tensors, if targets have one dtype, and sources have one.
pub fn copy_all(targets: &[&Tensor], sources: &[&Tensor]) -> Result<(), ShimError> {
    if targets.is_empty() {
        return Ok(());
    }
    let (targets, sources) = (borrow_all(targets), borrow_all(sources));
    try_call("copy tensors", |error| {
        ffi::dt_copy_all(BorrowedList::new(&targets), BorrowedList::new(&sources), error)
    })
}

/// Adds a whole number to each tensor in place, without gradient. On CUDA it is one kernel for some 100 tensors of one dtype.
pub fn add_to_all(targets: &[&Tensor], number: i64) -> Result<(), ShimError> {
    if targets.is_empty() {
        return Ok(());
    }
    let targets = borrow_all(targets);
    try_call("add to tensors", |error| ffi::dt_add_to_all(BorrowedList::new(&targets), number, error))
}

/// Returns `beta * input + alpha * first @ second` of matrices, rounded once, without gradient.
pub fn addmm(
    input: &Tensor,
    [first, second]: [&Tensor; 2],
    beta: f64,
    alpha: f64,
) -> Result<Tensor, ShimError> {
    create_tensor("multiply matrices", |out, error| {
        ffi::dt_addmm(input.into(), first.into(), second.into(), beta, alpha, out, error)
    })
}

fn borrow_all<'a>(tensors: &[&'a Tensor]) -> Vec<Borrowed<'a>> {
    tensors.iter().map(|tensor| Borrowed::from(*tensor)).collect()
}
