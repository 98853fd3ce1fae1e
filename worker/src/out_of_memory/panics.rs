//! Panics caused by out of memory or a failed GPU.
//!
//! tch panics if an operation with a number fails: dropping its `Scalar` finds the unread error (tch 0.24,
//! `wrappers/scalar.rs`). Plain methods and operators, which custom tasks may call, panic by design.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

use dtrain_torch_shim::grad_mode::GradMode;
use dtrain_torch_shim::{ErrorKind, kind_of};
use tch::TchError;

thread_local! {
    /// Number of nested calls of [`catch_torch_panic`] on this thread.
    static CATCH_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs `body`. A panic by out of memory or a failed GPU becomes an unprinted error; other panics continue. The grad mode is
/// restored; other changes that `body` has made are the caller's responsibility.
pub(crate) fn catch_torch_panic<T>(body: impl FnOnce() -> T) -> Result<T, TchError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if CATCH_DEPTH.get() == 0 || torch_error(info.payload()).is_none() {
                print(info);
            }
        }));
    });
    let _mode = GradMode::save();
    CATCH_DEPTH.set(CATCH_DEPTH.get() + 1);
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    CATCH_DEPTH.set(CATCH_DEPTH.get() - 1);
    outcome.or_else(|payload| match torch_error(payload.as_ref()) {
        Some(error) => Err(error),
        None => panic::resume_unwind(payload),
    })
}

/// Returns the error in a panic's message if memory ran out or the GPU has failed.
fn torch_error(payload: &(dyn Any + Send)) -> Option<TchError> {
    let words = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())?;
    // Keeps libtorch's sentence, without the text of unwrap() and the C++ stack.
    let sentence = words.split("Torch(\"").last().unwrap_or(words);
    let sentence = ["\\nException raised", "\\nframe #"]
        .iter()
        .fold(sentence, |text, mark| text.split(mark).next().unwrap_or(text));
    let error = TchError::Torch(sentence.replace("\\n", "\n"));
    matches!(kind_of(&error), ErrorKind::OutOfMemory | ErrorKind::Device).then_some(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::OutOfMemory;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn an_out_of_memory_panic_is_an_error() {
        // An operation with a number, and a method that panics.
        for body in [
            || drop(Tensor::f_full([1 << 50], 1.0, (Kind::Float, Device::Cpu))),
            || drop(Tensor::zeros([1 << 50], (Kind::Float, Device::Cpu))),
        ] {
            let error = catch_torch_panic(|| tch::no_grad(body)).unwrap_err();
            assert!(error.is_out_of_memory(), "{error}");
            let text = error.to_string();
            assert!(!text.contains("unwrap") && !text.contains("frame #0"), "{text}");
        }
        let leaf = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        assert!((&leaf + &leaf).requires_grad(), "operations are recorded again");
        assert_eq!(catch_torch_panic(|| 7).unwrap(), 7);
    }

    #[test]
    fn a_panic_by_a_failed_gpu_is_an_error() {
        let words = "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA error: uncorrectable ECC error encountered\\nSearch for\\nException raised from";
        let error = catch_torch_panic(|| panic!("{words}")).unwrap_err();
        assert!(
            error.to_string().ends_with("CUDA error: uncorrectable ECC error encountered\nSearch for"),
            "{error}"
        );
    }

    #[test]
    fn another_panic_continues() {
        let outcome = panic::catch_unwind(|| catch_torch_panic(|| panic!("on purpose")));
        let words = outcome.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(*words, "on purpose");
        assert_eq!(CATCH_DEPTH.get(), 0);
    }
}
