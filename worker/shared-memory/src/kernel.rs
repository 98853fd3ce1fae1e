//! The arithmetic: a block of every rank's values is brought into the cache once, reduced in the order of ranks, and written
//! to the regions that want it, before the next block.
//!
//! Shared bytes are read and written through pointers only, never through references: the accumulator is this thread's own.

use std::ops::{Add, Range};
use std::ptr::NonNull;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::queue::{Element, Reduction};

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
        from.add(part.start).copy_to_nonoverlapping(to.add(part.start), part.len());
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
    let is_nan = |value: T::Wide| value.partial_cmp(&value).is_none();
    let least = |a, b| if b < a || is_nan(b) { b } else { a };
    let greatest = |a, b| if b > a || is_nan(b) { b } else { a };
    // SAFETY: as the caller promises.
    unsafe {
        match reduction {
            Reduction::Sum => blocks::<T>(sources, targets, part, |a, b| a + b),
            Reduction::Min => blocks::<T>(sources, targets, part, least),
            Reduction::Max => blocks::<T>(sources, targets, part, greatest),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn blocks<T: Stored>(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    join: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
) {
    // This thread's own memory: the accumulator, and where values of another width are converted.
    let mut sum = [T::Wide::default(); BLOCK];
    let mut wide = [T::Wide::default(); BLOCK];
    let mut stored = [T::default(); BLOCK];
    let mut start = part.start;
    while start < part.end {
        let count = ((part.end - start) / size_of::<T>()).min(BLOCK);
        let (sum, wide, stored) = (&mut sum[..count], &mut wide[..count], &mut stored[..count]);
        // SAFETY: `count` values from `start` lie inside `part`, aligned, and no one else touches them, as the caller promises; a `T`
        // is a `T::Wide` where the trait says so.
        unsafe {
            for (rank, source) in sources.iter().enumerate() {
                let source = source.add(start);
                if T::IS_WIDE && rank == 0 {
                    source.cast().copy_to_nonoverlapping(NonNull::from(&mut *sum).cast::<T::Wide>(), count);
                } else if T::IS_WIDE {
                    let source = source.cast::<T::Wide>();
                    for (index, value) in sum.iter_mut().enumerate() {
                        *value = join(*value, source.add(index).read());
                    }
                } else {
                    source.cast().copy_to_nonoverlapping(NonNull::from(&mut *stored).cast::<T>(), count);
                    T::widen(stored, if rank == 0 { &mut *sum } else { &mut *wide });
                    if rank > 0 {
                        sum.iter_mut().zip(&*wide).for_each(|(value, other)| *value = join(*value, *other));
                    }
                }
            }
            if !T::IS_WIDE {
                T::narrow(sum, stored);
            }
            let result =
                if T::IS_WIDE { NonNull::from(&*sum).cast() } else { NonNull::from(&*stored).cast::<T>() };
            for target in targets {
                target.add(start).cast().copy_from_nonoverlapping(result, count);
            }
        }
        start += count * size_of::<T>();
    }
}

/// What a reduction is computed in.
trait Wide: Copy + Default + PartialOrd + Add<Output = Self> {}
impl Wide for f32 {}
impl Wide for f64 {}

/// What lies in memory.
///
/// # Safety
/// Where `IS_WIDE` says so, `Wide` is the type itself.
unsafe trait Stored: Copy + Default {
    type Wide: Wide;
    /// Values are computed with where they lie; they need no conversion.
    const IS_WIDE: bool = true;

    /// The slices are of one length.
    fn widen(_stored: &[Self], _wide: &mut [Self::Wide]) {}
    fn narrow(_wide: &[Self::Wide], _stored: &mut [Self]) {}
}

// SAFETY: `Wide` is the type itself.
unsafe impl Stored for f32 {
    type Wide = Self;
}

// SAFETY: `Wide` is the type itself.
unsafe impl Stored for f64 {
    type Wide = Self;
}

// SAFETY: `IS_WIDE` is false.
unsafe impl Stored for f16 {
    type Wide = f32;
    const IS_WIDE: bool = false;

    /// By the processor's own instructions where it has them.
    fn widen(stored: &[Self], wide: &mut [f32]) {
        stored.convert_to_f32_slice(wide);
    }

    fn narrow(wide: &[f32], stored: &mut [Self]) {
        stored.convert_from_f32_slice(wide);
    }
}

// SAFETY: `IS_WIDE` is false.
unsafe impl Stored for bf16 {
    type Wide = f32;
    const IS_WIDE: bool = false;

    /// A loop that is vectorised, which `half`'s conversions of bfloat16 are not.
    fn widen(stored: &[Self], wide: &mut [f32]) {
        for (wide, stored) in wide.iter_mut().zip(stored) {
            *wide = f32::from_bits(u32::from(stored.to_bits()) << 16);
        }
    }

    /// Rounds to the nearest, ties to even; a NaN stays one.
    fn narrow(wide: &[f32], stored: &mut [Self]) {
        for (stored, wide) in stored.iter_mut().zip(wide) {
            let bits = wide.to_bits();
            // Adds just less than half of the last place that stays, or just half where that place is odd.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            let quiet = bits | 0x0040_0000;
            let kept = if wide.is_nan() { quiet } else { rounded };
            *stored = bf16::from_bits((kept >> 16) as u16);
        }
    }
}

#[cfg(test)]
mod tests;
