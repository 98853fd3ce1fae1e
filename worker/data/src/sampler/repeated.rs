//! Repeated augmentation: a part of the samples, each several times (Hoffer et al. 2020, arXiv 1901.09335).

use std::sync::Arc;

use super::shuffled::epoch_order;
use super::{Inputs, Sampler};

/// The first samples of a [shuffled](super::shuffled) epoch, each this often in a row; an epoch has as many places as there are
/// samples, so the last one may stand less often.
#[derive(Debug, Clone, Copy)]
pub struct Repeated {
    /// The number of samples.
    pub samples: usize,
    /// How often an epoch takes a sample; at least 1.
    pub copies: usize,
}

pub(super) fn new(inputs: Inputs) -> Arc<dyn Sampler> {
    Arc::new(Repeated { samples: inputs.samples, copies: inputs.copies.max(1) })
}

impl Sampler for Repeated {
    fn places(&self) -> usize {
        self.samples
    }

    fn has_repeats(&self) -> bool {
        true
    }

    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let chosen = epoch_order(self.samples, seed, epoch);
        chosen
            .into_iter()
            .flat_map(|sample| std::iter::repeat_n(sample, self.copies))
            .take(self.samples)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::Sampling;
    use super::*;

    #[test]
    fn epochs_never_change() {
        let repeated = Repeated { samples: 10, copies: 3 };
        // The shuffled epoch begins with 9, 4, 7, 5.
        assert_eq!(repeated.epoch(1, 0), [9, 9, 9, 4, 4, 4, 7, 7, 7, 5]);
    }

    proptest! {
        /// Each copy has its own random changes, and a step of whole copies has all of its samples.
        #[test]
        fn copies_stand_in_one_step_with_other_changes(
            samples in 1usize..300, copies in 1usize..6, whole in 1usize..9, seed: u64, epoch: u64,
        ) {
            let sampling = Sampling { sampler: Arc::new(Repeated { samples, copies }), ..Sampling::shuffled(0) };
            let places = sampling.epoch(seed, epoch);
            prop_assert_eq!(places.len(), samples);
            let chosen: BTreeSet<u32> = places.iter().map(|place| place.sample).collect();
            prop_assert_eq!(chosen.len(), samples.div_ceil(copies));
            for step in places.chunks(copies * whole) {
                for (at, place) in step.iter().enumerate() {
                    prop_assert_eq!(place.sample, step[at / copies * copies].sample);
                    prop_assert_eq!(place.repeat as usize, at % copies);
                }
            }
        }
    }
}
