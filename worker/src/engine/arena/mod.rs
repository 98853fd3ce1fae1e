//! The parameter arena: all trainable parameters and their gradients are views into flat buffers, one pair per dtype and
//! optimizer group.
//!
//! What works on all parameters (the reduction, clipping, the optimizer, averages, checkpoints) works on ranges of the
//! buffers: one kernel instead of hundreds, no copies, and memory that can be counted exactly. Parameters lie in the order
//! in which backward reaches them, so that a bucket is a range.

mod dissolve;
mod layout;
mod parts;
mod rearrange;

use dtrain_torch_shim::{ShimError, tensor};
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

pub use layout::{Bucket, LayoutOptions, Slot};
pub(in crate::engine) use layout::{BufferLayout, Layout, Spec};
pub use parts::Part;
use parts::parts;
pub(crate) use parts::{narrow, overlap};
pub use rearrange::Rearrangement;

use super::replay::patiently;
use crate::collectives::CollectiveError;

/// A trainable parameter on its way into the arena.
#[derive(Debug, Clone, Copy)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// The leaf that the layers hold.
    pub tensor: &'a Tensor,
    /// The number of its optimizer group.
    pub group: usize,
}

/// All parameters of one dtype and optimizer group.
#[derive(Debug)]
pub struct FlatBuffer {
    /// The dtype.
    pub kind: Kind,
    /// The number of the optimizer group.
    pub group: usize,
    /// The parameters, one after another; gaps of alignment stay zero.
    pub data: Tensor,
    /// Their gradients, laid out alike.
    pub grad: Tensor,
    /// The parameters in the order of their offsets.
    pub slots: Vec<Slot>,
    /// What `grad` is the beginning of: room for the same parameters in any order.
    grad_memory: Option<Tensor>,
    /// What `data` is the beginning of.
    data_memory: Option<Tensor>,
}

/// The flat buffers of a model.
#[derive(Debug)]
pub struct Arena {
    specs: Vec<Spec>,
    leaves: Vec<Tensor>,
    layout: Layout,
    shard: usize,
    buffers: Vec<FlatBuffer>,
    parts: Vec<Part>,
}

/// An arena that could not be made or used.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// A tensor operation failed.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// The group has no memory to give.
    #[error(transparent)]
    Memory(#[from] CollectiveError),
    /// A parameter could not be moved into its buffer.
    #[error("parameter {name}: {source}")]
    Move {
        /// The parameter.
        name: String,
        /// The cause.
        source: ShimError,
    },
}

impl Slot {
    /// The parameter's part of a buffer laid out like the arena's, in the parameter's shape and strides.
    ///
    /// # Errors
    /// Where `buffer` is shorter than the arena's.
    pub fn view(&self, buffer: &Tensor) -> Result<Tensor, TchError> {
        narrow(buffer, &self.range())?.f_as_strided(self.shape.as_slice(), self.strides.as_slice(), None)
    }
}

impl Slot {
    /// The elements of a tensor of the parameter's shape in the order in which the buffer holds them.
    ///
    /// # Errors
    /// Where the shape is another.
    pub fn flat(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let flat = Tensor::f_empty([self.len()], (tensor.kind(), tensor.device()))?;
        let mut view = flat.f_as_strided(self.shape.as_slice(), self.strides.as_slice(), None)?;
        tch::no_grad(|| view.f_copy_(tensor))?;
        Ok(flat)
    }
}

impl Arena {
    /// Moves `parameters` (name and leaf tensor, in the order of construction) into flat buffers, as one optimizer group
    /// that is not sharded.
    ///
    /// # Errors
    /// As [`Arena::with_layout`].
    pub fn new<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Self, ArenaError> {
        let parameters: Vec<_> = parameters
            .into_iter()
            .map(|(name, tensor)| Parameter {
                name,
                tensor,
                group: 0,
            })
            .collect();
        Self::with_layout(&parameters, LayoutOptions::default(), 0)
    }

