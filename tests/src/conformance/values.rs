//! The values of tensors, and what every backend makes of them.

use dtrain_test_kit::no_values;
use dtrain_worker::collectives::ReduceOp;
use tch::{Kind, Tensor};

use super::{Failure, device};

/// Returns small integers: every dtype (also int8 and bfloat16) holds every sum exactly.
pub(super) fn values(rank: usize, size: i64, kind: Kind) -> Tensor {
    (Tensor::arange(size, (Kind::Int64, device())).remainder(11) + rank as i64 * 3).to_kind(kind)
}

pub(super) fn expected(size: i64, kind: Kind, ranks: usize, op: ReduceOp) -> Tensor {
    let all: Vec<Tensor> = (0..ranks).map(|rank| values(rank, size, kind)).collect();
    let stacked = Tensor::stack(&all, 0).to_kind(Kind::Double);
    let reduced = match op {
        ReduceOp::Sum => stacked.sum_dim_intlist(0, false, Kind::Double),
        ReduceOp::Min => stacked.amin(0, false),
        ReduceOp::Max => stacked.amax(0, false),
    };
    reduced.to_kind(kind)
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
