//! The state of a training as one table. Rows are the model's tensors that a training changes; columns are what is kept of each:
//! its data, its gradient, the optimizer's moments, its moving average.
//!
//! All rows of one dtype and optimizer group lie in one block, and a column holds one flat tensor for each block. The reduction,
//! clipping, the optimizer, averages and checkpoints work on ranges of these: one kernel instead of hundreds, no copies, and memory
//! that can be counted exactly. Trained rows lie in the order in which backward reaches them, so that a bucket is a range.

use dtrain_torch_shim::tensor;
use tch::{Device, Kind, TchError, Tensor};

use super::column::{ColumnSpec, Role};
use super::layout::{Block, Bucket, Group, Layout, LayoutOptions, Part, Row, Slot, narrow};
use crate::collectives::CollectiveError;
use crate::models::Shadow;
use crate::out_of_memory::patiently;
use crate::train_error::{Result, TrainError};

/// A tensor of the model on its way into a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter<'a> {
    pub name: &'a str,
    /// The leaf that the layers hold.
    pub tensor: &'a Tensor,
    pub group: Group,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) spec: ColumnSpec,
    /// One tensor for each of [`Table::parts`] of its role.
    pub(super) held: Vec<Tensor>,
}

/// Data or gradients of a block.
#[derive(Debug)]
pub(super) struct Flat {
    pub(super) flat: Tensor,
    /// What `flat` is the beginning of: memory of the group, with room for the same rows in any order.
    pub(super) memory: Option<Tensor>,
}

impl Flat {
    /// The same values in the memory that there is, if there is any.
    pub(super) fn moved(self, memory: Option<Tensor>) -> Result<Self, TchError> {
        let Some(memory) = memory else { return Ok(self) };
        let mut flat = memory.f_narrow(0, 0, self.flat.size1()?)?;
        tch::no_grad(|| flat.f_copy_(&self.flat))?;
        let memory = Some(memory);
        Ok(Self { flat, memory })
    }
}

/// The state of a training on this rank.
#[derive(Debug)]
pub struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) leaves: Vec<Tensor>,
    /// The first rows are trained.
    pub(super) trained: usize,
    /// By trained row: how many updates it has had.
    pub(crate) updates: Vec<u64>,
    pub(super) layout: Layout,
    pub(super) shard: usize,
    /// By block.
    pub(super) data: Vec<Flat>,
    /// By trained block.
    pub(super) grad: Vec<Flat>,
    pub(super) columns: Vec<Column>,
    /// Trained rows that have a shadow, and where their layers find it.
    pub(super) shadows: Vec<(usize, Shadow)>,
}