    /// Moves `parameters`, in the order of construction, into flat buffers. Every layer that holds one of the tensors keeps
    /// it and sees the new storage. They are expected to become ready in the reverse order: backward reaches the last layer
    /// first; [`Arena::rearrange`] follows what is seen. `shard` is the part of `options.shards` that is updated here.
    ///
    /// # Errors
    /// Where memory runs out, or a tensor is no dense leaf.
    pub fn with_layout(
        parameters: &[Parameter<'_>],
        options: LayoutOptions,
        shard: usize,
    ) -> Result<Self, ArenaError> {
        let specs: Vec<Spec> = parameters
            .iter()
            .map(|parameter| spec(parameter.name, parameter.tensor, parameter.group))
            .collect();
        let leaves: Vec<Tensor> = parameters
            .iter()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect();
        let order: Vec<usize> = (0..specs.len()).rev().collect();
        let layout = Layout::new(&specs, &order, options);
        let mut arena = Self {
            specs,
            leaves,
            parts: parts(&layout, shard),
            layout,
            shard,
            buffers: Vec::new(),
        };
        for number in 0..arena.layout.buffers.len() {
            let buffer = arena.make_buffer(number)?;
            arena.buffers.push(buffer);
            arena.point(number)?;
        }
        Ok(arena)
    }

    fn make_buffer(&self, number: usize) -> Result<FlatBuffer, ArenaError> {
        let layout = &self.layout.buffers[number];
        let data = pack(layout, &self.leaves)?;
        Ok(FlatBuffer {
            kind: layout.kind,
            group: layout.group,
            grad: data.f_zeros_like()?,
            data,
            slots: layout.slots.clone(),
            grad_memory: None,
            data_memory: None,
        })
    }

    /// Makes the parts of a buffer the data and the gradients of its parameters.
    fn point(&self, number: usize) -> Result<(), ArenaError> {
        let buffer = &self.buffers[number];
        for slot in &buffer.slots {
            let leaf = &self.leaves[slot.parameter];
            tensor::set_data(leaf, &slot.view(&buffer.data)?).map_err(moving(&slot.name))?;
            tensor::set_grad(leaf, &slot.view(&buffer.grad)?).map_err(moving(&slot.name))?;
        }
        Ok(())
    }

    /// Moves into memory that `allocate` (elements, dtype) gives, zeroed, what the ranks exchange: the gradients, and with
    /// shards the parameters. What it gives no memory for stays. Every rank asks for the same in the same order.
    ///
    /// # Errors
    /// Where there is no memory.
    pub fn share(
        &mut self,
        mut allocate: impl FnMut(usize, Kind) -> Result<Option<Tensor>, CollectiveError>,
    ) -> Result<(), ArenaError> {
        let with_data = self.shards() > 1;
        for number in 0..self.buffers.len() {
            let (capacity, len) = (self.layout.capacity(number), self.layout.buffers[number].len);
            let buffer = &mut self.buffers[number];
            if let Some(memory) = allocate(capacity as usize, buffer.kind)? {
                buffer.grad = memory.f_narrow(0, 0, len)?;
                buffer.grad_memory = Some(memory);
            }
            if with_data && let Some(memory) = allocate(capacity as usize, buffer.kind)? {
                let mut data = memory.f_narrow(0, 0, len)?;
                tch::no_grad(|| data.f_copy_(&buffer.data))?;
                buffer.data = data;
                buffer.data_memory = Some(memory);
            }
            self.point(number)?;
        }
        Ok(())
    }

    /// The buffers, one per dtype and optimizer group.
    pub fn buffers(&self) -> &[FlatBuffer] {
        &self.buffers
    }

    /// Where the buffers lie.
    pub fn device(&self) -> Device {
        self.buffers
            .first()
            .map_or(Device::Cpu, |buffer| buffer.data.device())
    }

    /// What collecting updated parameters from the ranks takes for a moment, in bytes, where they do not lie in memory that the
    /// ranks share: whoever exchanges them by messages works on two buckets at a time, and takes each of them twice.
    pub fn gathering_bytes(&self) -> u64 {
        let bytes = |bucket: &Bucket| {
            let buffer = &self.buffers[bucket.buffer];
            match buffer.data_memory {
                Some(_) => 0,
                None => {
                    (bucket.range.end - bucket.range.start) as u64 * buffer.kind.elt_size_in_bytes() as u64
                }
            }
        };
        match self.shards() {
            1 => 0,
            _ => 4 * self.buckets().iter().map(bytes).max().unwrap_or(0),
        }
    }

    /// What is reduced together, in the order in which it becomes complete.
    pub fn buckets(&self) -> &[Bucket] {
        &self.layout.buckets
    }

    /// What this rank's optimizer updates.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What `shard` updates: [`Arena::parts`] of another rank.
    pub fn parts_of(&self, shard: usize) -> Vec<Part> {
        parts(&self.layout, shard)
    }

    /// What this rank updates of flat tensors laid out like the buffers, one each: the tensors themselves, or with shards
    /// copies of the parts, which do not hold on to the whole.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn cut(&self, flats: Vec<Tensor>) -> Result<Vec<Tensor>, TchError> {
        if self.shards() == 1 {
            return Ok(flats);
        }
        let copy = |part: &Part| {
            let view = part.of(&flats[part.buffer])?;
            let mut own = view.f_empty_like()?;
            tch::no_grad(|| own.f_copy_(&view))?;
            Ok(own)
        };
        self.parts.iter().map(copy).collect()
    }

