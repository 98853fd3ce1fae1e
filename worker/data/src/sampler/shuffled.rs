//! Each sample once, in a random order.

use std::sync::Arc;

use super::super::rng::{Domain, SampleRng, below, keyed};
use super::{Inputs, Sampler};

/// Each of this many samples once.
#[derive(Debug, Clone, Copy)]
pub struct Shuffled(pub usize);

pub(super) fn new(inputs: Inputs) -> Arc<dyn Sampler> {
    Arc::new(Shuffled(inputs.samples))
}

impl Sampler for Shuffled {
    fn places(&self) -> usize {
        self.0
    }

    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        epoch_order(self.0, seed, epoch)
    }
}

/// Returns the samples 0 to `len` - 1 in the order of one epoch of training. Takes about 10 ns a sample. Panics if `len` is
/// above 2^32 - 1.
pub fn epoch_order(len: usize, seed: u64, epoch: u64) -> Vec<u32> {
    // `len` must fit into u32: the draws use it as their bound.
    let len = u32::try_from(len).unwrap_or_else(|_| panic!("{len} samples are more than an order can hold"));
    let mut samples: Vec<u32> = (0..len).collect();
    shuffle(&mut samples, &mut keyed(Domain::Order, seed, epoch, 0));
    samples
}

/// Shuffles by Fisher and Yates, written out here so that it stays the same in every version: for i from the last place
/// down to 1 draws j in 0..=i (see [`below`]) and exchanges i and j.
pub(super) fn shuffle<T>(values: &mut [T], rng: &mut SampleRng) {
    for i in (1..values.len()).rev() {
        let j = below(rng, i as u32 + 1) as usize;
        values.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_order_never_changes() {
        // Golden values of a second implementation: a change here changes every user's run and every resume.
        assert_eq!(epoch_order(10, 1, 0), [9, 4, 7, 5, 8, 0, 2, 1, 3, 6]);
        assert_eq!(epoch_order(10, 1, 1), [9, 2, 1, 0, 7, 4, 3, 6, 5, 8]);
        assert_eq!(epoch_order(10, 2, 0), [9, 4, 8, 7, 2, 0, 1, 3, 6, 5]);
        let hash = |hash: u64, &sample: &u32| (hash ^ u64::from(sample)).wrapping_mul(0x0000_0100_0000_01b3);
        assert_eq!(epoch_order(100_000, 1, 0).iter().fold(0, hash), 0xe0ce_4c1e_b5f0_2d66);
    }

    #[test]
    fn crops_are_uniform() {
        // Sample 0 must come at each of 5 places about equally often.
        let mut counts = [0u32; 5];
        for epoch in 0..10_000 {
            let order = epoch_order(5, 3, epoch);
            counts[order.iter().position(|&s| s == 0).unwrap_or(usize::MAX)] += 1;
        }
        assert!(counts.iter().all(|&count| (1_850..2_150).contains(&count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn an_epoch_uses_each_sample_once(len in 0usize..3000, seed: u64, epoch: u64) {
            let mut order = epoch_order(len, seed, epoch);
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..len as u32));
        }
    }
}
