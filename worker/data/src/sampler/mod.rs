//! Which sample stands at which place of an epoch: functions of the seed and the epoch alone.
//!
//! A step takes the next places of its epoch, as many as the effective batch. No rank, micro-batch or thread enters, so the
//! samples of a step are the same under every partition.

// A new file needs no line here.
automod::dir!(pub "src/sampler");

use std::fmt;
use std::sync::Arc;

use dtrain_recipe::{Sampler as Word, each_sampler};

use self::fixed::Fixed;
use self::shuffled::Shuffled;
use super::mixing::{Blend, Mixing};
use super::packed::Packed;

/// An order of the samples of a training set.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// Returns the number of places of an epoch.
    fn places(&self) -> usize;

    /// Returns how many members a place has.
    fn width(&self) -> usize {
        1
    }

    /// Returns the samples at all places of an epoch; those of one place follow each other.
    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32>;

    /// Returns whether a sample may stand several times in an epoch.
    fn has_repeats(&self) -> bool {
        false
    }
}

/// The facts that an order is made of.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The number of samples.
    pub samples: usize,
    /// The class of each, if the samples have classes.
    pub classes: Option<Packed<u32>>,
    /// The length of each, if the samples are documents.
    pub lengths: Vec<u32>,
    /// The samples of a step.
    pub step: usize,
    /// How often an epoch takes a sample, if several times.
    pub copies: usize,
}

/// Makes the order of a recipe's word.
pub fn named(word: Word, inputs: Inputs) -> Arc<dyn Sampler> {
    each_sampler!(word, order => order::new(inputs))
}

/// A sample at a place of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number in the data set.
    pub sample: u32,
    /// How often it stands earlier in the epoch: each time it has other random changes.
    pub repeat: u32,
}

impl Place {
    /// Returns the first place of a sample.
    pub fn first(sample: u32) -> Self {
        Self { sample, repeat: 0 }
    }
}

/// How the steps of a training are filled.
#[derive(Debug, Clone)]
pub struct Sampling {
    pub sampler: Arc<dyn Sampler>,
    /// Whether each sample has a partner in its step. Only for samplers of width 1.
    pub has_partners: bool,
    /// How the samples are mixed with their partners.
    pub mixing: Option<Arc<Mixing>>,
}

impl Sampling {
    /// Takes each of this many samples once in an epoch, without partners.
    pub fn shuffled(samples: usize) -> Self {
        Self { sampler: Arc::new(Shuffled(samples)), has_partners: false, mixing: None }
    }

    /// Returns an order of the first places of the first epoch, the same in every epoch, whose samples are not mixed.
    pub fn fixed(&self, places: usize) -> Self {
        let sampler = Arc::new(Fixed { of: Arc::clone(&self.sampler), places });
        Self { sampler, has_partners: self.has_partners && self.mixing.is_none(), mixing: None }
    }

    /// Returns the number of members at each place of a step.
    pub fn width(&self) -> usize {
        self.sampler.width() * if self.has_partners { 2 } else { 1 }
    }

    /// Returns the places of an epoch, each with as many as the sampler's width.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Vec<Place> {
        let samples = self.sampler.epoch(seed, epoch);
        if !self.sampler.has_repeats() {
            return samples.into_iter().map(Place::first).collect();
        }
        let mut counts = vec![0; samples.iter().max().map_or(0, |&most| most as usize + 1)];
        let mut place = |sample| {
            let count: &mut u32 = &mut counts[sample as usize];
            *count += 1;
            Place { sample, repeat: *count - 1 }
        };
        samples.into_iter().map(&mut place).collect()
    }

    /// Returns how each of the samples of a step is mixed; empty if none is. Steps count over the run.
    pub fn blends(&self, count: usize, seed: u64, step: u64) -> Vec<Option<Blend>> {
        self.mixing.as_ref().map_or(Vec::new(), |mixing| mixing.step(count, seed, step))
    }

    /// Returns the members of a step that stands at `first` to `first` + `count` in an epoch, [`Sampling::width`] for each
    /// place. Steps count over the run.
    pub fn step(&self, epoch: &[Place], first: usize, count: usize, seed: u64, step: u64) -> Vec<Place> {
        let width = self.sampler.width();
        let places = &epoch[first * width..(first + count) * width];
        if !self.has_partners {
            return places.to_vec();
        }
        let samples: Vec<_> = places.iter().map(|place| place.sample).collect();
        let partners = pairs::partners(&samples, seed, step);
        places.iter().zip(partners).flat_map(|(own, partner)| [*own, places[partner as usize]]).collect()
    }
}
