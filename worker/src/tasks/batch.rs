//! A task's input: a micro-batch on its device.

use std::borrow::Cow;
use std::cell::OnceCell;

use dtrain_torch_shim::{ShimError, cuda};
use tch::kind::Element;
use tch::{Device, Kind, TchError, Tensor};

use super::error::TaskError;
use crate::data::raster::Values;
use crate::data::{self, Column, Field, FieldKind, Normalize, Pixels};

/// A micro-batch of N samples on its device.
#[derive(Debug)]
pub struct Batch {
    /// Names and values: N x the field's shape, float32 or int64.
    pub(super) fields: Vec<(Cow<'static, str>, Tensor)>,
    /// N weights, float32: 1, or 0 for a sample that could not be read.
    pub weights: Tensor,
    /// The sum of the weights.
    pub weight: f64,
    /// The number of tokens of the longest document; None if the samples are no documents, or are blank.
    pub(super) longest: Option<usize>,
    pub(super) blank: bool,
    /// Where an evaluation finds the outputs of the network, if it asks for them.
    pub(super) outputs: Option<OnceCell<Vec<Tensor>>>,
}

impl Batch {
    /// Copies a decoded batch to `device`. A copy to a GPU uses pinned memory and is asynchronous: later work
    /// on the stream runs after it.
    pub fn new(decoded: &data::Batch, device: Device) -> Result<Self, ShimError> {
        let samples = decoded.weights.len();
        let mut fields = Vec::with_capacity(decoded.fields.len());
        for (field, column) in decoded.fields.iter().zip(&decoded.columns) {
            let values = match column {
                Column::F32(values) => to_device(values, device)?,
                Column::I64(values) => to_device(values, device)?,
                Column::Pixels(pixels) => images(pixels, device)?,
            };
            fields.push((field.name.clone(), values.f_view(shape(field, samples).as_slice())?));
        }
        Ok(Self {
            fields,
            weights: to_device(&decoded.weights, device)?,
            weight: decoded.weights.iter().map(|&weight| f64::from(weight)).sum(),
            longest: longest(decoded),
            blank: false,
            outputs: None,
        })
    }

    /// Creates a batch of this many samples without values.
    pub(crate) fn blank(fields: &[Field], samples: usize, device: Device) -> Result<Self, TchError> {
        let zeros = |field: &Field| {
            let kind = match field.kind {
                FieldKind::F32 => Kind::Float,
                FieldKind::I64 => Kind::Int64,
            };
            let shape = shape(field, samples);
            Ok((field.name.clone(), Tensor::f_zeros(shape.as_slice(), (kind, device))?))
        };
        Ok(Self {
            fields: fields.iter().map(zeros).collect::<Result<_, TchError>>()?,
            weights: Tensor::f_ones([samples as i64], (Kind::Float, device))?,
            weight: samples as f64,
            longest: None,
            blank: true,
            outputs: None,
        })
    }

    /// Makes a batch of fields with values, N x the field's shape, of which every sample counts.
    pub(crate) fn of_fields(
        fields: Vec<(Cow<'static, str>, Tensor)>,
        samples: usize,
        device: Device,
    ) -> Result<Self, TchError> {
        let weights = Tensor::f_ones([samples as i64], (Kind::Float, device))?;
        Ok(Self { fields, weights, weight: samples as f64, longest: None, blank: false, outputs: None })
    }

    /// Returns the batch with its images mirrored along `dims`, counted from the last: fields of N x ... x height x width.
    pub(crate) fn flipped(&self, dims: &[i64]) -> Result<Self, TchError> {
        let flip = |(name, values): &(Cow<'static, str>, Tensor)| {
            let is_image = values.dim() >= 4;
            let values = if is_image { values.f_flip(dims)? } else { values.shallow_clone() };
            Ok((name.clone(), values))
        };
        let fields = self.fields.iter().map(flip).collect::<Result<_, TchError>>()?;
        Ok(Self { fields, weights: self.weights.shallow_clone(), outputs: None, ..*self })
    }

    /// Asks the task for the outputs of the network, which [`Batch::take_outputs`] returns after the evaluation of this batch.
    pub(crate) fn keep_outputs(&mut self) {
        self.outputs = Some(OnceCell::new());
    }

    /// Keeps the outputs of all samples, if they are asked for.
    pub(super) fn offer_outputs(&self, outputs: &[Tensor]) {
        if let Some(kept) = &self.outputs {
            // The first ones stay.
            let _ = kept.set(outputs.iter().map(Tensor::shallow_clone).collect());
        }
    }

    /// Returns the outputs; None if the task did not offer them.
    pub(crate) fn take_outputs(&mut self) -> Option<Vec<Tensor>> {
        self.outputs.take()?.into_inner()
    }

    /// Returns the bytes of a batch of this many samples.
    pub(crate) fn bytes_of(fields: &[Field], samples: usize) -> u64 {
        let of_sample = fields.iter().map(|field| {
            let each = match field.kind {
                FieldKind::F32 => 4,
                FieldKind::I64 => 8,
            };
            each * field.values() as u64
        });
        (of_sample.sum::<u64>() + 4) * samples as u64
    }

    /// Returns N, the number of samples.
    pub fn samples(&self) -> usize {
        self.weights.size().first().map_or(0, |&samples| samples as usize)
    }

    pub(crate) fn duplicate(&self) -> Result<Self, TchError> {
        let empty = |(name, values): &(Cow<'static, str>, Tensor)| Ok((name.clone(), values.f_empty_like()?));
        let mut copy = Self {
            fields: self.fields.iter().map(empty).collect::<Result<_, TchError>>()?,
            weights: self.weights.f_empty_like()?,
            outputs: None,
            ..*self
        };
        copy.fill(self)?;
        Ok(copy)
    }

    /// Copies the values of another batch, with the same fields and number of samples, into this one.
    pub(crate) fn fill(&mut self, other: &Self) -> Result<(), TchError> {
        for ((_, own), (_, values)) in self.fields.iter_mut().zip(&other.fields) {
            own.f_copy_(values)?;
        }
        self.weights.f_copy_(&other.weights)?;
        (self.weight, self.longest) = (other.weight, other.longest);
        Ok(())
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let fields = self.fields.iter().map(|(_, values)| values);
        fields.chain([&self.weights])
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors().map(crate::tensors::bytes).sum()
    }

    /// Returns whether the batch has no values: such batches are used to rehearse a step before a run, to
    /// measure its memory. Tasks should not record figures of such a batch.
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    /// Returns the values of a field: N x the field's shape.
    pub fn field(&self, name: &str) -> Result<&Tensor, TaskError> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, values)| values).ok_or_else(|| TaskError::NoField {
            name: name.to_owned(),
            fields: self.fields.iter().map(|(known, _)| known.to_string()).collect(),
        })
    }
}

