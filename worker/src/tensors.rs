//! Questions about tensors.

use tch::{Kind, Tensor};

/// Returns the bytes of a tensor's elements.
pub(crate) fn bytes(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

/// Returns whether values of this dtype are real numbers with a fraction; others are counters, flags, indices or complex.
pub(crate) fn is_floating(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

/// Returns whether values of this dtype are complex numbers.
pub(crate) fn is_complex(kind: Kind) -> bool {
    matches!(kind, Kind::ComplexHalf | Kind::ComplexFloat | Kind::ComplexDouble)
}
