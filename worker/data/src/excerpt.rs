//! A part of a data set, as a set of its own.

use std::sync::Arc;

use super::dataset::{Column, Dataset, Field, Members};
use super::error::Result;
use super::mixing::Blend;
use super::rng::SampleRng;

/// The first samples of a set.
pub struct First {
    of: Arc<dyn Dataset>,
    samples: usize,
}

impl First {
    /// Returns the first `samples` samples of a set, which stays as it is if it has no more.
    pub fn of(set: Arc<dyn Dataset>, samples: usize) -> Arc<dyn Dataset> {
        match set.len() <= samples {
            true => set,
            false => Arc::new(Self { of: set, samples }),
        }
    }
}

impl Dataset for First {
    fn len(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        self.of.fields()
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        self.of.load(index, random, out)
    }

    fn describe(&self, index: usize) -> String {
        self.of.describe(index)
    }

    fn groups(&self) -> Option<&dyn Members> {
        self.of.groups()
    }
}

/// Chosen samples of a set, in an order of their own; of a set of groups, groups of these members.
pub struct Chosen {
    of: Arc<dyn Dataset>,
    /// The members of each sample, at least one; without groups one.
    members: Vec<Vec<u32>>,
}

impl Chosen {
    /// Makes a set of these samples.
    pub fn new(of: Arc<dyn Dataset>, members: Vec<Vec<u32>>) -> Self {
        Self { of, members }
    }
}

impl Dataset for Chosen {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn fields(&self) -> &[Field] {
        self.of.fields()
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        self.of.load(self.members[index][0] as usize, random, out)
    }

    fn describe(&self, index: usize) -> String {
        self.of.describe(self.members[index][0] as usize)
    }

    fn groups(&self) -> Option<&dyn Members> {
        self.of.groups().map(|_| self as &dyn Members)
    }
}

/// Only of a set with groups.
impl Members for Chosen {
    fn singles(&self) -> &dyn Dataset {
        self.of.groups().map_or(&*self.of, |groups| groups.singles())
    }

    fn width(&self) -> usize {
        self.of.groups().map_or(1, |groups| groups.width())
    }

    fn of(&self, index: usize) -> Vec<u32> {
        let members = &self.members[index];
        match self.of.groups() {
            // The members are the set's own.
            Some(groups) if members.len() < groups.width() => groups.of(members[0] as usize),
            _ => members.clone(),
        }
    }

    fn put(&self, member: usize, single: &[Column], blend: Option<&Blend>, out: &mut [Column]) {
        if let Some(groups) = self.of.groups() {
            groups.put(member, single, blend, out);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Generated, Split, load_one};
    use super::*;

    fn set() -> Arc<dyn Dataset> {
        Arc::new(Generated::new(2, 10, 4, 1, Split::Train))
    }

    #[test]
    fn an_excerpt_has_the_samples_of_its_set() {
        let set = set();
        let values = |set: &dyn Dataset, index| load_one(set, index, None).unwrap();
        let first = First::of(Arc::clone(&set), 3);
        assert_eq!((first.len(), values(&*first, 2)), (3, values(&*set, 2)));
        assert_eq!(First::of(Arc::clone(&set), 20).len(), 10);
        let chosen = Chosen::new(Arc::clone(&set), vec![vec![7], vec![1]]);
        assert_eq!((chosen.len(), values(&chosen, 0)), (2, values(&*set, 7)));
        assert_eq!(chosen.describe(1), set.describe(1));
        assert!(chosen.groups().is_none());
    }
}