    /// Into how many parts the update is cut; 1 where every rank updates everything.
    pub fn shards(&self) -> usize {
        self.layout.options.shards
    }

    /// Which of them is updated here.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// The leaves that the layers hold, in the order of construction.
    pub fn leaves(&self) -> &[Tensor] {
        &self.leaves
    }

    /// The places of the gradients, in the parameters' shapes and the order of construction.
    ///
    /// # Errors
    /// None known.
    pub fn grads(&self) -> Result<Vec<Tensor>, TchError> {
        let mut grads: Vec<Tensor> = self.leaves.iter().map(|_| Tensor::new()).collect();
        for buffer in &self.buffers {
            for slot in &buffer.slots {
                grads[slot.parameter] = slot.view(&buffer.grad)?;
            }
        }
        Ok(grads)
    }

    /// The parameters' names, in the order of construction.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }

    /// The number of parameters' elements, without alignment.
    pub fn parameters(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.numel() as u64).sum()
    }

    /// The bytes of the parameters' buffers; the gradients' take as many again.
    pub fn bytes(&self) -> u64 {
        self.buffers
            .iter()
            .map(|b| b.data.numel() as u64 * b.kind.elt_size_in_bytes() as u64)
            .sum()
    }

    /// Sets all gradients to zero.
    ///
    /// # Errors
    /// None known.
    pub fn zero_grad(&self) -> Result<(), TchError> {
        tch::no_grad(|| {
            self.buffers
                .iter()
                .try_for_each(|buffer| buffer.grad.shallow_clone().f_zero_().map(drop))
        })
    }

    /// The gradients of the parts that this rank updates.
    ///
    /// # Errors
    /// None known.
    pub fn own_grads(&self) -> Result<Vec<Tensor>, TchError> {
        self.parts
            .iter()
            .map(|part| part.of(&self.buffers[part.buffer].grad))
            .collect()
    }

    /// Multiplies the gradients of the parts that this rank updates.
    ///
    /// # Errors
    /// None known.
    pub fn scale_grad(&self, factor: f64) -> Result<(), TchError> {
        let device = self.device();
        tch::no_grad(|| {
            self.own_grads()?
                .iter_mut()
                .try_for_each(|grad| patiently(device, || grad.f_mul_scalar_(factor).map(drop)))
        })
    }

    /// The norms of the gradients that this rank updates, one for each part: scalars where the gradients are, which no host has
    /// waited for; not finite where an element is not.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn own_norms(&self) -> Result<Vec<Tensor>, TchError> {
        self.own_grads()?.iter().map(Tensor::f_norm).collect()
    }
}

/// Moves tensors into a new flat one; each becomes a view of it.
pub(super) fn pack(layout: &BufferLayout, tensors: &[Tensor]) -> Result<Tensor, ArenaError> {
    let device = layout
        .slots
        .first()
        .map_or(Device::Cpu, |slot| tensors[slot.parameter].device());
    let flat = Tensor::f_zeros([layout.len], (layout.kind, device))?;
    for slot in &layout.slots {
        let tensor = &tensors[slot.parameter];
        let mut view = slot.view(&flat)?;
        tch::no_grad(|| view.f_copy_(tensor))?;
        tensor::set_data(tensor, &view).map_err(moving(&slot.name))?;
    }
    Ok(flat)
}

/// What the layout needs to know of a tensor.
pub(super) fn spec(name: &str, tensor: &Tensor, group: usize) -> Spec {
    Spec {
        name: name.to_owned(),
        shape: tensor.size(),
        strides: tensor.stride(),
        kind: tensor.kind(),
        group,
    }
}

fn moving(name: &str) -> impl FnOnce(ShimError) -> ArenaError {
    let name = name.to_owned();
    move |source| ArenaError::Move { name, source }
}

#[cfg(test)]
mod tests;
