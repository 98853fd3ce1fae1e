#![allow(clippy::unwrap_used)]

use super::*;
use crate::Segment;
use proptest::prelude::*;

/// The regions of several ranks in one process.
struct Regions(Segment);

impl Regions {
    fn new<T: Copy>(values: &[Vec<T>]) -> Self {
        let bytes = size_of_val(values[0].as_slice());
        let (segment, _) = Segment::create(values.len(), bytes).unwrap();
        for (index, values) in values.iter().enumerate() {
            segment.reserve(index).unwrap();
            // SAFETY: the region has room for all values, and no other thread uses it.
            unsafe {
                segment
                    .region(index)
                    .cast::<T>()
                    .copy_from_nonoverlapping(NonNull::from(&values[0]), values.len());
            }
        }
        Self(segment)
    }

    fn all(&self) -> Vec<NonNull<u8>> {
        (0..self.0.regions()).map(|index| self.0.region(index)).collect()
    }

    fn read<T: Copy>(&self, index: usize) -> Vec<T> {
        let count = self.0.region_bytes() / size_of::<T>();
        let start = self.0.region(index).cast::<T>();
        // SAFETY: the region holds `count` values that this thread has written.
        (0..count).map(|at| unsafe { start.add(at).read() }).collect()
    }
}

fn reduce_all(regions: &Regions, part: Range<usize>, element: Element, reduction: Reduction) {
    let all = regions.all();
    // SAFETY: the part is inside the regions, which only this thread uses.
    unsafe { reduce(&all, &all, part, element, reduction) };
}

proptest! {
    #[test]
    fn values_are_summed_in_the_order_of_ranks(
        ranks in 1usize..6,
        count in 1usize..5000,
        from in 0usize..100,
        seed in any::<u64>(),
    ) {
        // Values of very different sizes, so that another order of additions rounds differently.
        let value = |rank: usize, index: usize| {
            let mixed = (seed ^ (rank * 7919 + index) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let scale = f32::from(((mixed >> 8) % 24) as u8) - 12.0;
            ((mixed >> 32) as f32 / 1e9 - 2.0) * scale.exp()
        };
        let from = from.min(count);
        let values: Vec<Vec<f32>> =
            (0..ranks).map(|rank| (0..count).map(|index| value(rank, index)).collect()).collect();
        let wanted = |index: usize| (1..ranks).fold(values[0][index], |sum, rank| sum + values[rank][index]);

        let regions = Regions::new(&values);
        reduce_all(&regions, from * 4..count * 4, Element::F32, Reduction::Sum);
        for (rank, own) in values.iter().enumerate() {
            let got: Vec<f32> = regions.read(rank);
            for index in 0..count {
                let wanted = if index < from { own[index] } else { wanted(index) };
                prop_assert_eq!(got[index].to_bits(), wanted.to_bits());
            }
        }

        let wide: Vec<Vec<f64>> =
            values.iter().map(|own| own.iter().map(|value| f64::from(*value) / 3.0).collect()).collect();
        let regions = Regions::new(&wide);
        reduce_all(&regions, 0..count * 8, Element::F64, Reduction::Sum);
        let got: Vec<f64> = regions.read(ranks - 1);
        for index in 0..count {
            let wanted = (1..ranks).fold(wide[0][index], |sum, rank| sum + wide[rank][index]);
            prop_assert_eq!(got[index].to_bits(), wanted.to_bits());
        }
    }

    #[test]
    fn halves_are_summed_in_binary32_and_rounded_once(
        ranks in 1usize..5,
        bits in prop::collection::vec(any::<u16>(), 1..3000),
    ) {
        let rotate = |rank: usize| bits.iter().map(move |bits| bits.rotate_left(3 * rank as u32));
        let (b, h): (Vec<Vec<bf16>>, Vec<Vec<f16>>) = (0..ranks)
            .map(|rank| (rotate(rank).map(bf16::from_bits).collect(), rotate(rank).map(f16::from_bits).collect()))
            .unzip();
        let regions = Regions::new(&b);
        reduce_all(&regions, 0..bits.len() * 2, Element::Bf16, Reduction::Sum);
        for (index, got) in regions.read::<bf16>(0).into_iter().enumerate() {
            let wanted = bf16::from_f32((1..ranks).fold(b[0][index].to_f32(), |sum, rank| sum + b[rank][index].to_f32()));
            prop_assert!(got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan());
        }
        let regions = Regions::new(&h);
        reduce_all(&regions, 0..bits.len() * 2, Element::F16, Reduction::Sum);
        for (index, got) in regions.read::<f16>(0).into_iter().enumerate() {
            let wanted = f16::from_f32((1..ranks).fold(h[0][index].to_f32(), |sum, rank| sum + h[rank][index].to_f32()));
            prop_assert!(got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan());
        }
    }
}

#[test]
fn minimum_and_maximum_keep_nan() {
    let values = [
        vec![1.0f32, -2.0, f32::NAN, 5.0, f32::INFINITY],
        vec![3.0, -4.0, 1.0, f32::NAN, 0.0],
        vec![2.0, -3.0, 2.0, 1.0, f32::NEG_INFINITY],
    ];
    for (reduction, wanted) in [
        (Reduction::Max, [3.0, -2.0, f32::NAN, f32::NAN, f32::INFINITY]),
        (Reduction::Min, [1.0, -4.0, f32::NAN, f32::NAN, f32::NEG_INFINITY]),
    ] {
        let regions = Regions::new(&values);
        reduce_all(&regions, 0..20, Element::F32, reduction);
        for rank in 0..3 {
            for (got, wanted) in regions.read::<f32>(rank).iter().zip(wanted) {
                assert!(*got == wanted || got.is_nan() && wanted.is_nan(), "{got} for {wanted}");
            }
        }
    }
}

#[test]
fn only_the_targets_are_written() {
    let values = [vec![1.0f64; 100], vec![2.0; 100]];
    let regions = Regions::new(&values);
    let all = regions.all();
    // SAFETY: the part is inside the regions, which only this thread uses.
    unsafe { reduce(&all, &all[1..], 80..160, Element::F64, Reduction::Sum) };
    assert_eq!(regions.read::<f64>(0), values[0]);
    let wanted: Vec<f64> = (0..100).map(|at| if (10..20).contains(&at) { 3.0 } else { 2.0 }).collect();
    assert_eq!(regions.read::<f64>(1), wanted);
    // SAFETY: as above.
    unsafe { copy(all[1], all[0], 0..96) };
    let wanted: Vec<f64> = (0..100)
        .map(|at| match at {
            10..12 => 3.0,
            0..10 => 2.0,
            _ => 1.0,
        })
        .collect();
    assert_eq!(regions.read::<f64>(0), wanted);
}
