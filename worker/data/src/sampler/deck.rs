//! Samples that come again when all have come.

use super::super::rng::SampleRng;
use super::shuffled::shuffle;

/// Samples in a random order, which begins anew in another order after the last.
#[derive(Debug)]
pub(super) struct Deck {
    samples: Vec<u32>,
    drawn: usize,
}

impl Deck {
    pub(super) fn new(mut samples: Vec<u32>, rng: &mut SampleRng) -> Self {
        shuffle(&mut samples, rng);
        Self { samples, drawn: 0 }
    }

    /// Returns the next sample. Panics without samples.
    pub(super) fn draw(&mut self, rng: &mut SampleRng) -> u32 {
        if self.drawn == self.samples.len() {
            shuffle(&mut self.samples, rng);
            self.drawn = 0;
        }
        self.drawn += 1;
        self.samples[self.drawn - 1]
    }
}
