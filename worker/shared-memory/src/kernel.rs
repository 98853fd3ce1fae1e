//! The arithmetic: a block of every rank's values is brought into the cache once, reduced in the order of ranks, and written
//! to the regions that want it, before the next block.
//!
//! Shared bytes are read and written through pointers only, never through references: the accumulator is this thread's own.

use std::ops::{Add, Range};
use std::ptr::NonNull;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::{Element, Reduction};

/// Values in the accumulator. In binary32 it takes 8 KiB, and with one block of each rank it fits into the first cache.
const BLOCK: usize = 2048;

/// Reduces the bytes `part` of all `sources` in their order and writes the result to the same bytes of all `targets`.
///
/// # Safety
/// `part` is aligned to `element`, and lies inside the memory of every source and target, each of which is page-aligned.
/// During the call nobody else writes to those bytes of the sources, nor reads or writes those of the targets.
pub(crate) unsafe fn reduce(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    element: Element,
    reduction: Reduction,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match element {
            Element::F32 => with::<f32>(sources, targets, part, reduction),
            Element::F64 => with::<f64>(sources, targets, part, reduction),
            Element::F16 => with::<f16>(sources, targets, part, reduction),
            Element::Bf16 => with::<bf16>(sources, targets, part, reduction),
        }
    }
}

/// Copies the bytes `part` of `from` to the same bytes of `to`.
///
/// # Safety
/// `part` lies inside both, which do not overlap. During the call nobody else writes to those bytes of `from`, nor reads or
/// writes those of `to`.
pub(crate) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, part: Range<usize>) {
    // SAFETY: as the caller promises.
    unsafe {
        from.add(part.start)
            .copy_to_nonoverlapping(to.add(part.start), part.len());
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn with<T: Stored>(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    reduction: Reduction,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match reduction {
            Reduction::Sum => blocks::<T>(sources, targets, part, |a, b| a + b),
            Reduction::Min => blocks::<T>(
                sources,
                targets,
                part,
                |a, b| if b < a || is_nan(b) { b } else { a },
            ),
            Reduction::Max => blocks::<T>(
                sources,
                targets,
                part,
                |a, b| if b > a || is_nan(b) { b } else { a },
            ),
        }
    }
}

fn is_nan<W: Wide>(value: W) -> bool {
    value.partial_cmp(&value).is_none()
}

/// # Safety
/// As [`reduce`].
unsafe fn blocks<T: Stored>(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    join: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
) {
    let Some((first, rest)) = sources.split_first() else {
        return;
    };
    let mut room = Room {
        sum: [T::Wide::default(); BLOCK],
        wide: [T::Wide::default(); BLOCK],
        stored: [T::default(); BLOCK],
    };
    let mut start = part.start;
    while start < part.end {
        let count = ((part.end - start) / size_of::<T>()).min(BLOCK);
        let sum = &mut room.sum[..count];
        let wide = &mut room.wide[..count];
        let stored = &mut room.stored[..count];
        // SAFETY: `count` values from `start` lie inside `part`, aligned, and no one else touches them, as the caller promises.
        unsafe {
            T::load(first.add(start).cast(), sum, stored);
            for source in rest {
                T::join(source.add(start).cast(), sum, wide, stored, join);
            }
            let result = T::finish(sum, stored);
            for target in targets {
                target
                    .add(start)
                    .cast()
                    .copy_from_nonoverlapping(NonNull::from(result).cast::<T>(), count);
            }
        }
        start += count * size_of::<T>();
    }
}

/// This thread's own memory: the accumulator, and where values of another width are converted.
struct Room<T: Stored> {
    sum: [T::Wide; BLOCK],
    wide: [T::Wide; BLOCK],
    stored: [T; BLOCK],
}

/// What a reduction is computed in.
trait Wide: Copy + Default + PartialOrd + Add<Output = Self> {}
impl Wide for f32 {}
impl Wide for f64 {}

/// What lies in memory. The slices are of one length, that of the block.
trait Stored: Copy + Default {
    type Wide: Wide;

    /// Sets `sum` to the values at `from`.
    ///
    /// # Safety
    /// `from` is aligned and valid for reads of `sum.len()` values that nobody writes to meanwhile.
    unsafe fn load(from: NonNull<Self>, sum: &mut [Self::Wide], stored: &mut [Self]);

    /// Joins the values at `from` to `sum`; `wide` and `stored` are scratch.
    ///
    /// # Safety
    /// As [`Stored::load`].
    unsafe fn join(
        from: NonNull<Self>,
        sum: &mut [Self::Wide],
        wide: &mut [Self::Wide],
        stored: &mut [Self],
        join: impl Fn(Self::Wide, Self::Wide) -> Self::Wide,
    );

    /// The sum as it is stored.
    fn finish<'a>(sum: &'a [Self::Wide], stored: &'a mut [Self]) -> &'a [Self];
}

macro_rules! stored_as_computed {
    ($type:ty) => {
        impl Stored for $type {
            type Wide = $type;

            unsafe fn load(from: NonNull<Self>, sum: &mut [Self], _: &mut [Self]) {
                // SAFETY: as the caller promises; sum is this thread's own.
                unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *sum).cast(), sum.len()) }
            }

            unsafe fn join(
                from: NonNull<Self>,
                sum: &mut [Self],
                _: &mut [Self],
                _: &mut [Self],
                join: impl Fn(Self, Self) -> Self,
            ) {
                for (index, value) in sum.iter_mut().enumerate() {
                    // SAFETY: index is below the length that the caller vouches for.
                    *value = join(*value, unsafe { from.add(index).read() });
                }
            }

            fn finish<'a>(sum: &'a [Self], _: &'a mut [Self]) -> &'a [Self] {
                sum
            }
        }
    };
}

