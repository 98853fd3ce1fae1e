//! Pieces of a forward pass that keep their inputs alone, and compute the rest again when backward comes to them.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use crate::error::{ErrorKind, ShimError, checked, code};
use crate::ffi;

/// For which time a segment is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// In the forward pass, without a graph.
    First,
    /// In the backward pass, with one: the same result is expected, and no other effect.
    Again,
}

type Segment = Box<dyn Fn(&[Tensor], Pass) -> Result<Vec<Tensor>, ShimError> + Send + Sync>;

/// Computes `segment` of `inputs` as one node of the graph, which keeps the inputs and nothing else. Backward computes the
/// segment again, under the generators' states and the autocast settings of the first time, and goes through it; parameters
/// that it uses get their gradients then, and their hooks are called. Where gradients are off, nothing is kept and the
/// segment is computed once.
///
/// The outputs require gradients, so a segment in which nothing does should not come here. The segment must not change its
/// inputs in place. It is dropped with the graph, on whichever thread that happens.
///
/// # Errors
/// What `segment` says, with its kind, also as an error of the backward pass; a panic in it is `Other`. What libtorch refuses.
pub fn recompute(
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor], Pass) -> Result<Vec<Tensor>, ShimError> + Send + Sync + 'static,
) -> Result<Vec<Tensor>, ShimError> {
    let segment: Box<Segment> = Box::new(Box::new(segment));
    let segment = ffi::DtSegment {
        context: Box::into_raw(segment).cast(),
        call: call_segment,
        release: release_segment,
    };
    let inputs: Vec<ffi::TensorPtr> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
    let mut outputs: Vec<Tensor> = Vec::new();
    let sink: *mut Vec<Tensor> = &mut outputs;
    checked("compute a segment", |error| {
        // SAFETY: the inputs are live; the segment's context is a boxed Segment, which the callee owns from here on and gives
        // to release_segment exactly once, also where it fails; sink outlives the call, which alone uses it.
        unsafe {
            ffi::dt_recompute(
                inputs.as_ptr(),
                inputs.len(),
                segment,
                sink.cast(),
                collect,
                error,
            )
        }
    })?;
    Ok(outputs)
}

/// Whether operations on this thread are recorded for a backward pass.
pub fn grad_enabled() -> bool {
    // SAFETY: reads a flag of the thread.
    unsafe { ffi::dt_grad_enabled() }
}

/// A number made of the bits of all elements of `tensor` and their order in memory. Two tensors of one shape and layout with
/// the same bits have the same number; with other bits they hardly ever do. On a GPU it waits for the device.
///
/// # Errors
/// `NotImplemented` for elements of more than 8 bytes; where memory runs out.
pub fn fingerprint(tensor: &Tensor) -> Result<u64, ShimError> {
    fingerprint_by(tensor, true)
}

/// `by_loop`: over the memory of the host, where the tensor lies there; else by operations, as on a GPU.
fn fingerprint_by(tensor: &Tensor, by_loop: bool) -> Result<u64, ShimError> {
    let mut out = 0;
    checked("take a fingerprint", |error| {
        // SAFETY: the tensor is live and out is a valid place.
        unsafe { ffi::dt_fingerprint(tensor.as_ptr().cast(), by_loop, &mut out, error) }
    })?;
    Ok(out)
}

extern "C" fn collect(sink: *mut c_void, output: *mut c_void) {
    // SAFETY: sink is the vector of recompute, and output a new at::Tensor, which tch frees.
    unsafe { (*sink.cast::<Vec<Tensor>>()).push(Tensor::from_ptr(output.cast())) }
}

extern "C" fn call_segment(
    context: *mut c_void,
    inputs: *const ffi::TensorPtr,
    count: usize,
    again: bool,
    outputs: *mut c_void,
    reason: *mut c_void,
) -> i32 {
    // SAFETY: the context is the boxed Segment of recompute, not yet released; Fn and Sync allow calls at any time.
    let segment = unsafe { &*context.cast::<Segment>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: inputs are `count` live at::Tensors for the duration of the call; clone_from_ptr makes handles of our own.
        let inputs: Vec<Tensor> = (0..count)
            .map(|index| unsafe { Tensor::clone_from_ptr((*inputs.add(index)).cast_mut().cast()) })
            .collect();
        let computed = segment(&inputs, if again { Pass::Again } else { Pass::First })?;
        for tensor in &computed {
            // SAFETY: outputs is the caller's list, which takes a reference of its own to the live tensor.
            unsafe { ffi::dt_output_push(outputs, tensor.as_ptr().cast()) }
        }
        Ok(())
    }));
    let error = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => ShimError::new("compute a segment", ErrorKind::Other, "a segment panicked"),
    };
    // SAFETY: reason is the caller's std::string; the bytes are copied during the call.
    unsafe { ffi::dt_reason_set(reason, error.message.as_ptr().cast(), error.message.len()) };
    code(error.kind)
}

extern "C" fn release_segment(context: *mut c_void) {
    // SAFETY: the context came from Box::into_raw in recompute and is released once.
    drop(unsafe { Box::from_raw(context.cast::<Segment>()) });
}

#[cfg(test)]
mod tests;
