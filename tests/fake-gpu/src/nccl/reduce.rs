//! The arithmetic of reductions.

use std::ffi::c_int;

use cudarc::nccl::sys::{ncclDataType_t as D, ncclRedOp_t as O};
use half::{bf16, f16};

use crate::memory::View;

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
    macro_rules! integers {
        ($t:ty) => {{
            let write = |x: i128| ((x / divisor as i128) as $t).to_ne_bytes();
            fold(slots, to, count, |bytes| <$t>::from_ne_bytes(bytes) as i128, write, integer(operation))
        }};
    }
    macro_rules! floats {
        ($t:ty, $from:expr) => {{
            let write = |x: f64| $from(x / divisor as f64).to_ne_bytes();
            fold(slots, to, count, |bytes| f64::from(<$t>::from_ne_bytes(bytes)), write, float(operation))
        }};
    }
    match element {
        t if t == D::ncclInt8 as c_int => integers!(i8),
        t if t == D::ncclUint8 as c_int => integers!(u8),
        t if t == D::ncclInt32 as c_int => integers!(i32),
        t if t == D::ncclUint32 as c_int => integers!(u32),
        t if t == D::ncclInt64 as c_int => integers!(i64),
        t if t == D::ncclUint64 as c_int => integers!(u64),
        t if t == D::ncclFloat16 as c_int => floats!(f16, f16::from_f64),
        t if t == D::ncclBfloat16 as c_int => floats!(bf16, bf16::from_f64),
        t if t == D::ncclFloat32 as c_int => floats!(f32, |x| x as f32),
        _ => floats!(f64, |x| x),
    }
}

fn fold<T: Copy, const N: usize>(
    slots: &[View],
    to: View,
    count: usize,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    combine: fn(T, T) -> T,
) {
    for i in 0..count {
        let values = slots.iter().map(|slot| read(slot.read(N * i)));
        if let Some(total) = values.reduce(combine) {
            to.write(N * i, write(total));
        }
    }
}

fn integer(operation: c_int) -> fn(i128, i128) -> i128 {
    match operation {
        o if o == O::ncclProd as c_int => i128::wrapping_mul,
        o if o == O::ncclMax as c_int => i128::max,
        o if o == O::ncclMin as c_int => i128::min,
        _ => |a, b| a + b,
    }
}

fn float(operation: c_int) -> fn(f64, f64) -> f64 {
    match operation {
        o if o == O::ncclProd as c_int => |a, b| a * b,
        o if o == O::ncclMax as c_int => f64::max,
        o if o == O::ncclMin as c_int => f64::min,
        _ => |a, b| a + b,
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
