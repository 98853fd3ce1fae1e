//! Pieces of a forward pass that keep their inputs alone, and compute the rest again when backward comes to them.

use tch::Tensor;

pub use crate::callback::Pass;
use crate::callback::callback;
use crate::error::{ShimError, fetched, tensor};
use crate::ffi::{self, Lent, LentList};

/// Computes `segment` of `inputs` as one node of the graph, which keeps the inputs and nothing else. Backward computes the
/// segment again, under the generators' states and the autocast settings of the first time, and goes through it; parameters
/// that it uses get their gradients then, and their hooks are called. Where gradients are off, nothing is kept and the
/// segment is computed once.
///
/// The output requires gradients, so a segment in which nothing does should not come here. The segment must
/// not change its inputs in place. It is dropped with the graph, on whichever thread that happens. Its
/// errors come through with their kind, also as errors of the backward pass; a panic in it is `Other`.
pub fn recompute(
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor], Pass) -> Result<Tensor, ShimError> + Send + Sync + 'static,
) -> Result<Tensor, ShimError> {
    let inputs: Vec<Lent<'_>> = inputs.iter().map(|input| Lent::from(*input)).collect();
    let segment = callback(move |inputs, pass| Ok(vec![segment(inputs, pass)?]));
    tensor("compute a segment", |out, error| ffi::dt_recompute(LentList::new(&inputs), segment, out, error))
}

/// Whether operations on this thread are recorded for a backward pass.
pub fn grad_enabled() -> bool {
    ffi::dt_grad_mode()
}

/// A number made of the bits of all elements of `tensor` and their order in memory. Two tensors of one shape and layout with
/// the same bits have the same number; with other bits they hardly ever do. On a GPU it waits for the device.
/// Elements of more than 8 bytes are `NotImplemented`.
pub fn fingerprint(tensor: &Tensor) -> Result<u64, ShimError> {
    fingerprint_by(tensor, true)
}

/// `by_loop`: over the memory of the host, where the tensor lies there; else by operations, as on a GPU.
fn fingerprint_by(tensor: &Tensor, by_loop: bool) -> Result<u64, ShimError> {
    fetched("take a fingerprint", |out, error| ffi::dt_fingerprint(tensor.into(), by_loop, out, error))
}

#[cfg(test)]
mod tests;
