//! The arithmetic of reductions.

use std::ffi::c_int;

use cudarc::nccl::sys::{ncclDataType_t as D, ncclRedOp_t as O};
use half::{bf16, f16};

use crate::memory::View;

/// The elements of a block.
const BLOCK: usize = 4096;

/// Returns the bytes of an element.
pub(super) fn size_of(element: c_int) -> usize {
    let is = |other: D| element == other as c_int;
    if [D::ncclInt64, D::ncclUint64, D::ncclFloat64].into_iter().any(is) {
        8
    } else if [D::ncclInt32, D::ncclUint32, D::ncclFloat32].into_iter().any(is) {
        4
    } else if [D::ncclFloat16, D::ncclBfloat16].into_iter().any(is) {
        2
    } else {
        1
    }
}

/// Reduces `count` elements of each slot into `to`, in the order of the ranks.
pub(super) fn reduce(slots: &[View], to: View, count: usize, element: c_int, operation: c_int) {
    let divisor = if operation == O::ncclAvg as c_int { slots.len() } else { 1 };
    // One loop for each type and operation: a training reduces millions of elements a step.
    macro_rules! fold_by {
        ($read:expr, $write:expr, $product:expr, $max:expr, $min:expr) => {
            match operation {
                o if o == O::ncclProd as c_int => fold(slots, to, count, $read, $write, $product),
                o if o == O::ncclMax as c_int => fold(slots, to, count, $read, $write, $max),
                o if o == O::ncclMin as c_int => fold(slots, to, count, $read, $write, $min),
                _ => fold(slots, to, count, $read, $write, |a, b| a + b),
            }
        };
    }
    macro_rules! integers {
        ($t:ty) => {
            fold_by!(
                |bytes| <$t>::from_ne_bytes(bytes) as i128,
                |x: i128| ((x / divisor as i128) as $t).to_ne_bytes(),
                i128::wrapping_mul,
                i128::max,
                i128::min
            )
        };
    }
    macro_rules! floats {
        ($t:ty, $sum:ty, $from:expr) => {
            fold_by!(
                |bytes| <$sum>::from(<$t>::from_ne_bytes(bytes)),
                |x: $sum| $from(x / divisor as $sum).to_ne_bytes(),
                |a, b| a * b,
                <$sum>::max,
                <$sum>::min
            )
        };
    }
    match element {
        t if t == D::ncclInt8 as c_int => integers!(i8),
        t if t == D::ncclUint8 as c_int => integers!(u8),
        t if t == D::ncclInt32 as c_int => integers!(i32),
        t if t == D::ncclUint32 as c_int => integers!(u32),
        t if t == D::ncclInt64 as c_int => integers!(i64),
        t if t == D::ncclUint64 as c_int => integers!(u64),
        t if t == D::ncclFloat16 as c_int => floats!(f16, f32, f16::from_f32),
        t if t == D::ncclBfloat16 as c_int => floats!(bf16, f32, bf16::from_f32),
        t if t == D::ncclFloat32 as c_int => floats!(f32, f32, |x| x),
        _ => floats!(f64, f64, |x| x),
    }
}

#[inline]
fn fold<T: Copy, const N: usize>(
    slots: &[View],
    to: View,
    count: usize,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    combine: impl Fn(T, T) -> T,
) {
    // By blocks that stay in the cache, rank by rank.
    let mut totals = Vec::with_capacity(BLOCK);
    for start in (0..count).step_by(BLOCK) {
        let size = BLOCK.min(count - start);
        totals.clear();
        for slot in slots {
            let values = slot.elements::<N>(start, size).iter().map(|bytes| read(*bytes));
            if totals.is_empty() {
                totals.extend(values);
            } else {
                totals.iter_mut().zip(values).for_each(|(total, value)| *total = combine(*total, value));
            }
        }
        for (index, total) in totals.iter().enumerate() {
            to.write(N * (start + index), write(*total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_divide_and_integers_are_exact() {
        let (a, b, mut out) = ([i64::MAX - 9, 4], [3, 6], [0_i64; 2]);
        let view = |at: *const i64| {
            // SAFETY: the arrays outlive the views.
            unsafe { View::trusted(at.expose_provenance(), 16) }
        };
        let slots = [view(a.as_ptr()), view(b.as_ptr())];
        reduce(&slots, view(out.as_mut_ptr()), 2, D::ncclInt64 as c_int, O::ncclSum as c_int);
        assert_eq!(out, [i64::MAX - 6, 10]);
        reduce(&slots, view(out.as_mut_ptr()), 2, D::ncclInt64 as c_int, O::ncclAvg as c_int);
        assert_eq!(out[1], 5);
    }
}
