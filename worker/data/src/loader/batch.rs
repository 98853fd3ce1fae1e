//! Requests to the loader, and loaded batches.

use std::sync::Arc;

use super::super::dataset::{Column, Field};
use super::super::error::BadSample;
use super::super::sampler::Place;

/// A request: samples of one epoch, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MicroBatch {
    /// The epoch, which decides the samples' augmentation.
    pub epoch: u64,
    /// The samples; may be empty.
    pub places: Vec<Place>,
    /// The partner of each sample; empty if the data set has no pairs.
    pub partners: Vec<Place>,
}

impl MicroBatch {
    /// Requests these samples, each as if it stood once in the epoch, without partners.
    pub fn of(epoch: u64, indices: impl IntoIterator<Item = u32>) -> Self {
        let place = |sample| Place { sample, repeat: 0 };
        Self { epoch, places: indices.into_iter().map(place).collect(), partners: Vec::new() }
    }
}

/// A loaded micro-batch of n samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub fields: Arc<[Field]>,
    /// The values of the n samples by field; for a sample that could not be loaded, those of another sample.
    pub columns: Vec<Column>,
    /// n weights: 1, or 0 for a sample that could not be loaded or whose partner could not.
    pub weights: Vec<f32>,
    /// n numbers of samples, as requested.
    pub indices: Vec<u32>,
    /// The places whose samples could not be loaded, in their order.
    pub bad: Vec<BadPlace>,
}

/// A place of a batch without its sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPlace {
    pub place: usize,
    /// The sample or partner that could not be loaded.
    pub sample: BadSample,
}

impl Batch {
    /// Returns the samples that could not be loaded: place in the batch, and number.
    pub fn unreadable(&self) -> impl Iterator<Item = (usize, u32)> {
        self.bad.iter().map(|bad| (bad.place, bad.sample.index as u32))
    }

    /// Returns the values of the field `name`.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.get(self.fields.iter().position(|field| field.name == name)?)
    }
}

/// Options of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Threads; at least one is started.
    pub threads: usize,
    /// Most batches loaded or loading ahead of the consumer; at least one. This bounds the memory.
    pub prefetch_batches: usize,
    /// Seed of the augmentation.
    pub seed: u64,
    /// Whether samples are loaded with random choices, as in training.
    pub augment: bool,
}
