//! Samples with random numbers.

use std::sync::Arc;

use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::rng::{SampleRng, unit};

/// Adds a field of random numbers to the samples of a training: from 0 up to 1, a function of (seed, epoch, sample), drawn after all
/// other choices. Without random choices they are 0.
pub struct Numbered {
    set: Arc<dyn Dataset>,
    /// Those of the set, and the numbers.
    fields: Vec<Field>,
}

impl Numbered {
    /// The name of the field.
    pub const FIELD: &'static str = "dtrain.u";

    /// Adds `count` numbers to each sample of a set.
    pub fn new(set: Arc<dyn Dataset>, count: usize) -> Self {
        let numbers = Field::f32(Self::FIELD, [count]);
        Self { fields: set.fields().iter().cloned().chain([numbers]).collect(), set }
    }
}

impl Dataset for Numbered {
    fn len(&self) -> usize {
        self.set.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, mut random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let (own, numbers) = out.split_at_mut(self.fields.len() - 1);
        self.set.load(index, random.as_deref_mut(), own)?;
        for number in numbers.iter_mut().flat_map(Column::f32) {
            *number = random.as_deref_mut().map_or(0.0, unit);
        }
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        self.set.describe(index)
    }

    fn largest(&self) -> usize {
        self.set.largest()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::dataset::load_one;
    use super::super::generated::Generated;
    use super::super::generated_set::Split;
    use super::super::rng::{Domain, keyed};
    use super::*;

    #[test]
    fn numbers_follow_from_the_sample_and_leave_the_others_as_they_are() {
        let set: Arc<dyn Dataset> = Arc::new(Generated::new(3, 5, 8, 1, Split::Train));
        let with = Numbered::new(Arc::clone(&set), 3);
        let random = |epoch| keyed(Domain::Augment, 1, epoch, 2);
        let load = |set: &dyn Dataset, epoch| load_one(set, 2, Some(&mut random(epoch))).unwrap();
        let (one, other) = (load(&with, 0), load(&with, 1));
        assert_eq!(one[..2], load(&*set, 0)[..]);
        assert_eq!(one, load(&with, 0));
        let numbers = |columns: &[Column]| columns[2].as_f32().unwrap().to_vec();
        assert!(numbers(&one).iter().all(|u| (0.0..1.0).contains(u)) && numbers(&one) != numbers(&other));
        assert_eq!(numbers(&load_one(&with, 2, None).unwrap()), [0.0; 3]);
    }
}
