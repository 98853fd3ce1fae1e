//! The dtypes of exported programs, which have other numbers than those of libtorch.

use tch::Kind;

/// Returns the dtype with the schema's number, and libtorch's number of it.
pub(super) fn dtype(number: i64) -> Option<(Kind, i64)> {
    Some(match number {
        1 => (Kind::Uint8, 0),
        2 => (Kind::Int8, 1),
        3 => (Kind::Int16, 2),
        4 => (Kind::Int, 3),
        5 => (Kind::Int64, 4),
        6 => (Kind::Half, 5),
        7 => (Kind::Float, 6),
        8 => (Kind::Double, 7),
        10 => (Kind::ComplexFloat, 9),
        11 => (Kind::ComplexDouble, 10),
        12 => (Kind::Bool, 11),
        13 => (Kind::BFloat16, 15),
        _ => return None,
    })
}

/// Returns whether a dtype is of whole numbers or of truth values.
pub(super) fn is_whole(kind: Kind) -> bool {
    matches!(kind, Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64 | Kind::Bool)
}

/// Returns libtorch's number of a memory format.
pub(super) fn memory_format(number: i64) -> Option<i64> {
    // Contiguous, channels-last, channels-last of volumes, preserve.
    [None, Some(0), Some(2), Some(3), Some(1)].get(usize::try_from(number).ok()?).copied().flatten()
}

/// Returns libtorch's number of a layout; only dense tensors are supported.
pub(super) fn layout(number: i64) -> Option<i64> {
    (number == 7).then_some(0)
}
