//! Parts of a forward pass that keep only their inputs and are recomputed in backward.

use tch::Tensor;

pub use crate::callback::Pass;
use crate::callback::callback;
use crate::error::{ShimError, create_tensor, fetch};
use crate::ffi::{self, Borrowed, BorrowedList};

/// Computes `segment` of `inputs` as one node of the graph, which keeps only the inputs. Backward computes
/// the segment again, with the generator states and autocast settings of the first pass, and differentiates
/// it; its parameters get their gradients then, and their hooks are called. If gradients are off, nothing is
/// kept and the segment is computed once.
///
/// The output requires gradients, so use it only if an input or a parameter does. The segment must not change
/// its inputs in place. It is dropped with the graph, on any thread. Its errors keep their kind, also in the
/// backward pass; a panic in it is `Other`.
pub fn recompute(
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor], Pass) -> Result<Tensor, ShimError> + Send + Sync + 'static,
) -> Result<Tensor, ShimError> {
    let inputs: Vec<Borrowed<'_>> = inputs.iter().map(|input| Borrowed::from(*input)).collect();
    let segment = callback(move |inputs, pass| Ok(vec![segment(inputs, pass)?]));
    create_tensor("compute a segment", |out, error| {
        ffi::dt_recompute(BorrowedList::new(&inputs), segment, out, error)
    })
}

/// Returns whether operations on this thread are recorded for backward.
pub fn grad_enabled() -> bool {
    ffi::dt_grad_mode()
}

/// Returns a hash of the bits of all elements of `tensor` in memory order: equal for equal bits, shape and
/// layout, otherwise hardly ever. Waits for a GPU. Elements of more than 8 bytes are `NotImplemented`.
pub fn fingerprint(tensor: &Tensor) -> Result<u64, ShimError> {
    fingerprint_by(tensor, true)
}

/// With `by_loop`, reads host memory directly if the tensor is there; otherwise uses operations, as on a GPU.
fn fingerprint_by(tensor: &Tensor, by_loop: bool) -> Result<u64, ShimError> {
    fetch("compute a fingerprint", |out, error| ffi::dt_fingerprint(tensor.into(), by_loop, out, error))
}

#[cfg(test)]
mod tests;
