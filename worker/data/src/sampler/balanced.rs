//! As many samples of each class.

use std::sync::Arc;

use super::super::packed::Packed;
use super::super::rng::{Domain, keyed};
use super::deck::Deck;
use super::shuffled::Shuffled;
use super::shuffled::shuffle;
use super::{Inputs, Sampler};

/// Each class as often as every other, up to one; an epoch has as many places as there are samples. A class with fewer
/// samples than places begins again, in another order, so its samples are equally frequent up to one.
#[derive(Debug, Clone)]
pub struct Balanced {
    /// The class of each sample.
    pub classes: Packed<u32>,
}

/// The checks of a recipe exclude samples without classes; they are shuffled.
pub(super) fn new(inputs: Inputs) -> Arc<dyn Sampler> {
    match inputs.classes {
        Some(classes) => Arc::new(Balanced { classes }),
        None => Arc::new(Shuffled(inputs.samples)),
    }
}

impl Sampler for Balanced {
    fn places(&self) -> usize {
        self.classes.len()
    }

    fn has_repeats(&self) -> bool {
        true
    }

    /// Each run through all classes is shuffled, so every stretch of places is balanced.
    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut rng = keyed(Domain::Balanced, seed, epoch, 0);
        let by_class = by_class(&self.classes);
        let mut classes: Vec<usize> =
            (0..by_class.len()).filter(|&class| !by_class[class].is_empty()).collect();
        let mut decks: Vec<Deck> = by_class.into_iter().map(|samples| Deck::new(samples, &mut rng)).collect();
        let mut places = Vec::with_capacity(self.classes.len());
        while places.len() < self.classes.len() {
            shuffle(&mut classes, &mut rng);
            let taken = classes.iter().take(self.classes.len() - places.len());
            places.extend(taken.map(|&class| decks[class].draw(&mut rng)));
        }
        places
    }
}

/// Returns the samples of each class, in their order.
pub(super) fn by_class(classes: &[u32]) -> Vec<Vec<u32>> {
    let count = classes.iter().max().map_or(0, |&most| most as usize + 1);
    let mut of = vec![Vec::new(); count];
    for (sample, &class) in (0u32..).zip(classes) {
        of[class as usize].push(sample);
    }
    of
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn counts(values: impl Iterator<Item = u32>, kinds: usize) -> Vec<usize> {
        let mut counts = vec![0; kinds];
        values.for_each(|value| counts[value as usize] += 1);
        counts
    }

    fn is_level(counts: &[usize]) -> bool {
        let used = || counts.iter().filter(|&&count| count > 0);
        used().max().copied().unwrap_or(0) - used().min().copied().unwrap_or(0) <= 1
    }

    #[test]
    fn epochs_never_change() {
        let sampler = Balanced { classes: Packed::write([0, 0, 0, 0, 1, 2]).unwrap() };
        // Golden values of a second implementation.
        assert_eq!(sampler.epoch(1, 0), [4, 5, 3, 4, 0, 5]);
        assert_eq!(sampler.epoch(1, 1), [0, 4, 5, 4, 5, 1]);
    }

    proptest! {
        #[test]
        fn classes_and_their_samples_are_equally_frequent(
            classes in prop::collection::vec(0u32..5, 1..200), seed: u64, epoch: u64, step in 1usize..50,
        ) {
            let sampler = Balanced { classes: Packed::write(classes.clone()).unwrap() };
            let places = sampler.epoch(seed, epoch);
            prop_assert_eq!(places.len(), classes.len());
            let class = |&sample: &u32| classes[sample as usize];
            prop_assert!(is_level(&counts(places.iter().map(class), 5)));
            for one in 0..5 {
                let of_class = places.iter().copied().filter(|sample| class(sample) == one);
                prop_assert!(is_level(&counts(of_class, classes.len())));
            }
            // Each step is balanced up to the classes at its two ends.
            for step in places.chunks(step) {
                let of_step = counts(step.iter().map(class), 5);
                let found = (0..5).filter(|one| classes.contains(&(*one as u32))).map(|one| of_step[one]);
                let found: Vec<_> = found.collect();
                prop_assert!(found.iter().max().unwrap() - found.iter().min().unwrap() <= 2);
            }
        }
    }
}
