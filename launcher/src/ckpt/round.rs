//! Converts floating-point types; rounds to nearest, ties to even, as PyTorch does.

use dtrain_common::safetensors_file::Dtype;
use half::{bf16, f16};

/// Converts `bytes`, little-endian numbers of type `from`, to `to` (F32, BF16 or F16) and appends them.
/// Returns the number of finite values that became infinite; `None` if `from` is no floating-point type.
pub(super) fn convert(from: Dtype, to: Dtype, bytes: &[u8], out: &mut Vec<u8>) -> Option<u64> {
    let mut overflows = 0;
    // Like PyTorch, converts float64 to float32 first.
    let mut push = |value: f32, was_finite: bool| {
        let infinite = match to {
            Dtype::BF16 => {
                let rounded = bf16::from_f32(value);
                out.extend(rounded.to_le_bytes());
                rounded.is_infinite()
            }
            Dtype::F16 => {
                let rounded = f16::from_f32(value);
                out.extend(rounded.to_le_bytes());
                rounded.is_infinite()
            }
            _ => {
                out.extend(value.to_le_bytes());
                value.is_infinite()
            }
        };
        overflows += u64::from(infinite && was_finite);
    };
    let mut exact = |value: f32| push(value, value.is_finite());
    match from {
        Dtype::F32 => chunks(bytes, |bytes| exact(f32::from_le_bytes(bytes))),
        Dtype::BF16 => chunks(bytes, |bytes| exact(bf16::from_le_bytes(bytes).to_f32())),
        Dtype::F16 => chunks(bytes, |bytes| exact(f16::from_le_bytes(bytes).to_f32())),
        Dtype::F64 => chunks(bytes, |bytes| {
            let value = f64::from_le_bytes(bytes);
            push(value as f32, value.is_finite());
        }),
        _ => return None,
    }
    Some(overflows)
}

fn chunks<const N: usize>(bytes: &[u8], each: impl FnMut([u8; N])) {
    bytes.as_chunks().0.iter().copied().for_each(each);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of_f64(to: Dtype, value: f64) -> (Vec<u8>, u64) {
        let mut out = Vec::new();
        let overflows = convert(Dtype::F64, to, &value.to_le_bytes(), &mut out).unwrap();
        (out, overflows)
    }

    #[test]
    fn finite_numbers_that_become_infinite_are_counted() {
        for (to, value, overflows) in [
            (Dtype::F16, 65504.0, 0),
            (Dtype::F16, 65520.0, 1),
            (Dtype::BF16, 65520.0, 0),
            (Dtype::BF16, f64::from(f32::MAX), 1),
            (Dtype::F32, 1e39, 1),
            (Dtype::F32, f64::NEG_INFINITY, 0),
            (Dtype::F16, f64::NAN, 0),
        ] {
            assert_eq!(of_f64(to, value).1, overflows, "{value} to {to:?}");
        }
    }

    #[test]
    fn halves_are_rounded_to_even() {
        for (value, bits) in
            [(1.0 + 2_f64.powi(-11), 0x3c00_u16), (1.0 + 3.0 * 2_f64.powi(-11), 0x3c02), (-0.0, 0x8000)]
        {
            assert_eq!(of_f64(Dtype::F16, value).0, bits.to_le_bytes(), "{value}");
        }
    }

    #[test]
    fn types_and_widths_are_kept_apart() {
        let mut out = Vec::new();
        assert_eq!(convert(Dtype::I64, Dtype::F32, &[0; 8], &mut out), None);
        assert_eq!(convert(Dtype::BF16, Dtype::F32, &[0x80, 0x3f, 7], &mut out), Some(0));
        assert_eq!(out, 1_f32.to_le_bytes());
    }
}