/// Returns how many tokens the longest sample has before its padding, by the field `documents` or `attention_mask`.
fn longest(decoded: &data::Batch) -> Option<usize> {
    let counts = |field: &Field| {
        ["documents", "attention_mask"].contains(&&*field.name) && field.kind == FieldKind::I64
    };
    let at = decoded.fields.iter().position(counts)?;
    let (field, column) = (&decoded.fields[at], decoded.columns[at].as_i64()?);
    let length =
        |sample: &[i64]| sample.iter().rposition(|&document| document > 0).map_or(0, |last| last + 1);
    column.chunks(field.values().max(1)).map(length).max()
}

/// Returns N x the field's shape.
fn shape(field: &Field, samples: usize) -> Vec<i64> {
    let lengths = std::iter::once(&samples).chain(&field.shape);
    lengths.map(|&length| length as i64).collect()
}

/// Returns a flat tensor of normalised images on `device`. 8-bit images go to a GPU as they are, a quarter of the
/// bytes, and a table on the GPU gives the same values.
fn images(pixels: &Pixels, device: Device) -> Result<Tensor, ShimError> {
    match pixels.values() {
        Values::U8(bytes) if device.is_cuda() => look_up(bytes, pixels.normalize(), pixels.plane(), device),
        _ => to_device(&pixels.to_f32(), device),
    }
}

/// Looks up the normalised values of 8-bit images on the device, as a flat tensor.
fn look_up(bytes: &[u8], normalize: &Normalize, plane: usize, device: Device) -> Result<Tensor, ShimError> {
    let (plane, channels) = (plane as i64, normalize.channels() as i64);
    let tables = to_device(&normalize.tables().concat(), device)?;
    let options = (Kind::Int, device);
    let first = Tensor::f_arange_start_step(0, 256 * channels, 256, options)?.f_view([1, -1, 1])?;
    let mut indices = to_device(bytes, device)?.f_to_kind(Kind::Int)?.f_view([-1, channels, plane])?;
    let indices = indices.f_add_(&first)?.f_view([-1])?;
    Ok(tables.f_index_select(0, &indices)?)
}

fn to_device<T: Element>(values: &[T], device: Device) -> Result<Tensor, ShimError> {
    if !device.is_cuda() {
        return Ok(Tensor::f_from_slice(values)?.f_to_device(device)?);
    }
    let pinned = cuda::pinned(values)?;
    Ok(pinned.f_to_device_(device, pinned.kind(), true, false)?)
}

/// A clone has the same tensors.
impl Clone for Batch {
    fn clone(&self) -> Self {
        let fields = self.fields.iter().map(|(name, values)| (name.clone(), values.shallow_clone()));
        Self { fields: fields.collect(), weights: self.weights.shallow_clone(), outputs: None, ..*self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lookup_tables_normalise_bit_exactly() {
        let normalize = Normalize::new(&[0.485, 0.456], &[0.229, 0.224]);
        let bytes: Vec<u8> = (0..2 * 2 * 3 * 256).map(|at| (at * 7 % 256) as u8).collect();
        let mut expected = Vec::new();
        normalize.look_up(&bytes, 3 * 128, &mut expected);
        let values = look_up(&bytes, &normalize, 3 * 128, Device::Cpu).unwrap();
        assert_eq!(Vec::<f32>::try_from(values).unwrap(), expected);
    }
}
