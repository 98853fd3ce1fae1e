//! Requests to the loader, and loaded batches.

use std::sync::Arc;

use super::super::dataset::{Column, Field};
use super::super::error::BadSample;

/// A request: samples of one epoch, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// The epoch, which decides the samples' augmentation.
    pub epoch: u64,
    /// Numbers of samples in the data set; may be empty.
    pub indices: Vec<u32>,
}

/// A loaded micro-batch of n samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub fields: Arc<[Field]>,
    /// The values of the n samples by field; for a sample that could not be loaded, those of another sample.
    pub columns: Vec<Column>,
    /// n weights: 1, or 0 for a sample that could not be loaded.
    pub weights: Vec<f32>,
    /// n numbers of samples, as requested.
    pub indices: Vec<u32>,
    /// The samples that could not be loaded, in the batch's order.
    pub bad: Vec<BadSample>,
}

impl Batch {
    /// Returns the samples that could not be loaded: place in the batch, and number.
    pub fn unreadable(&self) -> impl Iterator<Item = (usize, u32)> {
        let all = self.weights.iter().zip(&self.indices).enumerate();
        all.filter(|(_, (weight, _))| **weight == 0.0).map(|(place, (_, index))| (place, *index))
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