stored_as_computed!(f32);
stored_as_computed!(f64);

macro_rules! stored_in_half {
    ($type:ty, $widen:path, $narrow:path) => {
        impl Stored for $type {
            type Wide = f32;

            unsafe fn load(from: NonNull<Self>, sum: &mut [f32], stored: &mut [Self]) {
                // SAFETY: as the caller promises; stored is this thread's own.
                unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *stored).cast(), stored.len()) };
                $widen(stored, sum);
            }

            unsafe fn join(
                from: NonNull<Self>,
                sum: &mut [f32],
                wide: &mut [f32],
                stored: &mut [Self],
                join: impl Fn(f32, f32) -> f32,
            ) {
                // SAFETY: as the caller promises.
                unsafe { Self::load(from, wide, stored) };
                for (value, other) in sum.iter_mut().zip(wide.iter()) {
                    *value = join(*value, *other);
                }
            }

            fn finish<'a>(sum: &'a [f32], stored: &'a mut [Self]) -> &'a [Self] {
                $narrow(sum, stored);
                stored
            }
        }
    };
}

stored_in_half!(f16, widen_f16, narrow_f16);
stored_in_half!(bf16, widen_bf16, narrow_bf16);

/// By the processor's own instructions where it has them.
fn widen_f16(stored: &[f16], wide: &mut [f32]) {
    stored.convert_to_f32_slice(wide);
}

fn narrow_f16(wide: &[f32], stored: &mut [f16]) {
    stored.convert_from_f32_slice(wide);
}

/// A loop that is vectorised, which `half`'s conversions of bfloat16 are not.
fn widen_bf16(stored: &[bf16], wide: &mut [f32]) {
    for (wide, stored) in wide.iter_mut().zip(stored) {
        *wide = f32::from_bits(u32::from(stored.to_bits()) << 16);
    }
}

/// Rounds to the nearest, ties to even; a NaN stays one.
fn narrow_bf16(wide: &[f32], stored: &mut [bf16]) {
    for (stored, wide) in stored.iter_mut().zip(wide) {
        let bits = wide.to_bits();
        // Adds just less than half of the last place that stays, or just half where that place is odd.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet = bits | 0x0040_0000;
        let kept = if wide.is_nan() { quiet } else { rounded };
        *stored = bf16::from_bits((kept >> 16) as u16);
    }
}

#[cfg(test)]
mod tests;
