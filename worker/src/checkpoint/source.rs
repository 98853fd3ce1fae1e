//! A tensor of a checkpoint's file, as this rank holds it.

use std::borrow::Borrow;
use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use super::error::CheckpointError;
use super::layout::{Held, Item};
use crate::models::dtype_of;

/// A tensor of a file, and what this rank has of it.
pub(super) struct Source {
    pub(super) item: Item,
    /// Elements in the order of the file, and a tensor of them: one that lies in this order, or all of them in any.
    pub(super) held: Vec<(Range<u64>, Tensor)>,
    /// Whether nothing changes it before the next update: it can be copied while the next step is computed. True of what the
    /// optimizer and the average keep. Buffers change in forward, and what is frozen a task may change.
    pub(super) lasts: bool,
}

impl Borrow<Item> for Source {
    fn borrow(&self) -> &Item {
        &self.item
    }
}

impl Source {
    /// A tensor that every rank has; it is copied at once unless the caller says that it lasts.
    pub(super) fn whole(name: String, tensor: Tensor) -> Result<Self, CheckpointError> {
        let held = Held::All { divisible: tensor.is_contiguous() };
        Ok(Self {
            item: item(name, tensor.f_kind()?, tensor.size(), held)?,
            held: vec![(0..tensor.numel() as u64, tensor)],
            lasts: false,
        })
    }

    /// A tensor with these elements, which this rank has according to the layout.
    pub(super) fn elements(&self, range: &Range<u64>) -> Result<Tensor, TchError> {
        let covers = |(held, _): &&(Range<u64>, Tensor)| held.start <= range.start && range.end <= held.end;
        let missing = || TchError::Convert(format!("{} is not held here", self.item.name));
        let (held, tensor) = self.held.iter().find(covers).ok_or_else(missing)?;
        if held == range {
            return Ok(tensor.shallow_clone());
        }
        let (start, length) = (range.start - held.start, range.end - range.start);
        tensor.f_view([-1])?.f_narrow(0, start as i64, length as i64)
    }
}

pub(super) fn item(name: String, kind: Kind, shape: Vec<i64>, held: Held) -> Result<Item, CheckpointError> {
    let dtype = dtype_of(kind).ok_or_else(|| {
        let reason = format!("`{name}` has the type {kind:?}, which safetensors files lack");
        CheckpointError::Tensors(reason)
    })?;
    Ok(Item { name, dtype, shape, held })
}
