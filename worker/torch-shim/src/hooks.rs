//! Calls out of backward into Rust: when a parameter's gradient has been accumulated, and in the middle of the graph.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use crate::error::{ShimError, checked};
use crate::ffi;

type Hook = Box<dyn Fn() + Send + Sync>;
type TensorCall = Box<dyn Fn(&mut Tensor) -> Result<(), Box<dyn std::error::Error>> + Send + Sync>;

/// A hook on a parameter, called on autograd's thread each time backward has added to the parameter's gradient: once per
/// backward pass that reaches it. Dropping it removes the hook.
#[derive(Debug)]
pub struct GradientHook {
    parameter: Tensor,
}

impl GradientHook {
    /// Sets the hook of `parameter`, a leaf that requires a gradient; a parameter has one hook, and a new one replaces it.
    /// A panic in `hook` makes the backward pass fail.
    ///
    /// # Errors
    /// `InvalidArgument` where the tensor is no leaf or requires no gradient.
    pub fn set(parameter: &Tensor, hook: impl Fn() + Send + Sync + 'static) -> Result<Self, ShimError> {
        let hook: Box<Hook> = Box::new(Box::new(hook));
        let callback = ffi::DtCallback {
            context: Box::into_raw(hook).cast(),
            call: call_hook,
            release: release_hook,
        };
        checked("set a gradient hook", |error| {
            // SAFETY: the tensor is live; the callback's context is a boxed Hook, which the callee owns from here on and
            // gives to release_hook exactly once, also where it fails.
            unsafe { ffi::dt_gradient_hook_set(parameter.as_ptr().cast(), callback, error) }
        })?;
        Ok(Self {
            parameter: parameter.shallow_clone(),
        })
    }
}

impl Drop for GradientHook {
    fn drop(&mut self) {
        // The tensor is a leaf with a hook, or the hook would not have been set: nothing can fail.
        let _ = checked("remove a gradient hook", |error| {
            // SAFETY: the tensor is live.
            unsafe { ffi::dt_gradient_hook_clear(self.parameter.as_ptr().cast(), error) }
        });
    }
}

/// Applies a linear map that is its own adjoint (a sum over ranks, say) as a node of the graph: `map` changes a copy of `x`
/// in place, and later its gradient on autograd's thread. An error or a panic in `map` makes the pass fail.
///
/// # Errors
/// What `map` or libtorch refuses.
pub fn self_adjoint(
    x: &Tensor,
    map: impl Fn(&mut Tensor) -> Result<(), Box<dyn std::error::Error>> + Send + Sync + 'static,
) -> Result<Tensor, ShimError> {
    let map: Box<TensorCall> = Box::new(Box::new(map));
    let callback = ffi::DtTensorCallback {
        context: Box::into_raw(map).cast(),
        call: call_tensor,
        release: release_tensor,
    };
    let mut out = std::ptr::null_mut();
    checked("call out of the graph", |error| {
        // SAFETY: the tensor is live; the callback's context is a boxed TensorCall, which the callee owns from here on and
        // gives to release_tensor exactly once, also where it fails.
        unsafe { ffi::dt_self_adjoint(x.as_ptr().cast(), callback, &mut out, error) }
    })?;
    // SAFETY: on success out is a new at::Tensor, which is what tch's C_tensor stands for; tch frees it.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}

extern "C" fn call_hook(context: *mut c_void) -> i32 {
    // SAFETY: the context is the boxed Hook of GradientHook::set, not yet released; Fn and Sync allow calls at any time.
    let hook = unsafe { &*context.cast::<Hook>() };
    i32::from(catch_unwind(AssertUnwindSafe(hook)).is_err())
}

extern "C" fn release_hook(context: *mut c_void) {
    // SAFETY: the context came from Box::into_raw in GradientHook::set and is released once.
    drop(unsafe { Box::from_raw(context.cast::<Hook>()) });
}

extern "C" fn call_tensor(context: *mut c_void, in_out: *mut c_void, reason: *mut c_void) -> i32 {
    // SAFETY: the context is the boxed TensorCall of self_adjoint, not yet released.
    let map = unsafe { &*context.cast::<TensorCall>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: in_out is a live at::Tensor for the duration of the call; clone_from_ptr makes a handle of its own.
        let mut tensor = unsafe { Tensor::clone_from_ptr(in_out.cast()) };
        map(&mut tensor)
    }));
    let text = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "a call out of the graph panicked".to_owned(),
    };
    // SAFETY: reason is the caller's std::string; the bytes are copied during the call.
    unsafe { ffi::dt_reason_set(reason, text.as_ptr().cast(), text.len()) };
    1
}

extern "C" fn release_tensor(context: *mut c_void) {
    // SAFETY: the context came from Box::into_raw in self_adjoint and is released once.
    drop(unsafe { Box::from_raw(context.cast::<TensorCall>()) });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use tch::Kind;

    fn leaf() -> Tensor {
        Tensor::from_slice(&[1.0f32, 2.0]).set_requires_grad(true)
    }

    #[test]
    fn a_hook_is_called_once_per_backward_pass_after_the_gradient_is_there() {
        let (used_twice, unused) = (leaf(), leaf());
        let calls = Arc::new(AtomicUsize::new(0));
        let (count, watched) = (Arc::clone(&calls), Mutex::new(used_twice.shallow_clone()));
        let hook = GradientHook::set(&used_twice, move || {
            assert_eq!(watched.lock().unwrap().grad().double_value(&[0]), 3.0);
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        let other = GradientHook::set(&unused, || panic!("not reached")).unwrap();
        (&used_twice * 2.0 + &used_twice).sum(Kind::Float).backward();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        drop((hook, other));
        (&used_twice * 2.0).sum(Kind::Float).backward();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "removed");
        assert_eq!(Arc::strong_count(&calls), 1, "freed");
    }

    #[test]
    fn a_panicking_hook_makes_backward_fail() {
        let x = leaf();
        let _hook = GradientHook::set(&x, || panic!("on purpose")).unwrap();
        assert!((&x * 2.0).sum(Kind::Float).f_backward().is_err());
        assert!(GradientHook::set(&(&x * 2.0), || {}).is_err(), "no leaf");
    }

    #[test]
    fn a_self_adjoint_map_is_applied_to_values_and_gradients() {
        let x = leaf();
        let y = self_adjoint(&x, |tensor| {
            let _ = tensor.g_mul_scalar_(3.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(Vec::<f32>::try_from(&y).unwrap(), [3.0, 6.0]);
        assert_eq!(Vec::<f32>::try_from(&x).unwrap(), [1.0, 2.0], "a copy");
        (&y * &y).sum(Kind::Float).backward();
        // d/dx (3x)^2 = 18 x.
        assert_eq!(Vec::<f32>::try_from(x.grad()).unwrap(), [18.0, 36.0]);
        let error = self_adjoint(&x, |_| Err("rank 1 is lost".into())).unwrap_err();
        assert!(error.message.contains("rank 1 is lost"), "{error}");
    }
}
