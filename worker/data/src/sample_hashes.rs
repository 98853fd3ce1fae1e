//! Hashes of loaded samples: they show at which step two runs differ in their samples, and in which field.
//!
//! The hashes of a step are sums over its samples, so no rank, micro-batch or thread enters.

use super::dataset::{Column, Dataset};
use super::raster::Values;
use super::sampler::Place;

/// Hashes of the samples of a batch, or of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampleHashes {
    /// Of the numbers of all samples of the step, in their order; the same in each of its micro-batches.
    pub order: Option<u64>,
    /// By field, of the values with the numbers of their samples.
    pub fields: Vec<u64>,
    /// First of all samples, then by bit of a sample's number, of the samples that have it. They show the number of the sample that
    /// differs between two runs, if one differs.
    pub numbers: Vec<u32>,
}

impl SampleHashes {
    /// Returns the hashes of no samples of `dataset`.
    pub fn none_of(dataset: &dyn Dataset) -> Self {
        let most = dataset.len().max(dataset.count_singles()).saturating_sub(1);
        let bits = (usize::BITS - most.leading_zeros()).clamp(1, u32::BITS) as usize;
        Self { order: None, fields: vec![0; dataset.fields().len()], numbers: vec![0; 1 + bits] }
    }

    /// Returns the hash of samples in their order.
    pub fn order_of(places: &[Place]) -> u64 {
        let keys: Vec<u64> = places.iter().map(|place| key(*place)).collect();
        of_bytes(0, bytemuck::cast_slice(&keys))
    }

    /// Adds a sample: its members' places, and the values of its fields.
    pub(super) fn add_sample(&mut self, places: &[Place], columns: &[Column]) {
        let Some(first) = places.first() else { return };
        let seed = Self::order_of(places);
        let mut all = 0u64;
        for (sum, column) in self.fields.iter_mut().zip(columns) {
            let hash = of_column(seed, column);
            *sum = sum.wrapping_add(hash);
            all = mix(all ^ hash);
        }
        let is_in = |at: usize| at == 0 || first.sample >> (at - 1) & 1 == 1;
        for (_, sum) in self.numbers.iter_mut().enumerate().filter(|(at, _)| is_in(*at)) {
            *sum = sum.wrapping_add(all as u32);
        }
    }

    /// Adds the samples of another micro-batch of the step.
    pub fn add(&mut self, other: &Self) {
        self.order = self.order.or(other.order);
        self.fields.iter_mut().zip(&other.fields).for_each(|(sum, own)| *sum = sum.wrapping_add(*own));
        self.numbers.iter_mut().zip(&other.numbers).for_each(|(sum, own)| *sum = sum.wrapping_add(*own));
    }

    /// Returns the sums as numbers that float64 adds exactly over up to 2^21 ranks.
    pub fn to_figures(&self) -> Vec<f64> {
        let halves = self.fields.iter().flat_map(|sum| [sum >> 32, sum & u64::from(u32::MAX)]);
        halves.map(|half| half as f64).chain(self.numbers.iter().map(|sum| f64::from(*sum))).collect()
    }

    /// Takes the sums of figures over all ranks, of hashes with as many fields and numbers as these.
    pub fn take_figures(&mut self, figures: &[f64]) {
        let (halves, numbers) = figures.split_at(figures.len().min(2 * self.fields.len()));
        for (sum, half) in self.fields.iter_mut().zip(halves.chunks_exact(2)) {
            *sum = ((half[0] as u64) << 32).wrapping_add(half[1] as u64);
        }
        self.numbers.iter_mut().zip(numbers).for_each(|(sum, figure)| *sum = *figure as u64 as u32);
    }
}

fn key(Place { sample, repeat }: Place) -> u64 {
    u64::from(repeat) << u32::BITS | u64::from(sample)
}

fn of_column(seed: u64, column: &Column) -> u64 {
    match column {
        Column::F32(values) => of_bytes(seed, bytemuck::cast_slice(values)),
        Column::I64(values) => of_bytes(seed, bytemuck::cast_slice(values)),
        Column::Pixels(pixels) => match pixels.values() {
            Values::U8(values) => of_bytes(seed, values),
            Values::F32(values) => of_bytes(seed, bytemuck::cast_slice(values)),
        },
    }
}

