//! Calls from backward to Rust: after a parameter's gradient is accumulated, and from a node of the graph.

use tch::Tensor;

use crate::callback::callback;
use crate::error::{ErrorKind, ShimError, create_tensor, try_call};
use crate::ffi;

/// A hook on a parameter. Autograd's thread calls it after backward has added to the parameter's gradient:
/// once per backward pass that reaches the parameter. Dropping it removes the hook.
#[derive(Debug)]
pub struct GradientHook {
    parameter: Tensor,
}

impl GradientHook {
    /// Sets the hook of `parameter`, a leaf that requires a gradient. A parameter has one hook; a new one
    /// replaces it. If `hook` panics, the backward pass fails.
    ///
    /// `place` has the parameter's dtype, shape and strides. After [`begin_gradient`], a gradient by
    /// [`crate::autocast::substitute_shadow`] may be there, see [`crate::tensor::is_same_memory`]. Others are elsewhere.
    pub fn set(
        parameter: &Tensor,
        place: &Tensor,
        hook: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ShimError> {
        let call = callback(move |_, _| {
            hook();
            Ok(Vec::new())
        });
        try_call("set a gradient hook", |error| {
            ffi::dt_gradient_hook_set(parameter.into(), place.into(), call, error)
        })?;
        Ok(Self { parameter: parameter.shallow_clone() })
    }
}

/// Drops the gradient of `parameter`. With `may_place`, backward may write its next one into the place of its hook. Do not allow
/// it if backward starts other passes, as recomputed segments do: a parameter could get gradients of both at the same time.
pub fn begin_gradient(parameter: &Tensor, may_place: bool) -> Result<(), ShimError> {
    try_call("drop a parameter's gradient", |error| {
        ffi::dt_gradient_begin(parameter.into(), may_place, error)
    })
}

impl Drop for GradientHook {
    fn drop(&mut self) {
        // The tensor is a leaf with a hook, so this cannot fail.
        let _ = try_call("remove a gradient hook", |error| {
            ffi::dt_gradient_hook_clear((&self.parameter).into(), error)
        });
    }
}

/// Applies a self-adjoint linear map (such as a sum over ranks) as a node of the graph: `map` changes a copy
/// of `x` in place, and in backward, on autograd's thread, the gradient. If `map` fails, the pass fails.
pub fn apply_self_adjoint(
    x: &Tensor,
    map: impl Fn(&mut Tensor) -> Result<(), Box<dyn std::error::Error>> + Send + Sync + 'static,
) -> Result<Tensor, ShimError> {
    let op = "call Rust from the graph";
    let call = callback(move |inputs, _| {
        let mut own = inputs[0].shallow_clone();
        map(&mut own).map_err(|error| ShimError::new(op, ErrorKind::Other, error.to_string()))?;
        Ok(Vec::new())
    });
    create_tensor(op, |out, error| ffi::dt_self_adjoint(x.into(), call, out, error))
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
    fn a_hook_runs_once_per_backward_pass_after_the_gradient_is_set() {
        let (used_twice, unused) = (leaf(), leaf());
        let calls = Arc::new(AtomicUsize::new(0));
        let (count, parameter) = (Arc::clone(&calls), Mutex::new(used_twice.shallow_clone()));
        let hook = GradientHook::set(&used_twice, &used_twice.zeros_like(), move || {
            assert_eq!(parameter.lock().unwrap().grad().double_value(&[0]), 3.0);
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        let other = GradientHook::set(&unused, &unused.zeros_like(), || panic!("not reached")).unwrap();
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
        let _hook = GradientHook::set(&x, &x.zeros_like(), || panic!("on purpose")).unwrap();
        assert!((&x * 2.0).sum(Kind::Float).f_backward().is_err());
        assert!(GradientHook::set(&(&x * 2.0), &x.zeros_like(), || {}).is_err(), "not a leaf");
    }

    #[test]
    fn a_self_adjoint_map_is_applied_to_values_and_gradients() {
        let x = leaf();
        let y = apply_self_adjoint(&x, |tensor| {
            let _ = tensor.g_mul_scalar_(3.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(Vec::<f32>::try_from(&y).unwrap(), [3.0, 6.0]);
        assert_eq!(Vec::<f32>::try_from(&x).unwrap(), [1.0, 2.0], "a copy");
        (&y * &y).sum(Kind::Float).backward();
        // d/dx (3x)^2 = 18 x.
        assert_eq!(Vec::<f32>::try_from(x.grad()).unwrap(), [18.0, 36.0]);
        let error = apply_self_adjoint(&x, |_| Err("rank 1 is lost".into())).unwrap_err();
        assert!(error.message.contains("rank 1 is lost"), "{error}");
    }
}
