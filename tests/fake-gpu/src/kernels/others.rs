//! Single kernels that steps are decided by: a loss, and the concatenation of small flat tensors.

use std::sync::Arc;

use super::{Args, Computation, Program};
use crate::check::Use;
use crate::memory::View;

pub(super) fn program(native: &str) -> Option<Program> {
    if native.contains("nll_loss_forward_no_reduce_cuda_kernel<float") {
        return Some(Box::new(zero_losses));
    }
    if native.contains("CatArrayBatchedCopy") && native.contains("OpaqueType<8u>, unsigned int, 1,") {
        let (_, rest) = native.split_once("unsigned int, 1, ")?;
        let most = rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()?;
        return Some(Box::new(move |args| concatenate(args, most)));
    }
    None
}

/// The losses of a batch are zero, not what the memory had before.
fn zero_losses(args: &Args) -> Result<Computation, String> {
    let n = i64::from_ne_bytes(args.parameter(0).read(0)).max(0) as usize;
    let at = usize::from_ne_bytes(args.parameter(3).read(0));
    let losses = View::of_device(at, n * 4).ok_or("the losses are not in device memory")?;
    Ok(Computation { uses: vec![], work: Some(Arc::new(move || losses.fill(0))) })
}

/// `(output, {pointers, offsets, sizes, elements, ...}, ...)` with up to `most` inputs of 8 bytes an element. A row of the
/// grid copies an input.
fn concatenate(args: &Args, most: usize) -> Result<Computation, String> {
    let output = usize::from_ne_bytes(args.parameter(0).read(0));
    let inputs = args.parameter(1);
    let word =
        |list: usize, i: usize| u32::from_ne_bytes(inputs.read(8 * most + 4 * most * list + 4 * i)) as usize;
    let mut parts = Vec::new();
    for i in 0..most.min(args.rows) {
        let from = usize::from_ne_bytes(inputs.read(8 * i));
        let (offset, count) = (word(0, i), word(2, i));
        let is_small = (1..65536).contains(&count) && offset < 65536;
        let (Some(from), true) = (View::of_device(from, count * 8), is_small) else { break };
        let to = View::of_device(output + offset * 8, count * 8).ok_or("the output is too small")?;
        parts.push((to, from));
    }
    let uses = parts
        .iter()
        .flat_map(|(to, from)| [Use::write(to.at, to.size), Use::read(from.at, from.size)])
        .collect();
    let work = move || parts.iter().for_each(|(to, from)| to.copy_from(*from));
    Ok(Computation { uses, work: Some(Arc::new(work)) })
}
