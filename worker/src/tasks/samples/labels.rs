//! The classes of samples, for the order of samples and for episodes.

use dtrain_recipe as recipe;

use crate::data::packed::Packed;
use crate::data::{DataError, EpisodeShape, Episodes, Samples, TooFew};

/// The classes of a set's samples.
pub(super) struct Labels {
    /// The set in messages.
    pub(super) place: String,
    /// May be empty.
    pub(super) names: Vec<String>,
    pub(super) numbers: Packed<u32>,
}

impl Labels {
    pub(super) fn of(samples: &Samples) -> Option<Self> {
        let (names, numbers) = samples.labels()?;
        let place = samples.place(&samples.set).display().to_string();
        let place = match samples.table {
            Some(_) => format!("{place} ({})", samples.set),
            None => place,
        };
        Some(Self { place, names: names.to_vec(), numbers: numbers.clone() })
    }

    /// Returns `count` episodes of a recipe's shape.
    pub(super) fn episodes(&self, shape: &recipe::Episodes, count: usize) -> Result<Episodes, DataError> {
        let &recipe::Episodes { n_way: ways, k_shot: shots, n_query: queries, .. } = shape;
        let shape = EpisodeShape { ways, shots, queries };
        Episodes::new(shape, count, &self.numbers).map_err(|too_few| match too_few {
            TooFew::Classes(found) => DataError::FewClasses(self.place.clone(), found, ways),
            TooFew::Samples { class, found } => {
                let name =
                    self.names.get(class).map_or_else(|| class.to_string(), |name| format!("{name:?}"));
                let (place, needed) = (self.place.clone(), shape.of_class());
                DataError::SmallClass { place, class: name, found, needed }
            }
        })
    }
}
