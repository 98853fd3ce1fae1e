//! The arithmetic: for each block, the values of all ranks are read once, reduced in the order of ranks and
//! written to the targets while they are in the cache.
//!
//! Shared bytes are accessed by pointers, never by references: the accumulator is private memory.

use std::ops::{Add, Range};
use std::ptr::NonNull;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::queue::{Element, Reduction};

/// Values in the accumulator: 8 KiB in float32. With a block of each rank it fits into the L1 cache.
const BLOCK: usize = 2048;

/// Reduces the bytes `part` of all `sources` in order and writes the result to those bytes of all `targets`.
///
/// # Safety
/// `part` is aligned to `element` and inside every source and target, which are page-aligned. During the call
/// nobody else writes to these bytes of the sources, or accesses those of the targets.
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
            Element::F32 => reduce_as::<f32>(sources, targets, part, reduction),
            Element::F64 => reduce_as::<f64>(sources, targets, part, reduction),
            Element::F16 => reduce_as::<f16>(sources, targets, part, reduction),
            Element::Bf16 => reduce_as::<bf16>(sources, targets, part, reduction),
        }
    }
}

/// Copies the bytes `part` of `from` to the same bytes of `to`.
///
/// # Safety
/// `part` is inside both, and they do not overlap. During the call nobody else writes to these bytes of
/// `from`, or accesses those of `to`.
pub(crate) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, part: Range<usize>) {
    // SAFETY: as the caller promises.
    unsafe {
        from.add(part.start).copy_to_nonoverlapping(to.add(part.start), part.len());
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn reduce_as<T: ElementType>(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    reduction: Reduction,
) {
    let is_nan = |value: T::Accumulator| value.partial_cmp(&value).is_none();
    let min = |a, b| if b < a || is_nan(b) { b } else { a };
    let max = |a, b| if b > a || is_nan(b) { b } else { a };
    // SAFETY: as the caller promises.
    unsafe {
        match reduction {
            Reduction::Sum => reduce_blocks::<T>(sources, targets, part, |a, b| a + b),
            Reduction::Min => reduce_blocks::<T>(sources, targets, part, min),
            Reduction::Max => reduce_blocks::<T>(sources, targets, part, max),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn reduce_blocks<T: ElementType>(
    sources: &[NonNull<u8>],
    targets: &[NonNull<u8>],
    part: Range<usize>,
    combine: impl Fn(T::Accumulator, T::Accumulator) -> T::Accumulator + Copy,
) {
    // Private memory: the accumulator, and buffers to convert values to another width.
    let mut sum = [T::Accumulator::default(); BLOCK];
    let mut wide = [T::Accumulator::default(); BLOCK];
    let mut stored = [T::default(); BLOCK];
    let mut start = part.start;
    while start < part.end {
        let count = ((part.end - start) / size_of::<T>()).min(BLOCK);
        let (sum, wide, stored) = (&mut sum[..count], &mut wide[..count], &mut stored[..count]);
        // SAFETY: `count` values from `start` are inside `part` and aligned, and nobody else touches them, as
        // the caller promises. If `IS_ACCUMULATOR`, a `T` is a `T::Accumulator`.
        unsafe {
            for (rank, source) in sources.iter().enumerate() {
                let source = source.add(start);
                if T::IS_ACCUMULATOR && rank == 0 {
                    source
                        .cast()
                        .copy_to_nonoverlapping(NonNull::from(&mut *sum).cast::<T::Accumulator>(), count);
                } else if T::IS_ACCUMULATOR {
                    let source = source.cast::<T::Accumulator>();
                    for (index, value) in sum.iter_mut().enumerate() {
                        *value = combine(*value, source.add(index).read());
                    }
                } else {
                    source.cast().copy_to_nonoverlapping(NonNull::from(&mut *stored).cast::<T>(), count);
                    T::widen(stored, if rank == 0 { &mut *sum } else { &mut *wide });
                    if rank > 0 {
                        sum.iter_mut()
                            .zip(&*wide)
                            .for_each(|(value, other)| *value = combine(*value, *other));
                    }
                }
            }
            if !T::IS_ACCUMULATOR {
                T::narrow(sum, stored);
            }
            let result = if T::IS_ACCUMULATOR {
                NonNull::from(&*sum).cast()
            } else {
                NonNull::from(&*stored).cast::<T>()
            };
            for target in targets {
                target.add(start).cast().copy_from_nonoverlapping(result, count);
            }
        }
        start += count * size_of::<T>();
    }
}

/// The type in which a reduction is computed.
trait Accumulator: Copy + Default + PartialOrd + Add<Output = Self> {}
impl Accumulator for f32 {}
impl Accumulator for f64 {}

/// A type of values in memory.
///
/// # Safety
/// If `IS_ACCUMULATOR` is true, `Accumulator` is `Self`.
unsafe trait ElementType: Copy + Default {
    type Accumulator: Accumulator;
    /// Whether values are reduced without conversion.
    const IS_ACCUMULATOR: bool = true;

    /// Converts values. Both slices have the same length.
    fn widen(_stored: &[Self], _wide: &mut [Self::Accumulator]) {}
    fn narrow(_wide: &[Self::Accumulator], _stored: &mut [Self]) {}
}

// SAFETY: `Accumulator` is the type itself.
unsafe impl ElementType for f32 {
    type Accumulator = Self;
}

// SAFETY: `Accumulator` is the type itself.
unsafe impl ElementType for f64 {
    type Accumulator = Self;
}

// SAFETY: `IS_ACCUMULATOR` is false.
unsafe impl ElementType for f16 {
    type Accumulator = f32;
    const IS_ACCUMULATOR: bool = false;

    /// Uses the processor's conversion instructions if it has them.
    fn widen(stored: &[Self], wide: &mut [f32]) {
        stored.convert_to_f32_slice(wide);
    }

    fn narrow(wide: &[f32], stored: &mut [Self]) {
        stored.convert_from_f32_slice(wide);
    }
}

// SAFETY: `IS_ACCUMULATOR` is false.
unsafe impl ElementType for bf16 {
    type Accumulator = f32;
    const IS_ACCUMULATOR: bool = false;

    /// This loop is vectorised; the bfloat16 conversions of `half` are not.
    fn widen(stored: &[Self], wide: &mut [f32]) {
        for (wide, stored) in wide.iter_mut().zip(stored) {
            *wide = f32::from_bits(u32::from(stored.to_bits()) << 16);
        }
    }

    /// Rounds to nearest, ties to even; a NaN stays a NaN.
    fn narrow(wide: &[f32], stored: &mut [Self]) {
        for (stored, wide) in stored.iter_mut().zip(wide) {
            let bits = wide.to_bits();
            // Adds just less than half of the last kept bit, or exactly half if that bit is odd.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            let quiet = bits | 0x0040_0000;
            let kept = if wide.is_nan() { quiet } else { rounded };
            *stored = bf16::from_bits((kept >> 16) as u16);
        }
    }
}

#[cfg(test)]
mod tests;
