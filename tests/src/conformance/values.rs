//! The values of tensors, and what every backend makes of them.

use dtrain_test_kit::no_values;
use dtrain_worker::collectives::ReduceOp;
use tch::{Kind, Tensor};

use super::{Failure, device};

/// Returns small integers: every dtype (also int8 and bfloat16) holds every sum exactly.
pub(super) fn values(rank: usize, size: i64, kind: Kind) -> Tensor {
    repeated(&(eleven() + rank as i64 * 3), size, kind)
}

pub(super) fn expected(size: i64, kind: Kind, ranks: usize, op: ReduceOp) -> Tensor {
    let ranks = ranks as i64;
    let reduced = match op {
        ReduceOp::Sum => eleven() * ranks + 3 * ranks * (ranks - 1) / 2,
        ReduceOp::Min => eleven(),
        ReduceOp::Max => eleven() + 3 * (ranks - 1),
    };
    repeated(&reduced, size, kind)
}

/// Returns 0 to 10.
fn eleven() -> Tensor {
    Tensor::arange(11, (Kind::Int64, device()))
}

fn repeated(values: &Tensor, size: i64, kind: Kind) -> Tensor {
    values.to_kind(kind).repeat([size / 11 + 1]).narrow(0, 0, size).copy()
}

pub(super) fn same(what: &str, got: &Tensor, wanted: &Tensor) -> Result<(), Failure> {
    let is_alike = got.kind() == wanted.kind() && got.size() == wanted.size();
    if is_alike && no_values::agrees(got.equal(wanted)) {
        return Ok(());
    }
    // The first elements suffice: a report with all would hide the others.
    let some = |tensor: &Tensor| tensor.flatten(0, -1).narrow(0, 0, tensor.numel().min(8) as i64);
    Err(format!("{what}: got {got:?} {}, wanted {wanted:?} {}", some(got), some(wanted)).into())
}
