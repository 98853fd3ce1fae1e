//! Steps of samples with similar lengths, which need little padding.

use std::sync::Arc;

use super::super::rng::{Domain, below, keyed};
use super::shuffled::shuffle;
use super::{Inputs, Sampler};

/// The steps whose samples are sorted together. More steps have less padding, and fewer have more random ones.
const POOL_STEPS: usize = 50;

/// Each sample once; the samples of a step have similar lengths.
///
/// The samples are shuffled by the generator keyed by ([`Domain::Buckets`], seed, epoch, 0) and divided into pools of 50
/// steps. Each pool is sorted by length (stable) and cut into steps. If the epoch ends with an incomplete step, the generator
/// draws where the last pool's order has it: before, between or after its whole steps. So it has samples of any length.
/// Finally the whole steps are shuffled, and the incomplete one stays last.
#[derive(Debug, Clone)]
pub struct Buckets {
    /// The length of each sample.
    pub lengths: Arc<[u32]>,
    /// The samples of a step, at least 1.
    pub step: usize,
}

pub(super) fn new(inputs: Inputs) -> Arc<dyn Sampler> {
    Arc::new(Buckets { lengths: inputs.lengths.into(), step: inputs.step })
}

impl Sampler for Buckets {
    fn places(&self) -> usize {
        self.lengths.len()
    }

    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut rng = keyed(Domain::Buckets, seed, epoch, 0);
        let mut samples: Vec<u32> = (0u32..).take(self.places()).collect();
        shuffle(&mut samples, &mut rng);
        for pool in samples.chunks_mut(POOL_STEPS * self.step) {
            pool.sort_by_key(|&sample| self.lengths[sample as usize]);
            let (steps, rest) = (pool.len() / self.step, pool.len() % self.step);
            if rest > 0 {
                let before = below(&mut rng, steps as u32 + 1) as usize;
                pool[before * self.step..].rotate_left(rest);
            }
        }
        let steps = samples.chunks_exact(self.step);
        let last = steps.remainder();
        let mut steps: Vec<_> = steps.collect();
        shuffle(&mut steps, &mut rng);
        steps.push(last);
        steps.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buckets(lengths: &[u32], step: usize) -> Buckets {
        Buckets { lengths: lengths.into(), step }
    }

    fn spread(samples: &[u32], lengths: &[u32]) -> u32 {
        let of = || samples.iter().map(|&sample| lengths[sample as usize]);
        of().max().unwrap_or(0) - of().min().unwrap_or(0)
    }

    #[test]
    fn epochs_never_change() {
        // Golden values of a second implementation.
        let sampler = buckets(&[5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 3);
        assert_eq!(sampler.epoch(1, 0), [8, 0, 10, 3, 1, 6, 4, 7, 5, 9, 2]);
        assert_eq!(sampler.epoch(1, 1), [9, 2, 0, 10, 4, 8, 3, 1, 6, 7, 5]);
        let lengths: Vec<u32> =
            (0..10_007u32).map(|sample| sample.wrapping_mul(2_654_435_761) >> 20).collect();
        let hash = |hash: u64, &sample: &u32| (hash ^ u64::from(sample)).wrapping_mul(0x0000_0100_0000_01b3);
        assert_eq!(buckets(&lengths, 16).epoch(7, 3).iter().fold(0, hash), 0xdd38_fd6c_5bc5_4973);
    }

    #[test]
    fn whole_steps_stand_anywhere_in_an_epoch() {
        let lengths: Vec<u32> = (0..40).collect();
        let mut firsts = [0; 4];
        for epoch in 0..4000 {
            firsts[buckets(&lengths, 10).epoch(1, epoch)[0] as usize / 10] += 1;
        }
        assert!(firsts.iter().all(|first| (850..1150).contains(first)), "{firsts:?}");
    }

    #[test]
    fn every_length_is_as_often_in_the_incomplete_step() {
        let lengths: Vec<u32> = (0..35).collect();
        let mut last = [0; 4];
        for epoch in 0..4000 {
            let order = buckets(&lengths, 10).epoch(1, epoch);
            assert_eq!(spread(&order[30..], &lengths), 4, "neighbours by length");
            last[order[30..].iter().min().map_or(0, |&least| least as usize / 10)] += 1;
        }
        assert!(last.iter().all(|last| (850..1150).contains(last)), "{last:?}");
    }

    proptest! {
        #[test]
        fn each_sample_stands_once(lengths in prop::collection::vec(0u32..50, 0..700), step in 1usize..9, seed: u64, epoch: u64) {
            let mut order = buckets(&lengths, step).epoch(seed, epoch);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..lengths.len() as u32));
        }

        /// Within a pool, no step has a wider range of lengths than cutting the sorted samples allows.
        #[test]
        fn steps_are_as_narrow_as_the_sorted_order_s(
            lengths in prop::collection::vec(0u32..1000, 0..400), step in 8usize..20, seed: u64, epoch: u64,
        ) {
            let order = buckets(&lengths, step).epoch(seed, epoch);
            let spreads = |steps: std::slice::Chunks<'_, u32>| {
                let mut all: Vec<u32> = steps.map(|step| spread(step, &lengths)).collect();
                all.sort_unstable();
                all
            };
            let mut sorted: Vec<u32> = (0..lengths.len() as u32).collect();
            sorted.sort_by_key(|&sample| lengths[sample as usize]);
            let widest = |spreads: &[u32]| spreads.iter().sum::<u32>();
            // All samples are one pool. Its steps are neighbours in the sorted order, so together they span no more than it.
            prop_assert!(widest(&spreads(order.chunks(step))) <= spread(&sorted, &lengths));
            if lengths.len().is_multiple_of(step) {
                prop_assert_eq!(spreads(order.chunks(step)), spreads(sorted.chunks(step)));
            }
        }
    }
}
