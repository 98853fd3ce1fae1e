//! Samples whose images are mixed with those of a partner.

use std::borrow::Cow;
use std::sync::Arc;

use super::dataset::{Column, Dataset, Field, FieldKind, Members, columns_for};
use super::error::Result;
use super::mixing::{Blend, Form, rectangle};
use super::rng::SampleRng;

/// The beginning of the name of a partner's field.
pub const PREFIX: &str = "mix_";
/// The field of the part that the sample has of its images, float32; its partner has the rest.
pub const SHARE: &str = "mix_share";

/// A set whose training samples may be mixed: the fields of a sample, those of its partner that are no images with names that begin
/// with [`PREFIX`], and [`SHARE`]. A sample that is not mixed is its own partner, with a share of 1.
pub struct Mixed {
    fields: Vec<Field>,
    /// The fields of a sample that are no images.
    others: Vec<usize>,
    singles: Arc<dyn Dataset>,
}

/// Returns whether a field holds images, which are mixed.
pub fn is_image(field: &Field) -> bool {
    field.kind == FieldKind::F32 && field.shape.len() >= 3
}

impl Mixed {
    /// Makes samples that may be mixed.
    pub fn new(singles: Arc<dyn Dataset>) -> Self {
        let own = singles.fields();
        let others: Vec<usize> = (0..own.len()).filter(|&at| !is_image(&own[at])).collect();
        let partner =
            |field: &Field| Field { name: Cow::Owned(format!("{PREFIX}{}", field.name)), ..field.clone() };
        let partners = others.iter().map(|&at| partner(&own[at]));
        let fields = own.iter().cloned().chain(partners).chain([Field::f32(SHARE, [])]).collect();
        Self { fields, others, singles }
    }

    /// Writes the partner's values beside those of the sample.
    fn put_others(&self, single: &[Column], out: &mut [Column]) {
        let partners = &mut out[single.len()..];
        for (&at, column) in self.others.iter().zip(partners) {
            column.copy(0..single[at].len(), &single[at]);
        }
    }

    fn put_share(&self, share: f64, out: &mut [Column]) {
        out[self.fields.len() - 1].f32()[0] = share as f32;
    }
}

impl Members for Mixed {
    fn singles(&self) -> &dyn Dataset {
        &*self.singles
    }

    fn width(&self) -> usize {
        2
    }

    fn of(&self, index: usize) -> Vec<u32> {
        vec![index as u32]
    }

    fn put(&self, member: usize, single: &[Column], blend: Option<&Blend>, out: &mut [Column]) {
        if member == 0 {
            out.iter_mut().zip(single).for_each(|(column, from)| column.copy(0..from.len(), from));
            self.put_others(single, out);
            return self.put_share(1.0, out);
        }
        let Some(blend) = blend else { return };
        let mut share = blend.share;
        for ((field, column), partner) in self.singles.fields().iter().zip(&mut *out).zip(single) {
            let (true, Some(&size)) = (is_image(field), field.shape.last_chunk::<2>()) else { continue };
            match blend.form {
                Form::Mean => column.mean(partner, share as f32),
                Form::Rectangle(middle) => {
                    let (sides, left) = rectangle(1.0 - blend.share, middle, size);
                    column.paste(partner, &sides, size);
                    // All images of a sample have one size.
                    share = left;
                }
            }
        }
        self.put_others(single, out);
        self.put_share(share, out);
    }
}

impl Dataset for Mixed {
    fn len(&self) -> usize {
        self.singles.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Writes the sample without a partner.
    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let mut single = columns_for(self.singles.fields(), 1);
        self.singles.load(index, random, &mut single)?;
        self.put(0, &single, None, out);
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        self.singles.describe(index)
    }

    fn largest(&self) -> usize {
        self.singles.largest()
    }

    fn groups(&self) -> Option<&dyn Members> {
        Some(self)
    }
}

#[cfg(test)]
mod tests;
