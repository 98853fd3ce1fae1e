//! From one type of floating-point numbers to another, rounded to the nearest and halves to even, as PyTorch does.

use super::Dtype;

/// The types of floating-point numbers that values are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floats {
    /// float32
    F32,
    /// bfloat16
    Bf16,
    /// float16
    F16,
}

impl Floats {
    /// The type.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
            Self::F16 => Dtype::F16,
        }
    }

    /// Appends one number, little-endian. Whether a finite one has become infinite.
    fn push(self, value: f64, out: &mut Vec<u8>) -> bool {
        let overflow = |infinite| infinite && value.is_finite();
        match self {
            Self::F32 => {
                let rounded = value as f32;
                out.extend(rounded.to_le_bytes());
                overflow(rounded.is_infinite())
            }
            Self::Bf16 => {
                let bits = narrow::<8, 7>(value);
                out.extend(bits.to_le_bytes());
                overflow(bits & 0x7fff == 0x7f80)
            }
            Self::F16 => {
                let bits = narrow::<5, 10>(value);
                out.extend(bits.to_le_bytes());
                overflow(bits & 0x7fff == 0x7c00)
            }
        }
    }
}

/// Appends the numbers of `bytes`, which are little-endian and of the type `from`, in the type `to`. Returns how many finite ones
/// are infinite in it, or none where `from` is no type of floating-point numbers. NaN stays NaN, with its sign. Bytes at the end that
/// are no whole number are left out.
pub fn convert(from: Dtype, to: Floats, bytes: &[u8], out: &mut Vec<u8>) -> Option<u64> {
    let mut overflows = 0;
    // Every one of these types is exact in float64, so there is one rounding.
    let mut push = |value: f64| overflows += u64::from(to.push(value, out));
    match from {
        Dtype::F32 => chunks(bytes, |bytes| push(f64::from(f32::from_le_bytes(bytes)))),
        Dtype::F64 => chunks(bytes, |bytes| push(f64::from_le_bytes(bytes))),
        Dtype::Bf16 => chunks(bytes, |bytes| push(widen::<8, 7>(u16::from_le_bytes(bytes)))),
        Dtype::F16 => chunks(bytes, |bytes| push(widen::<5, 10>(u16::from_le_bytes(bytes)))),
        _ => return None,
    }
    Some(overflows)
}

fn chunks<const N: usize>(bytes: &[u8], each: impl FnMut([u8; N])) {
    bytes.as_chunks().0.iter().copied().for_each(each);
}

/// The exponent of 1 as float64 stores it.
const BIAS: i32 = 1023;
/// The bits of float64 after the point.
const MANTISSA: u32 = 52;

/// The nearest 16-bit number with these bits of exponent and of mantissa.
fn narrow<const EXPONENT: u32, const KEPT: u32>(value: f64) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 63) as u16) << 15;
    let most = (1_u64 << EXPONENT) - 1;
    let infinity = most << KEPT;
    if value.is_nan() {
        // A quiet one, whatever its payload was.
        return sign | (infinity | 1 << (KEPT - 1)) as u16;
    }
    let bias = (1 << (EXPONENT - 1)) - 1;
    let exponent = (bits >> MANTISSA & 0x7ff) as i32 - BIAS + bias;
    let mantissa = bits & ((1 << MANTISSA) - 1);
    if exponent >= most as i32 {
        return sign | infinity as u16;
    }
    // A normal number: exponent and mantissa in one, so that rounding up carries from the one into the other, at last to
    // infinity. Below them the leading 1 is shifted into the mantissa; more than all of it is zero.
    let (whole, dropped) = if exponent > 0 {
        ((exponent as u64) << MANTISSA | mantissa, MANTISSA - KEPT)
    } else {
        let dropped = MANTISSA - KEPT + 1 + exponent.unsigned_abs();
        if dropped > 63 {
            return sign;
        }
        (1 << MANTISSA | mantissa, dropped)
    };
    let (kept, rest, half) = (
        whole >> dropped,
        whole & ((1 << dropped) - 1),
        1_u64 << (dropped - 1),
    );
    let up = rest > half || rest == half && kept & 1 == 1;
    sign | (kept + u64::from(up)) as u16
}

/// A 16-bit number with these bits of exponent and of mantissa, exactly.
fn widen<const EXPONENT: u32, const KEPT: u32>(bits: u16) -> f64 {
    let most = (1 << EXPONENT) - 1;
    let exponent = i32::from(bits >> KEPT) & most;
    let mantissa = u64::from(bits) & ((1 << KEPT) - 1);
    let bias = (1 << (EXPONENT - 1)) - 1;
    let magnitude = if exponent == most {
        f64::from_bits(0x7ff << MANTISSA | mantissa << (MANTISSA - KEPT))
    } else if exponent == 0 {
        mantissa as f64 * 2_f64.powi(1 - bias - KEPT as i32)
    } else {
        f64::from_bits(((exponent - bias + BIAS) as u64) << MANTISSA | mantissa << (MANTISSA - KEPT))
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests;
