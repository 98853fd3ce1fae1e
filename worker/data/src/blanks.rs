//! A set whose samples lack the values of some fields, such as the target in a prediction.

use std::sync::Arc;

use super::dataset::{Column, Dataset, Field, FieldKind};
use super::error::Result;
use super::rng::SampleRng;
use super::text_documents::NO_TARGET;
use super::token_lists::is_token_target;

/// The samples of a set, or samples without any value, with zeros in further fields, and [`NO_TARGET`] in those of tokens to learn.
pub struct Blanks {
    set: Option<Arc<dyn Dataset>>,
    samples: usize,
    /// Those of the set first.
    fields: Vec<Field>,
    /// Whether samples have separate texts, whose tokens may be no target.
    has_texts: bool,
}

impl Blanks {
    /// Adds the fields that `set` lacks.
    pub fn after(set: Arc<dyn Dataset>, fields: impl IntoIterator<Item = Field>) -> Self {
        let own = set.fields().to_vec();
        let lacking: Vec<_> =
            fields.into_iter().filter(|field| own.iter().all(|known| known.name != field.name)).collect();
        let fields = own.into_iter().chain(lacking).collect();
        Self { samples: set.len(), set: Some(set), fields, has_texts: false }
    }

    /// Makes samples of which no value is known.
    pub fn only(samples: usize, fields: Vec<Field>) -> Self {
        Self { set: None, samples, fields, has_texts: false }
    }

    /// States whether samples have separate texts. Then the targets of tokens that samples lack are none.
    #[must_use]
    pub fn with_texts(self, has_texts: bool) -> Self {
        Self { has_texts, ..self }
    }

    fn is_no_target(&self, field: &Field) -> bool {
        self.has_texts
            && field.kind == FieldKind::I64
            && field.shape.len() == 1
            && is_token_target(&field.name)
    }
}

impl Dataset for Blanks {
    fn len(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let known = self.set.as_ref().map_or(0, |set| set.fields().len());
        let (known, blank) = out.split_at_mut(known);
        for (column, field) in blank.iter_mut().zip(&self.fields[known.len()..]) {
            match self.is_no_target(field) {
                true => column.i64().fill(NO_TARGET),
                false => column.clear(0..column.len()),
            }
        }
        self.set.as_ref().map_or(Ok(()), |set| set.load(index, random, known))
    }

    fn describe(&self, index: usize) -> String {
        self.set.as_ref().map_or_else(|| format!("sample {index}"), |set| set.describe(index))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::dataset::load_one;
    use super::super::generated::Generated;
    use super::super::generated_set::Split;
    use super::*;

    #[test]
    fn lacking_fields_are_zeros_after_the_others() {
        let set = Arc::new(Generated::new(3, 5, 8, 1, Split::Test));
        let more = [Field::i64("label", []), Field::f32("targets", [2])];
        let blanks = Blanks::after(Arc::clone(&set) as Arc<dyn Dataset>, more);
        let names: Vec<_> = blanks.fields().iter().map(|field| field.name.to_string()).collect();
        assert_eq!((names, blanks.len()), (vec!["image".into(), "label".into(), "targets".into()], 5));
        let [own, with] = [load_one(&*set, 2, None).unwrap(), load_one(&blanks, 2, None).unwrap()];
        assert_eq!((&with[..2], with[2].as_f32().unwrap().to_vec()), (&own[..], vec![0.0; 2]));
        let only = Blanks::only(4, vec![Field::i64("tokens", [3])]);
        assert_eq!((only.len(), load_one(&only, 3, None).unwrap()[0].as_i64()), (4, Some(&[0, 0, 0][..])));
        let fields = ["tokens", "labels"].map(|name| Field::i64(name, [2])).to_vec();
        let none = load_one(&Blanks::only(1, fields).with_texts(true), 0, None).unwrap();
        assert_eq!([none[0].as_i64(), none[1].as_i64()], [Some(&[0, 0][..]), Some(&[NO_TARGET; 2][..])]);
    }
}
