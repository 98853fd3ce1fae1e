//! Rust closures that libtorch calls and drops, on any thread.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use crate::error::{ErrorKind, ShimError};
use crate::ffi::{self, BorrowedList, DtCallback, Outputs, Reason};

/// The pass in which a segment is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass, without a graph.
    Forward,
    /// The backward pass, with a graph: the result must be the same, without other effects.
    Recompute,
}

type Call = Box<dyn Fn(&[Tensor], Pass) -> Result<Vec<Tensor>, ShimError> + Send + Sync>;

/// Wraps a closure for the boundary. The receiver owns it, also on failure. A panic in it is `Other`.
pub(crate) fn callback(
    call: impl Fn(&[Tensor], Pass) -> Result<Vec<Tensor>, ShimError> + Send + Sync + 'static,
) -> DtCallback {
    let call: Box<Call> = Box::new(Box::new(call));
    DtCallback { context: Box::into_raw(call).cast(), call: run, release }
}

extern "C" fn run(
    context: *mut c_void,
    inputs: BorrowedList<'_>,
    recomputes: bool,
    outputs: &mut Outputs,
    reason: &mut Reason,
) -> i32 {
    // SAFETY: the context is the box of `callback`, not yet released; Fn and Sync allow concurrent calls.
    let call = unsafe { &*context.cast::<Call>() };
    let pass = if recomputes { Pass::Recompute } else { Pass::Forward };
    let outcome = catch_unwind(AssertUnwindSafe(|| call(&inputs.to_owned(), pass)));
    let panicked = || ShimError::new("call Rust", ErrorKind::Other, "a Rust closure in the graph panicked");
    match outcome.unwrap_or_else(|_| Err(panicked())) {
        Ok(computed) => {
            for tensor in &computed {
                ffi::dt_output_push(outputs, tensor.into());
            }
            0
        }
        Err(error) => {
            ffi::dt_reason_set(reason, (&error.message).into());
            error.kind as i32
        }
    }
}

extern "C" fn release(context: *mut c_void) {
    // SAFETY: the context came from Box::into_raw in `callback` and is released once.
    drop(unsafe { Box::from_raw(context.cast::<Call>()) });
}
