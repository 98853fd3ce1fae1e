//! Requests to the loader, and loaded batches.

use std::sync::Arc;

use super::super::dataset::{Column, Field};
use super::super::error::BadSample;
use super::super::mixing::Blend;
use super::super::sample_hashes::SampleHashes;
use super::super::sampler::Place;

/// A request: samples of one epoch, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch {
    /// The epoch, which decides the samples' augmentation.
    pub epoch: u64,
    /// The samples; may be empty. Of a set of [groups](super::super::groups::Groups) the members, one sample after the other.
    pub places: Vec<Place>,
    /// The number of members of a sample. 1 for sets of groups, too, whose members then are its own.
    pub width: usize,
    /// How each sample is mixed with its second member; None for one that is not, which then has no second. Empty if none is.
    pub blends: Vec<Option<Blend>>,
    /// The [hash of the order](SampleHashes::order_of) of all samples of the step; asks for hashes of the samples.
    pub order: Option<u64>,
}

impl MicroBatch {
    /// Requests these samples, each as if it stood once in the epoch.
    pub fn of(epoch: u64, indices: impl IntoIterator<Item = u32>) -> Self {
        let places = indices.into_iter().map(Place::first).collect();
        Self { epoch, places, width: 1, blends: Vec::new(), order: None }
    }

    /// Returns the members of a sample.
    pub(super) fn members(&self, sample: usize) -> &[Place] {
        let members = &self.places[sample * self.width..(sample + 1) * self.width];
        if self.blends.get(sample) == Some(&None) { &members[..1] } else { members }
    }

    /// Returns how a sample is mixed.
    pub(super) fn blend(&self, sample: usize) -> Option<&Blend> {
        self.blends.get(sample)?.as_ref()
    }

    /// Returns the request of each sample alone.
    pub fn apart(&self) -> impl Iterator<Item = Self> {
        (0..self.samples()).map(|at| Self {
            epoch: self.epoch,
            places: self.places[at * self.width..(at + 1) * self.width].to_vec(),
            width: self.width,
            blends: self.blends.get(at).copied().into_iter().collect(),
            order: None,
        })
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> usize {
        self.places.len() / self.width
    }
}

/// A loaded micro-batch of n samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub fields: Arc<[Field]>,
    /// The values of the n samples by field; for a sample that could not be loaded, those of another sample.
    pub columns: Vec<Column>,
    /// n weights: 1, or 0 for a sample of which a member could not be loaded.
    pub weights: Vec<f32>,
    /// The single samples that could not be loaded, in the order of their places.
    pub bad: Vec<BadPlace>,
    /// Hashes of the samples, if the request asks for them.
    pub hashes: SampleHashes,
}

/// A single sample that could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPlace {
    pub place: usize,
    pub sample: BadSample,
}

impl Batch {
    /// Returns the numbers of the single samples that could not be loaded, as often as they were requested.
    pub fn unreadable(&self) -> impl Iterator<Item = u32> {
        self.bad.iter().map(|bad| bad.sample.index as u32)
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
