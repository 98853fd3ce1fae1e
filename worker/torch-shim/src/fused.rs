//! libtorch's fused kernels: an optimizer's update in one pass over parameter, gradient and state, and the unscaling of
//! gradients; on the CPU and on CUDA.

use tch::Tensor;

use crate::error::{ShimError, checked};
use crate::ffi;

/// How weight decay enters an update of Adam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDecay {
    /// Added to the gradient, and so to both moments: Adam (Kingma and Ba 2015, arXiv 1412.6980) with an L2 penalty.
    L2,
    /// Taken from the parameter itself: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
    Decoupled,
}

/// The figures of one Adam or AdamW update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the mean and of the mean square of the gradient.
    pub betas: (f64, f64),
    /// Weight decay.
    pub weight_decay: f64,
    /// How it enters.
    pub decay: WeightDecay,
    /// Added to the root of the mean square.
    pub eps: f64,
}

/// The figures of one SGD update with torch's momentum: v <- momentum v + g, p <- p - lr v.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum; with 0 there is no buffer.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov's look-ahead: p <- p - lr (g + momentum v).
    pub nesterov: bool,
    /// The first update sets the momentum buffer to the gradient.
    pub first_step: bool,
}

/// What the device itself has found out about the gradients, so that the host need not wait for it before an update. Both are
/// float32 scalars on the gradients' device.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// What the gradients are divided by, in place.
    pub scale: &'a Tensor,
    /// 1 where nothing is to be changed, else 0.
    pub skip: &'a Tensor,
}

fn pointers(found: Option<Found<'_>>) -> (ffi::TensorPtr, ffi::TensorPtr) {
    found.map_or((std::ptr::null(), std::ptr::null()), |Found { scale, skip }| {
        (scale.as_ptr().cast(), skip.as_ptr().cast())
    })
}

/// Updates `parameter`, `exp_avg` and `exp_avg_sq` in place from `grad`; all four of one shape, dtype and device.
/// `step` is a float32 scalar on the same device that already counts this update (1 at the first).
///
/// # Errors
/// `Other` or `InvalidArgument` where shapes, dtypes or devices differ.
pub fn adam(
    parameter: &Tensor,
    grad: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    step: &Tensor,
    found: Option<Found<'_>>,
    options: Adam,
) -> Result<(), ShimError> {
    let (scale, skip) = pointers(found);
    let options = ffi::DtAdam {
        lr: options.lr,
        beta1: options.betas.0,
        beta2: options.betas.1,
        weight_decay: options.weight_decay,
        eps: options.eps,
        decoupled: options.decay == WeightDecay::Decoupled,
    };
    checked("the Adam update", |error| {
        // SAFETY: all tensors are live during the call, and null stands for none; libtorch checks that they fit each other.
        unsafe {
            ffi::dt_fused_adam(
                parameter.as_ptr().cast(),
                grad.as_ptr().cast(),
                exp_avg.as_ptr().cast(),
                exp_avg_sq.as_ptr().cast(),
                step.as_ptr().cast(),
                scale,
                skip,
                options,
                error,
            )
        }
    })
}

/// Updates `parameter` and, with momentum, `momentum_buffer` in place from `grad`; all of one shape, dtype and device.
///
/// # Errors
/// `Other` or `InvalidArgument` where shapes, dtypes or devices differ, or a momentum has no buffer.
pub fn sgd(
    parameter: &Tensor,
    grad: &Tensor,
    momentum_buffer: Option<&Tensor>,
    found: Option<Found<'_>>,
    options: Sgd,
) -> Result<(), ShimError> {
    let (scale, skip) = pointers(found);
    if options.momentum != 0.0 && momentum_buffer.is_none() {
        return Err(ShimError::new(
            "the SGD update",
            crate::ErrorKind::InvalidArgument,
            "a momentum needs a momentum buffer",
        ));
    }
    let buffer = momentum_buffer.map_or(std::ptr::null(), |buffer| buffer.as_ptr().cast());
    let options = ffi::DtSgd {
        lr: options.lr,
        momentum: options.momentum,
        weight_decay: options.weight_decay,
        nesterov: options.nesterov,
        first_step: options.first_step,
    };
    checked("the SGD update", |error| {
        // SAFETY: all tensors are live during the call, and null stands for none.
        unsafe {
            ffi::dt_fused_sgd(
                parameter.as_ptr().cast(),
                grad.as_ptr().cast(),
                buffer,
                scale,
                skip,
                options,
                error,
            )
        }
    })
}

/// Multiplies every tensor of `grads` by `inv_scale` in place, and sets `found_inf` to 1 where an element of them is not
/// finite before that; a product that overflows is not found. Otherwise `found_inf` keeps its value, so that several calls can share one: who calls sets it
/// to 0 first. Both are float32 scalars on the device of `grads`, which lie on one device and may be of several dtypes.
///
/// This is what torch.amp.GradScaler.unscale_ runs; non-finite elements make the step one to be skipped.
///
/// # Errors
/// `Other` where shapes or dtypes of the two scalars are wrong.
pub fn unscale(grads: &[&Tensor], found_inf: &Tensor, inv_scale: &Tensor) -> Result<(), ShimError> {
    if grads.is_empty() {
        return Ok(());
    }
    let pointers: Vec<ffi::TensorPtr> = grads.iter().map(|grad| grad.as_ptr().cast()).collect();
    checked("unscaling the gradients", |error| {
        // SAFETY: `pointers` holds as many live tensors as it is long; all tensors are live during the call, and libtorch
        // checks the two scalars.
        unsafe {
            ffi::dt_unscale(
                pointers.as_ptr(),
                pointers.len(),
                found_inf.as_ptr().cast(),
                inv_scale.as_ptr().cast(),
                error,
            )
        }
    })
}
