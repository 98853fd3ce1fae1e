#![allow(clippy::unwrap_used)]

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

fn to16(to: Floats, from: Dtype, bytes: &[u8]) -> (u16, u64) {
    let mut out = Vec::new();
    let overflows = convert(from, to, bytes, &mut out).unwrap();
    (u16::from_le_bytes(out.try_into().unwrap()), overflows)
}

fn of_f32(value: f32) -> [(u16, u64); 2] {
    [Floats::Bf16, Floats::F16].map(|to| to16(to, Dtype::F32, &value.to_le_bytes()))
}

/// Every one of the 65,536 numbers of 16 bits is exact in float32, and comes back as it was.
#[test]
fn all_numbers_of_16_bits_are_widened_exactly() {
    for bits in 0..=u16::MAX {
        for (from, to, expected) in [
            (Dtype::Bf16, Floats::Bf16, bf16::from_bits(bits).to_f32()),
            (Dtype::F16, Floats::F16, f16::from_bits(bits).to_f32()),
        ] {
            let mut wide = Vec::new();
            assert_eq!(
                convert(from, Floats::F32, &bits.to_le_bytes(), &mut wide),
                Some(0)
            );
            let wide = f32::from_le_bytes(wide.try_into().unwrap());
            if expected.is_nan() {
                assert!(wide.is_nan());
                continue;
            }
            assert_eq!(wide.to_bits(), expected.to_bits(), "{from:?} {bits:#x}");
            assert_eq!(to16(to, Dtype::F32, &wide.to_le_bytes()), (bits, 0));
        }
    }
}

/// Against the crate half: around every number of 16 bits its neighbours in float32, and half way to the next.
#[test]
fn the_surroundings_of_all_numbers_of_16_bits_are_rounded_as_half_does() {
    let check = |value: f32| {
        let [(brain, _), (half, _)] = of_f32(value);
        if value.is_nan() {
            assert!(bf16::from_bits(brain).is_nan() && f16::from_bits(half).is_nan());
            assert_eq!(brain >> 15, half >> 15);
        } else {
            assert_eq!(brain, bf16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(half, f16::from_f32(value).to_bits(), "{value:e}");
        }
    };
    for bits in 0..=u16::MAX {
        for middle in [f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32()] {
            for half_way in [0, 0x1000, 0x8000] {
                for near in [-1_i32, 0, 1] {
                    let place = middle.to_bits().wrapping_add(half_way);
                    check(f32::from_bits(place.wrapping_add_signed(near)));
                }
            }
        }
    }
}

#[test]
fn what_becomes_infinite_is_counted() {
    let values = [65504.0_f32, 65519.0, 65520.0, -1e6, f32::INFINITY, f32::NAN, 0.0];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut out = Vec::new();
    assert_eq!(convert(Dtype::F32, Floats::F16, &bytes, &mut out), Some(2));
    assert_eq!(out.len(), 2 * values.len());
    assert_eq!(
        of_f32(f32::MAX)[0],
        (0x7f80, 1),
        "bfloat16 has less of a mantissa"
    );
    assert_eq!(
        convert(Dtype::F64, Floats::F32, &1e39_f64.to_le_bytes(), &mut out),
        Some(1)
    );
    assert_eq!(convert(Dtype::I64, Floats::F32, &[0; 8], &mut out), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_float32_is_rounded_as_half_does(bits: u32) {
        let value = f32::from_bits(bits);
        let [(brain, _), (half, _)] = of_f32(value);
        if value.is_nan() {
            prop_assert!(bf16::from_bits(brain).is_nan() && f16::from_bits(half).is_nan());
        } else {
            prop_assert_eq!(brain, bf16::from_f32(value).to_bits());
            prop_assert_eq!(half, f16::from_f32(value).to_bits());
        }
    }

    /// The crate half rounds float64 twice, so it is no judge here: no neighbour may be nearer, and halves go to even.
    #[test]
    fn any_float64_goes_to_the_nearest(exponent in -30_i32..18, fraction in 1.0_f64..2.0, cut in 0_u32..52, sign: bool) {
        // Few bits of the fraction make halves, which are what is easily wrong.
        let few = f64::from_bits(fraction.to_bits() >> cut << cut);
        let value = few * 2_f64.powi(exponent) * if sign { -1.0 } else { 1.0 };
        let (bits, overflows) = to16(Floats::F16, Dtype::F64, &value.to_le_bytes());
        if value.abs() >= 65520.0 {
            prop_assert_eq!((bits & 0x7fff, overflows), (0x7c00, 1));
            return Ok(());
        }
        let exact = |bits: u16| f64::from(f16::from_bits(bits).to_f32());
        let distance = (exact(bits) - value).abs();
        for neighbour in [bits.wrapping_sub(1), bits.wrapping_add(1)] {
            let other = (exact(neighbour) - value).abs();
            if exact(neighbour).is_finite() && neighbour & 0x7fff != 0x7fff {
                prop_assert!(distance <= other);
                prop_assert!(distance < other || bits & 1 == 0);
            }
        }
    }
}
