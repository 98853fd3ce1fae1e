//! Which sample stands at which place of an epoch: functions of the seed and the epoch alone.
//!
//! A step takes the next places of its epoch, as many as the effective batch. No rank, micro-batch or thread enters, so the
//! samples of a step are the same under every partition.

pub mod balanced;
pub mod pairs;
pub mod shuffled;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use shuffled::Shuffled;

/// An order of the samples of a training set.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// Returns the number of places of an epoch.
    fn places(&self) -> usize;

    /// Returns the sample at each place of an epoch.
    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32>;

    /// Returns whether a sample may stand at several places of an epoch.
    fn has_repeats(&self) -> bool {
        false
    }
}

/// A sample at a place of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number in the data set.
    pub sample: u32,
    /// At how many earlier places of the epoch it stands: each time it has other random changes.
    pub repeat: u32,
}

/// How the steps of a training are filled.
#[derive(Debug, Clone)]
pub struct Sampling {
    pub sampler: Arc<dyn Sampler>,
    /// Whether each sample has a partner in its step.
    pub has_partners: bool,
}

impl Sampling {
    /// Takes each of this many samples once in an epoch, without partners.
    pub fn shuffled(samples: usize) -> Self {
        Self { sampler: Arc::new(Shuffled(samples)), has_partners: false }
    }

    /// Returns the places of an epoch.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Vec<Place> {
        let samples = self.sampler.epoch(seed, epoch);
        if !self.sampler.has_repeats() {
            return samples.into_iter().map(|sample| Place { sample, repeat: 0 }).collect();
        }
        let mut counts = HashMap::new();
        let mut place = |sample| {
            let count = counts.entry(sample).or_insert(0);
            *count += 1;
            Place { sample, repeat: *count - 1 }
        };
        samples.into_iter().map(&mut place).collect()
    }

    /// Returns the partner of each of a step's places; empty without partners. Steps count over the run.
    pub fn partners(&self, places: &[Place], seed: u64, step: u64) -> Vec<Place> {
        match self.has_partners {
            true => {
                let samples: Vec<_> = places.iter().map(|place| place.sample).collect();
                let partners = pairs::partners(&samples, seed, step);
                partners.into_iter().map(|partner| places[partner as usize]).collect()
            }
            false => Vec::new(),
        }
    }
}
