//! Samples with a partner.

use std::borrow::Cow;
use std::sync::Arc;

use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::rng::SampleRng;

/// Samples of another set, each with a partner: the fields of a sample, and those of its partner with names that begin
/// with `pair_`. The loader decides the partner; by itself a sample is its own.
pub struct Pairs {
    fields: Vec<Field>,
    singles: Arc<dyn Dataset>,
}

impl Pairs {
    /// Makes pairs of the samples of a set.
    pub fn new(singles: Arc<dyn Dataset>) -> Self {
        let own = singles.fields();
        let of_partner =
            |field: &Field| Field { name: Cow::Owned(format!("pair_{}", field.name)), ..field.clone() };
        Self { fields: own.iter().cloned().chain(own.iter().map(of_partner)).collect(), singles }
    }
}

impl Dataset for Pairs {
    fn len(&self) -> usize {
        self.singles.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let (own, partner) = out.split_at_mut(out.len() / 2);
        self.singles.load(index, random, own)?;
        partner.clone_from_slice(own);
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        self.singles.describe(index)
    }

    fn singles(&self) -> Option<&dyn Dataset> {
        Some(&*self.singles)
    }
}
