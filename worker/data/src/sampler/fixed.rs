//! The first places of another order's first epoch, in every epoch.

use std::sync::Arc;

use super::Sampler;

/// An order that repeats the first `places` places of the first epoch of another one.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) of: Arc<dyn Sampler>,
    pub(super) places: usize,
}

impl Sampler for Fixed {
    fn places(&self) -> usize {
        self.places.min(self.of.places())
    }

    fn width(&self) -> usize {
        self.of.width()
    }

    fn epoch(&self, seed: u64, _: u64) -> Vec<u32> {
        let mut samples = self.of.epoch(seed, 0);
        samples.truncate(self.places() * self.width());
        samples
    }

    fn has_repeats(&self) -> bool {
        self.of.has_repeats()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sampling;

    #[test]
    fn every_epoch_has_the_first_samples_of_the_first() {
        let (whole, fixed) = (Sampling::shuffled(100), Sampling::shuffled(100).fixed(4));
        assert_eq!(fixed.sampler.places(), 4);
        for epoch in [0, 1, 9] {
            assert_eq!(fixed.epoch(7, epoch), whole.epoch(7, 0)[..4]);
        }
        assert_ne!(fixed.epoch(8, 0), fixed.epoch(7, 0));
        assert_eq!(Sampling::shuffled(3).fixed(4).sampler.places(), 3);
    }
}