impl Table {
    /// Moves `parameters`, trained ones first and each kind in the order of construction, into blocks: a layer that holds one of the
    /// tensors sees the new storage. Trained rows are expected to become ready in the reverse order; [`Table::rearrange`] follows what
    /// is seen. `shard` is the part of `options.shards` that is updated here.
    pub(crate) fn new(parameters: &[Parameter<'_>], options: LayoutOptions, shard: usize) -> Result<Self> {
        let mut table = Self {
            rows: Vec::new(),
            leaves: Vec::new(),
            trained: 0,
            updates: Vec::new(),
            layout: Layout::new(&[], &[], options),
            shard,
            data: Vec::new(),
            grad: Vec::new(),
            columns: Vec::new(),
            shadows: Vec::new(),
        };
        table.enter(parameters, &crate::collectives::Ranks::single())?;
        Ok(table)
    }

    /// As `Table::new`, of trained parameters in one group that is not sharded.
    pub fn of<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Self> {
        let group = Group::Trained(0);
        let parameter = |(name, tensor)| Parameter { name, tensor, group };
        let parameters: Vec<Parameter<'_>> = parameters.into_iter().map(parameter).collect();
        Self::new(&parameters, LayoutOptions::default(), 0)
    }

    /// Adds a column with its first values.
    pub fn add(&mut self, spec: ColumnSpec) -> Result<(), TchError> {
        let parts = self.parts(spec.role).into_iter();
        let held = parts.map(|part| self.first(spec.role, &part)).collect::<Result<_, _>>()?;
        self.columns.push(Column { spec, held });
        Ok(())
    }

    pub(super) fn first(&self, role: Role, part: &Part) -> Result<Tensor, TchError> {
        role.first(&narrow(&self.data[part.block].flat, &part.range)?)
    }

    /// What this rank holds of columns of this role.
    pub(crate) fn parts(&self, role: Role) -> Vec<Part> {
        match role {
            Role::Moment => self.layout.shard(self.shard),
            Role::Average => self.layout.whole(|group| role.has(group)).collect(),
            Role::Shadow(_) => self.shadowed(),
        }
    }

    /// What another rank holds of the optimizer's state, and updates.
    pub(crate) fn parts_of(&self, shard: usize) -> Vec<Part> {
        self.layout.shard(shard)
    }

    /// Makes the places in a block the data, and of trained rows the gradients, of its rows.
    pub(super) fn point(&self, block: usize) -> Result<()> {
        for slot in &self.layout.blocks[block].slots {
            let leaf = &self.leaves[slot.row];
            let moved = TrainError::moved(&slot.name);
            tensor::set_data(leaf, &slot.view(&self.data[block].flat)?).map_err(moved)?;
            if let Some(grad) = self.grad.get(block) {
                tensor::set_grad(leaf, &slot.view(&grad.flat)?).map_err(moved)?;
            }
        }
        Ok(())
    }

    /// Moves into memory that `allocate` (elements, dtype) gives, zeroed, what the ranks exchange: the gradients, and with shards the
    /// parameters. What it gives no memory for, or has given it for, stays. Every rank asks for the same in the same order.
    pub(crate) fn share(
        &mut self,
        mut allocate: impl FnMut(usize, Kind) -> Result<Option<Tensor>, CollectiveError>,
    ) -> Result<()> {
        let with_data = self.shards() > 1;
        for block in 0..self.grad.len() {
            let kind = self.layout.blocks[block].kind;
            let capacity = self.layout.capacity(block) as usize;
            for (flat, is_shared) in [(&mut self.grad[block], true), (&mut self.data[block], with_data)] {
                if is_shared && flat.memory.is_none() {
                    let own = Flat { flat: flat.flat.shallow_clone(), memory: None };
                    *flat = own.moved(allocate(capacity, kind)?)?;
                }
            }
            self.point(block)?;
        }
        Ok(())
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.layout.blocks
    }

    /// The data of every block: what training moves. The ranks begin with the same of it, and the moving average is of it.
    pub fn data(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.data.iter().map(|flat| &flat.flat)
    }

    pub(crate) fn grad(&self, block: usize) -> &Tensor {
        &self.grad[block].flat
    }

    /// What this rank holds of a column, one tensor for each of `Table::parts`; they may be copied from and into. None where there is
    /// no such column.
    pub fn column(&self, name: &str) -> Option<&[Tensor]> {
        let column = self.columns.iter().find(|column| column.spec.name == name);
        column.map(|column| column.held.as_slice())
    }

    /// The columns that last, in the order in which they were added.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (ColumnSpec, &[Tensor])> {
        let lasting = self.columns.iter().filter(|column| column.spec.role.lasts());
        lasting.map(|column| (column.spec, column.held.as_slice()))
    }

    /// The bytes that this rank holds of the columns for whose role `of` holds.
    pub(crate) fn column_bytes(&self, of: impl Fn(Role) -> bool) -> u64 {
        let columns = self.columns.iter().filter(|column| of(column.spec.role));
        columns.flat_map(|column| column.held.iter().map(bytes)).sum()
    }

