//! The loader's view of a data set: the fields of a sample, and loading one.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::error::Result;
use super::mixing::{self, Blend};
use super::normalize::Normalize;
use super::pixels::Pixels;
use super::rng::SampleRng;

/// The type of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// 32-bit floating point: images.
    F32,
    /// 64-bit integers: classes, masks, tokens.
    I64,
}

/// One part of a sample, such as its image or its class.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name for tasks, such as `image` (`[C, H, W]`), `label` (`[]`), `mask` or `map` (`[H, W]`), `targets` (`[K]`,
    /// numbers); `tokens`, `targets` (`[T]`, tokens). A table's fields have its own names.
    pub name: Cow<'static, str>,
    pub kind: FieldKind,
    /// The shape in one sample; empty for a single number.
    pub shape: Vec<usize>,
    /// For images of files: how the device normalises 8-bit values.
    pub normalize: Option<Arc<Normalize>>,
}

impl Field {
    /// Makes a field of floating-point values.
    pub fn f32(name: impl Into<Cow<'static, str>>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), kind: FieldKind::F32, shape: shape.into(), normalize: None }
    }

    /// Makes a field of integers.
    pub fn i64(name: impl Into<Cow<'static, str>>, shape: impl Into<Vec<usize>>) -> Self {
        Self { kind: FieldKind::I64, ..Self::f32(name, shape) }
    }

    /// Makes a field of images, `[C, H, W]` or `[L, C, H, W]`, that are normalised on the way to the model.
    pub fn image(
        name: impl Into<Cow<'static, str>>,
        shape: impl Into<Vec<usize>>,
        normalize: Normalize,
    ) -> Self {
        Self { normalize: Some(Arc::new(normalize)), ..Self::f32(name, shape) }
    }

    /// Returns the number of values in one sample.
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One field of all samples of a batch, one sample after the other; also the buffer for one sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    F32(Vec<f32>),
    I64(Vec<i64>),
    Pixels(Pixels),
}

impl Column {
    /// Makes the field for `samples` samples, filled with zeros.
    pub fn of(field: &Field, samples: usize) -> Self {
        let len = samples * field.values();
        match (&field.normalize, field.kind) {
            (Some(normalize), _) => {
                let plane = field.shape.iter().rev().take(2).product();
                Self::Pixels(Pixels::new(Arc::clone(normalize), plane, len))
            }
            (None, FieldKind::F32) => Self::F32(vec![0.0; len]),
            (None, FieldKind::I64) => Self::I64(vec![0; len]),
        }
    }

    pub(super) fn matches(&self, field: &Field) -> bool {
        match self {
            Self::F32(_) => field.kind == FieldKind::F32 && field.normalize.is_none(),
            Self::I64(_) => field.kind == FieldKind::I64,
            Self::Pixels(pixels) => field.normalize.as_deref() == Some(pixels.normalize()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::Pixels(pixels) => pixels.values().len(),
        }
    }

    /// Returns floating-point values as a model takes them.
    pub fn as_f32(&self) -> Option<Cow<'_, [f32]>> {
        match self {
            Self::F32(values) => Some(Cow::Borrowed(values)),
            Self::I64(_) => None,
            Self::Pixels(pixels) => Some(pixels.to_f32()),
        }
    }

