//! Data sets one after the other.

use std::sync::Arc;

use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::rng::SampleRng;

/// The samples of several sets with the same fields, those of the first set first.
pub struct Concatenated(Vec<Arc<dyn Dataset>>);

impl Concatenated {
    /// Joins the sets; one set stays as it is. Panics without a set.
    pub fn of(mut sets: Vec<Arc<dyn Dataset>>) -> Arc<dyn Dataset> {
        match sets.len() {
            1 => sets.remove(0),
            _ => Arc::new(Self(sets)),
        }
    }

    /// Returns the set of a sample, and its number there.
    fn find(&self, mut index: usize) -> (&dyn Dataset, usize) {
        for set in &self.0 {
            if index < set.len() {
                return (&**set, index);
            }
            index -= set.len();
        }
        panic!("sample {} of {}", self.len() + index, self.len());
    }
}

impl Dataset for Concatenated {
    fn len(&self) -> usize {
        self.0.iter().map(|set| set.len()).sum()
    }

    fn fields(&self) -> &[Field] {
        self.0[0].fields()
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let (set, index) = self.find(index);
        set.load(index, random, out)
    }

    /// The largest of the first set: of texts, all sets have samples of the same length.
    fn largest(&self) -> usize {
        self.0[0].largest()
    }

    fn describe(&self, index: usize) -> String {
        let (set, index) = self.find(index);
        set.describe(index)
    }
}
