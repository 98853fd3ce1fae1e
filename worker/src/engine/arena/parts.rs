//! What a rank updates of the flat buffers.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::layout::{Bucket, BufferLayout, Layout, Slot};

/// A range of a buffer that this rank's optimizer updates: all of it, or with shards a part of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The number of the buffer.
    pub buffer: usize,
    /// Its elements.
    pub range: Range<i64>,
}

impl Part {
    /// This part of a flat tensor.
    ///
    /// # Errors
    /// Where the tensor is shorter than the buffer.
    pub fn of(&self, flat: &Tensor) -> Result<Tensor, TchError> {
        narrow(flat, &self.range)
    }

    /// Whether a parameter of the same buffer lies in this part, with one element at least.
    pub(crate) fn meets(&self, slot: &Slot) -> bool {
        let slot = slot.range();
        slot.start.max(self.range.start) < slot.end.min(self.range.end)
    }

    /// The memory of a parameter that lies in this part whole, in the parameter's shape and strides, within `held`, the memory of this
    /// part; none for other parameters.
    ///
    /// # Errors
    /// Where `held` is shorter than the part.
    pub(crate) fn whole(&self, slot: &Slot, held: &Tensor) -> Result<Option<Tensor>, TchError> {
        let range = slot.range();
        if range.start < self.range.start || self.range.end < range.end {
            return Ok(None);
        }
        let start = range.start - self.range.start;
        let own = narrow(held, &(start..start + range.end - range.start))?;
        own.f_as_strided(slot.shape.as_slice(), slot.strides.as_slice(), None)
            .map(Some)
    }
}

/// The elements of a flat tensor in `range`.
///
/// # Errors
/// Where the tensor is shorter.
pub(crate) fn narrow(flat: &Tensor, range: &Range<i64>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, range.start, range.end - range.start)
}

/// What `shard` updates of the buffers.
pub(super) fn parts(layout: &Layout, shard: usize) -> Vec<Part> {
    let shards = layout.options.shards;
    if shards <= 1 {
        let whole = |(buffer, of): (usize, &BufferLayout)| Part {
            buffer,
            range: 0..of.len,
        };
        return layout.buffers.iter().enumerate().map(whole).collect();
    }
    let part = |bucket: &Bucket| Part {
        buffer: bucket.buffer,
        range: bucket.part(shard, shards),
    };
    layout.buckets.iter().map(part).collect()
}

/// What a part holds of a parameter's state: (to, from), views of `held` and of the parameter's `flat` state.
///
/// # Errors
/// Where one of them is shorter than it is laid out.
pub(crate) fn overlap(
    slot: &Slot,
    part: &Part,
    flat: &Tensor,
    held: &Tensor,
) -> Result<Option<(Tensor, Tensor)>, TchError> {
    let (slot, part) = (slot.range(), &part.range);
    let (start, end) = (slot.start.max(part.start), slot.end.min(part.end));
    if start >= end {
        return Ok(None);
    }
    Ok(Some((
        held.f_narrow(0, start - part.start, end - start)?,
        flat.f_narrow(0, start - slot.start, end - start)?,
    )))
}