/// Hashes bytes in four lanes, so that the processor need not wait for each product. A lane is a one-to-one function of each of its
/// words: one changed word always changes the hash.
fn of_bytes(seed: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [seed, !seed, seed.rotate_left(16), !seed.rotate_left(16)];
    let mut add = |block: &[u8; 32]| {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29);
        }
    };
    let (blocks, rest) = bytes.as_chunks::<32>();
    blocks.iter().for_each(&mut add);
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    lanes.into_iter().fold(mix(bytes.len() as u64), |hash, lane| mix(hash ^ lane))
}

/// Spreads each bit over all; one-to-one (Stafford's variant 13, as in SplitMix64).
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generated, Split};

    fn hashes(samples: &[(u32, f32, i64)]) -> SampleHashes {
        let mut sums = SampleHashes { order: None, fields: vec![0; 2], numbers: vec![0; 6] };
        for &(number, image, label) in samples {
            let columns = [Column::F32(vec![image; 9]), Column::I64(vec![label])];
            sums.add_sample(&[Place::first(number)], &columns);
        }
        sums
    }

    #[test]
    fn sums_depend_on_samples_and_not_on_their_partition() {
        let samples = [(3, 1.0, 0), (17, 2.0, 1), (4, 3.0, 0), (30, 4.0, 1)];
        let whole = hashes(&samples);
        for parts in [[&samples[..1], &samples[1..]], [&samples[2..], &samples[..2]], [&samples[..], &[]]] {
            let [mut sum, other] = parts.map(hashes);
            sum.add(&other);
            assert_eq!(sum, whole);
            // Over ranks, as figures.
            let [one, other] = parts.map(|part| hashes(part).to_figures());
            let figures: Vec<f64> = one.iter().zip(&other).map(|(a, b)| a + b).collect();
            let mut sum = hashes(&[]);
            sum.take_figures(&figures);
            assert_eq!(sum, whole);
        }
    }

    #[test]
    fn each_change_shows_in_its_field_and_number() {
        let samples = [(3, 1.0, 0), (17, 2.0, 1), (4, 3.0, 0)];
        let (whole, change) = (hashes(&samples), |at: usize, sample| {
            let mut changed = samples;
            changed[at] = sample;
            hashes(&changed)
        });
        let differing = |other: &SampleHashes| -> (Vec<bool>, Vec<bool>) {
            let fields = whole.fields.iter().zip(&other.fields).map(|(a, b)| a != b).collect();
            (fields, whole.numbers.iter().zip(&other.numbers).map(|(a, b)| a != b).collect())
        };
        let bits = |number: u32| (0..6).map(|at| at == 0 || number >> (at - 1) & 1 == 1).collect::<Vec<_>>();
        assert_eq!(
            differing(&change(1, (17, f32::from_bits(2.0f32.to_bits() ^ 1), 1))),
            (vec![true, false], bits(17))
        );
        assert_eq!(differing(&change(2, (4, 3.0, 1))), (vec![false, true], bits(4)));
        // Labels of two samples are exchanged.
        let swapped = hashes(&[(3, 1.0, 1), (17, 2.0, 0), (4, 3.0, 0)]);
        assert_eq!(differing(&swapped).0, [false, true]);
    }

    #[test]
    fn an_order_is_that_of_the_places() {
        let order = |samples: &[u32]| {
            SampleHashes::order_of(&samples.iter().map(|&sample| Place::first(sample)).collect::<Vec<_>>())
        };
        assert_ne!(order(&[1, 2]), order(&[2, 1]));
        assert_ne!(order(&[1]), order(&[1, 0]));
        assert_ne!(order(&[5]), SampleHashes::order_of(&[Place { sample: 5, repeat: 1 }]));
        assert_eq!(order(&[1, 2, 3, 4, 5]), order(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn every_byte_counts() {
        let bytes: Vec<u8> = (0..75).collect();
        let whole = of_bytes(1, &bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_ne!(of_bytes(1, &changed), whole, "bit {bit} of byte {at}");
            }
        }
        assert_ne!(of_bytes(1, &bytes[..74]), whole);
    }

    #[test]
    fn the_numbers_of_a_set_have_room() {
        let bits = |samples| {
            SampleHashes::none_of(&Generated::new(2, samples, 8, 1, Split::Train)).numbers.len() - 1
        };
        assert_eq!([1, 2, 3, 4, 5, 1024, 1025].map(bits), [1, 1, 2, 2, 3, 10, 11]);
    }
}
