//! libtorch's fused kernels: an optimizer's update in one pass over parameter, gradient and state, and the unscaling of
//! gradients; on the CPU and on CUDA.

use tch::Tensor;

use crate::error::{ShimError, checked};
use crate::ffi::{self, Lent, LentList};
pub use crate::ffi::{Adam, Sgd, WeightDecay};

/// What the device itself has found out about the gradients, so that the host need not wait for it before an update. Both are
/// float32 scalars on the gradients' device.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// What the gradients are divided by, in place.
    pub scale: &'a Tensor,
    /// 1 where nothing is to be changed, else 0.
    pub skip: &'a Tensor,
}

fn lent(found: Option<Found<'_>>) -> [Option<Lent<'_>>; 2] {
    [found.map(|found| found.scale.into()), found.map(|found| found.skip.into())]
}

/// Updates `parameter`, `exp_avg` and `exp_avg_sq` in place from `grad`; all four of one shape, dtype and device.
/// `step` is a float32 scalar on the same device that already counts this update (1 at the first).
pub fn adam(
    parameter: &Tensor,
    grad: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    step: &Tensor,
    found: Option<Found<'_>>,
    options: Adam,
) -> Result<(), ShimError> {
    let [scale, skip] = lent(found);
    let [parameter, grad, exp_avg, exp_avg_sq, step] =
        [parameter, grad, exp_avg, exp_avg_sq, step].map(Lent::from);
    checked("the Adam update", |error| {
        ffi::dt_fused_adam(parameter, grad, exp_avg, exp_avg_sq, step, scale, skip, options, error)
    })
}

/// Updates `parameter` and, with momentum, `momentum_buffer` in place from `grad`; all of one shape, dtype and device.
pub fn sgd(
    parameter: &Tensor,
    grad: &Tensor,
    momentum_buffer: Option<&Tensor>,
    found: Option<Found<'_>>,
    options: Sgd,
) -> Result<(), ShimError> {
    let op = "the SGD update";
    if options.momentum != 0.0 && momentum_buffer.is_none() {
        return Err(ShimError::invalid(op, "a momentum needs a momentum buffer"));
    }
    let [scale, skip] = lent(found);
    let buffer = momentum_buffer.map(Lent::from);
    checked(op, |error| ffi::dt_fused_sgd(parameter.into(), grad.into(), buffer, scale, skip, options, error))
}

/// Multiplies every tensor of `grads` by `inv_scale` in place, and sets `found_inf` to 1 where an element of them is not
/// finite before that; a product that overflows is not found. Otherwise `found_inf` keeps its value, so that several calls can share one:
/// who calls sets it to 0 first. Both are float32 scalars on the device of `grads`, which lie on one device and may be of several dtypes.
///
/// This is what torch.amp.GradScaler.unscale_ runs; non-finite elements make the step one to be skipped.
pub fn unscale(grads: &[&Tensor], found_inf: &Tensor, inv_scale: &Tensor) -> Result<(), ShimError> {
    if grads.is_empty() {
        return Ok(());
    }
    let grads: Vec<Lent<'_>> = grads.iter().map(|grad| Lent::from(*grad)).collect();
    checked("unscaling the gradients", |error| {
        ffi::dt_unscale(LentList::new(&grads), found_inf.into(), inv_scale.into(), error)
    })
}