    /// Returns the values, if they are integers.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match self {
            Self::I64(values) => Some(values),
            Self::F32(_) | Self::Pixels(_) => None,
        }
    }

    /// Returns the buffer for floating-point values. Panics for other fields.
    pub fn f32(&mut self) -> &mut [f32] {
        match self {
            Self::F32(values) => values,
            other => panic!("floating-point values for a field of {}", other.content()),
        }
    }

    /// Returns the buffer for integers. Panics for other fields.
    pub fn i64(&mut self) -> &mut [i64] {
        match self {
            Self::I64(values) => values,
            other => panic!("integers for a field of {}", other.content()),
        }
    }

    /// Returns the buffer for an image. Panics for other fields.
    pub(super) fn pixels(&mut self) -> &mut Pixels {
        match self {
            Self::Pixels(pixels) => pixels,
            other => panic!("an image for a field of {}", other.content()),
        }
    }

    fn content(&self) -> &'static str {
        match self {
            Self::F32(_) => "floating-point values",
            Self::I64(_) => "integers",
            Self::Pixels(_) => "images",
        }
    }

    /// Changes the length to `len`. Old values may stay, so all values must be written.
    pub(super) fn resize(&mut self, len: usize) {
        match self {
            Self::F32(values) => values.resize(len, 0.0),
            Self::I64(values) => values.resize(len, 0),
            Self::Pixels(pixels) => pixels.resize(len),
        }
    }

    pub(super) fn clear(&mut self, range: Range<usize>) {
        match self {
            Self::F32(values) => values[range].fill(0.0),
            Self::I64(values) => values[range].fill(0),
            Self::Pixels(pixels) => pixels.clear(range),
        }
    }

    /// Copies all of `from`, which is of the same field, into a range of the same length.
    pub(super) fn copy(&mut self, range: Range<usize>, from: &Column) {
        match (self, from) {
            (Self::F32(to), Self::F32(from)) => to[range].copy_from_slice(from),
            (Self::I64(to), Self::I64(from)) => to[range].copy_from_slice(from),
            (Self::Pixels(to), Self::Pixels(from)) => to.copy(range, from),
            (to, from) => unreachable!("a column {to:?} has no room for {from:?}"),
        }
    }

    /// Replaces images by `share` of them and the rest of those of `partner`, both normalised.
    pub(super) fn mean(&mut self, partner: &Column, share: f32) {
        match (self, partner) {
            (Self::F32(own), Self::F32(partner)) => mixing::mean(own, partner, share),
            (Self::Pixels(own), Self::Pixels(partner)) => own.mean(partner, share),
            (own, _) => unreachable!("{} are no images", own.content()),
        }
    }

    /// Copies a rectangle of rows and columns of the images of `partner`, whose height and width are `size`.
    pub(super) fn paste(&mut self, partner: &Column, sides: &[Range<usize>; 2], size: [usize; 2]) {
        match (self, partner) {
            (Self::F32(own), Self::F32(partner)) => mixing::paste(own, partner, sides, size),
            (Self::Pixels(own), Self::Pixels(partner)) => own.paste(partner, sides, size),
            (own, _) => unreachable!("{} are no images", own.content()),
        }
    }
}

/// A set of samples with the same fields. Several threads call it at once.
pub trait Dataset: Send + Sync {
    /// Returns the number of samples.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the fields of every sample, in the order of columns; they never change.
    fn fields(&self) -> &[Field];

    /// Writes one sample: every value of every column. In training, `random` is the only source of random
    /// choices (augmentation); in evaluation it is `None`. The columns keep their lengths. After an error the
    /// content of `out` is undefined. Panics if `index` is not below [`Dataset::len`], or `out` are not the
    /// columns of the fields.
    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()>;

    /// Describes the sample for messages, for example by its path.
    fn describe(&self, index: usize) -> String;

    /// Returns the sample that takes the most memory in a step, if that differs: rehearsals begin with it.
    fn largest(&self) -> usize {
        0
    }

    /// Returns how the samples are made of single samples, if they are.
    fn groups(&self) -> Option<&dyn Members> {
        None
    }

    /// Returns the number of single samples, such as images.
    fn count_singles(&self) -> usize {
        self.groups().map_or(self.len(), |groups| groups.singles().len())
    }
}

/// How the samples of a set are made of single samples, their members.
pub trait Members: Send + Sync {
    /// Returns the set of the single samples.
    fn singles(&self) -> &dyn Dataset;

    /// Returns the number of members of a sample.
    fn width(&self) -> usize;

    /// Returns the members of a sample of which the number alone is given, as in evaluations: always the same.
    fn of(&self, index: usize) -> Vec<u32>;

    /// Writes the columns of a member, `single`, into those of a sample. Members come in order. `blend`: how the sample is mixed,
    /// for sets that mix.
    fn put(&self, member: usize, single: &[Column], blend: Option<&Blend>, out: &mut [Column]);
}

/// The field of the class that is the target.
pub(super) const LABEL: &str = "label";

/// Loads one sample into new columns, in the order of the fields; for tests and inspection.
pub fn load_one(dataset: &dyn Dataset, index: usize, random: Option<&mut SampleRng>) -> Result<Vec<Column>> {
    let mut columns = columns_for(dataset.fields(), 1);
    dataset.load(index, random, &mut columns)?;
    Ok(columns)
}

/// Makes a column for each field, for `samples` samples.
pub(super) fn columns_for(fields: &[Field], samples: usize) -> Vec<Column> {
    fields.iter().map(|field| Column::of(field, samples)).collect()
}
