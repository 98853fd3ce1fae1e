//! What the loader needs to know of a data set: which fields a sample has, and how to load one.

use std::ops::Range;

use super::error::SampleError;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What tasks ask for it by: `image` (`[C, H, W]`), `label` (`[]`), `mask` (`[H, W]`), `tokens` and `targets` (`[T]`).
    pub name: &'static str,
    /// The type of its values.
    pub kind: FieldKind,
    /// The shape in one sample; empty for a single number.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field of floating-point values.
    pub fn f32(name: &'static str, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name,
            kind: FieldKind::F32,
            shape: shape.into(),
        }
    }

    /// A field of integers.
    pub fn i64(name: &'static str, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name,
            kind: FieldKind::I64,
            shape: shape.into(),
        }
    }

    /// Values in one sample.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if a sample has no values of it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a data set writes one field of one sample.
#[derive(Debug)]
pub enum Slot<'a> {
    /// For a field of [`FieldKind::F32`].
    F32(&'a mut [f32]),
    /// For a field of [`FieldKind::I64`].
    I64(&'a mut [i64]),
}

impl Slot<'_> {
    /// The room for floating-point values.
    ///
    /// # Panics
    /// If the slot is for integers: it belongs to another field.
    pub fn f32(&mut self) -> &mut [f32] {
        match self {
            Self::F32(values) => values,
            Self::I64(_) => panic!("a slot for integers was taken for one of floating-point values"),
        }
    }

    /// The room for integers.
    ///
    /// # Panics
    /// If the slot is for floating-point values: it belongs to another field.
    pub fn i64(&mut self) -> &mut [i64] {
        match self {
            Self::I64(values) => values,
            Self::F32(_) => panic!("a slot for floating-point values was taken for one of integers"),
        }
    }
}

/// One field of all samples of a batch, one sample after the other.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// Of a field of [`FieldKind::F32`].
    F32(Vec<f32>),
    /// Of a field of [`FieldKind::I64`].
    I64(Vec<i64>),
}

impl Column {
    /// `len` zeros.
    pub fn zeros(kind: FieldKind, len: usize) -> Self {
        match kind {
            FieldKind::F32 => Self::F32(vec![0.0; len]),
            FieldKind::I64 => Self::I64(vec![0; len]),
        }
    }

    /// The type of the values.
    pub fn kind(&self) -> FieldKind {
        match self {
            Self::F32(_) => FieldKind::F32,
            Self::I64(_) => FieldKind::I64,
        }
    }

    /// Values in all samples together.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, if they are floating-point.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::I64(_) => None,
        }
    }

    /// The values, if they are integers.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match self {
            Self::I64(values) => Some(values),
            Self::F32(_) => None,
        }
    }

    /// All of it as the place to write to.
    pub fn slot(&mut self) -> Slot<'_> {
        match self {
            Self::F32(values) => Slot::F32(values),
            Self::I64(values) => Slot::I64(values),
        }
    }

    /// Makes it `len` long; what it held before stays in part, so that all of it must be written.
    pub(super) fn resize(&mut self, len: usize) {
        match self {
            Self::F32(values) => values.resize(len, 0.0),
            Self::I64(values) => values.resize(len, 0),
        }
    }

    /// Sets a range to zero.
    pub(super) fn clear(&mut self, range: Range<usize>) {
        match self {
            Self::F32(values) => values[range].fill(0.0),
            Self::I64(values) => values[range].fill(0),
        }
    }

    /// Copies all of `from`, which is of the same kind, into a range of the same length.
    pub(super) fn copy(&mut self, range: Range<usize>, from: &Column) {
        match (self, from) {
            (Self::F32(to), Self::F32(from)) => to[range].copy_from_slice(from),
            (Self::I64(to), Self::I64(from)) => to[range].copy_from_slice(from),
            (to, from) => unreachable!("a column of {:?} has no room for {:?}", to.kind(), from.kind()),
        }
    }
}

/// A set of samples that all have the same fields. Called from several threads at once.
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fields of every sample; their order is that of the slots of [`Dataset::load`] and of a batch's columns. It
    /// never changes.
    fn fields(&self) -> &[Field];

    /// Writes one sample: every value of every slot. With `random`, which is given in training, all random choices
    /// (augmentation) are drawn from that generator and from nothing else; in evaluation it is `None`.
    ///
    /// # Errors
    /// The sample cannot be read or decoded. `out` then holds nothing of use.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::len`], or `out` is not one slot for each field, of its kind and length.
    fn load(
        &self,
        index: usize,
        random: Option<&mut SampleRng>,
        out: &mut [Slot<'_>],
    ) -> Result<(), SampleError>;

    /// Which sample this is, for messages: its path, say.
    fn describe(&self, index: usize) -> String;
}

/// Loads one sample into columns of its own, in the order of the fields: for tests, demonstrations and a look at the data.
/// The loader does the same for many samples on its threads.
///
/// # Errors
/// Those of [`Dataset::load`].
///
/// # Panics
/// If `index` is not below [`Dataset::len`].
pub fn load_one(
    dataset: &dyn Dataset,
    index: usize,
    random: Option<&mut SampleRng>,
) -> Result<Vec<Column>, SampleError> {
    let mut columns = columns_for(dataset.fields(), 1);
    let mut slots: Vec<Slot<'_>> = columns.iter_mut().map(Column::slot).collect();
    dataset.load(index, random, &mut slots)?;
    Ok(columns)
}

/// A column of zeros for each field, long enough for so many samples.
pub(super) fn columns_for(fields: &[Field], samples: usize) -> Vec<Column> {
    let column = |field: &Field| Column::zeros(field.kind, samples * field.len());
    fields.iter().map(column).collect()
}
