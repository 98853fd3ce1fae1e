//! What to load, and what was loaded.

use std::sync::Arc;

use super::super::dataset::{Column, Field};
use super::super::error::BadSample;

/// What to load next: samples of one epoch, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// The epoch, which decides the samples' augmentation.
    pub epoch: u64,
    /// Numbers of samples in the data set; may be none.
    pub indices: Vec<u32>,
}

/// A loaded micro-batch of n samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub fields: Arc<[Field]>,
    /// The values of the n samples by field; what stands for a sample that could not be loaded means nothing.
    pub columns: Vec<Column>,
    /// n weights: 1, or 0 for a sample that could not be loaded.
    pub weights: Vec<f32>,
    /// n numbers of samples, as asked for.
    pub indices: Vec<u32>,
    /// The samples that could not be loaded, in the batch's order.
    pub bad: Vec<BadSample>,
}

impl Batch {
    /// The values of the field of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.get(self.fields.iter().position(|field| field.name == name)?)
    }
}

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Threads; at least one is started.
    pub threads: usize,
    /// How many batches may be loaded or be loading while none is asked for; at least one. This bounds the memory.
    pub prefetch_batches: usize,
    /// Seed of the augmentation.
    pub seed: u64,
    /// Whether samples are loaded with random choices, as in training.
    pub augment: bool,
}