    /// The optimizer's state, column by column: one tensor for every part that is updated here.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (&'static str, &[Tensor])> {
        let moments = self.columns().filter(|(spec, _)| spec.role == Role::Moment);
        moments.map(|(spec, held)| (spec.name, held))
    }

    pub(crate) fn device(&self) -> Device {
        self.leaves.first().map_or(Device::Cpu, Tensor::device)
    }

    /// What collecting updated parameters from the ranks takes for a moment, in bytes, where they do not lie in memory that the
    /// ranks share: whoever exchanges them by messages works on two buckets at a time, and takes each of them twice.
    pub(crate) fn gathering_bytes(&self) -> u64 {
        if self.shards() == 1 {
            return 0;
        }
        let by_messages = self.buckets().iter().filter(|bucket| self.data[bucket.block].memory.is_none());
        let bytes = by_messages.map(|bucket| {
            let width = self.layout.blocks[bucket.block].kind.elt_size_in_bytes();
            (bucket.range.end - bucket.range.start) as u64 * width as u64
        });
        4 * bytes.max().unwrap_or(0)
    }

    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.layout.buckets
    }

    /// Into how many parts the update is cut; 1 where every rank updates everything.
    pub(crate) fn shards(&self) -> usize {
        self.layout.options.shards
    }

    /// Which of them is updated here.
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// The trained leaves that the layers hold, in the order of construction.
    pub fn leaves(&self) -> &[Tensor] {
        &self.leaves[..self.trained]
    }

    /// The names of the trained rows, in the order of construction.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows[..self.trained].iter().map(|row| row.name.as_str())
    }

    /// How many updates each trained row has had, in the order of construction.
    pub fn updates(&self) -> &[u64] {
        &self.updates
    }

    /// Counts an update of the rows that `used` marks, or by -1 takes back the last one.
    pub(crate) fn count(&mut self, used: &[bool], by: i64) {
        let used = self.updates.iter_mut().zip(used).filter(|(_, used)| **used);
        used.for_each(|(updates, _)| *updates = updates.saturating_add_signed(by));
    }

    /// The places of the gradients, in the rows' shapes and the order of construction.
    pub(crate) fn grads(&self) -> Result<Vec<Tensor>, TchError> {
        let mut grads: Vec<Tensor> = self.leaves().iter().map(|_| Tensor::new()).collect();
        for (block, grad) in self.layout.blocks.iter().zip(&self.grad) {
            for slot in &block.slots {
                grads[slot.row] = slot.view(&grad.flat)?;
            }
        }
        Ok(grads)
    }

    /// Without alignment.
    pub(crate) fn trained_elements(&self) -> u64 {
        self.leaves().iter().map(|leaf| leaf.numel() as u64).sum()
    }

    /// The bytes of the data of the blocks for which `of` holds, with the gaps between rows.
    pub(crate) fn bytes(&self, of: impl Fn(Group) -> bool) -> u64 {
        self.bytes_of(of, |block| block.len)
    }

    /// The bytes of the gaps between the rows of these blocks.
    pub(crate) fn gaps(&self, of: impl Fn(Group) -> bool) -> u64 {
        self.bytes_of(of, |block| block.len - block.slots.iter().map(Slot::len).sum::<i64>())
    }

    fn bytes_of(&self, of: impl Fn(Group) -> bool, elements: impl Fn(&Block) -> i64) -> u64 {
        let blocks = self.layout.blocks.iter().filter(|block| of(block.group));
        blocks.map(|block| elements(block) as u64 * block.kind.elt_size_in_bytes() as u64).sum()
    }

    /// Sets all gradients to zero.
    pub fn zero_grad(&self) -> Result<(), TchError> {
        let zero = |grad: &Flat| grad.flat.shallow_clone().f_zero_().map(drop);
        tch::no_grad(|| self.grad.iter().try_for_each(zero))
    }

    /// The gradients of the parts that this rank updates.
    pub(crate) fn own_grads(&self) -> Result<Vec<Tensor>, TchError> {
        let parts = self.parts(Role::Moment);
        let grad = |part: &Part| narrow(&self.grad[part.block].flat, &part.range);
        parts.iter().map(grad).collect()
    }

    /// Multiplies the gradients of the parts that this rank updates.
    pub(crate) fn scale_grad(&self, factor: f64) -> Result<(), TchError> {
        let scale = |grad: &mut Tensor| patiently(self.device(), || grad.f_mul_scalar_(factor).map(drop));
        tch::no_grad(|| self.own_grads()?.iter_mut().try_for_each(scale))
    }

    /// The norms of the gradients that this rank updates, one for each part: scalars where the gradients are, for which no host has
    /// waited; not finite where an element is not.
    pub(crate) fn own_norms(&self) -> Result<Vec<Tensor>, TchError> {
        self.own_grads()?.iter().map(Tensor::f_norm).collect()
    }
}

pub(crate) fn bytes(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

pub(super) fn row(parameter: &Parameter<'_>) -> Row {
    Row {
        name: parameter.name.to_owned(),
        shape: parameter.tensor.size(),
        strides: parameter.tensor.stride(),
        kind: parameter.tensor.kind(),
        group: parameter.group,
    }
}

#[cfg(test)]
mod tests;
