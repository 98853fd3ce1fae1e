//! The state of a training as one table. Rows are the tensors of the model that training changes. Columns are
//! their data, gradients, optimizer moments and moving average.
//!
//! A block has all rows of one dtype and optimizer group; a column has one flat tensor per block. Reduction,
//! clipping, optimizer, averages and checkpoints use ranges of these: one kernel instead of hundreds, no
//! copies, exact memory counts. Trained rows are in the order of backward, so a bucket is a range.

use dtrain_torch_shim::{ShimError, tensor};
use tch::{Device, Kind, TchError, Tensor};

use super::column::{ColumnSpec, Role, Rows};
use super::error::{Result, StateError};
use super::group_options::GroupOptions;
use super::layout::{Block, Bucket, Group, Layout, LayoutOptions, Part, Row, Slot, narrow};
use crate::collectives::CollectiveError;
use crate::models::Shadow;
use crate::out_of_memory::retry_on_oom;
use crate::tensors::bytes;

/// A tensor of the model, as input for a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter<'a> {
    pub name: &'a str,
    /// The leaf that the layers use.
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
    /// Memory of the process group that begins with `flat`, large enough for the same rows in any order.
    pub(super) memory: Option<Tensor>,
}

impl Flat {
    /// Copies the values into `memory`, if given.
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
    /// The number of trained rows, which come first.
    pub(super) trained: usize,
    /// By trained row: the number of its updates.
    pub(crate) updates: Vec<u64>,
    pub(super) layout: Layout,
    pub(super) shard: usize,
    /// By block.
    pub(super) data: Vec<Flat>,
    /// By trained block.
    pub(super) grad: Vec<Flat>,
    pub(super) columns: Vec<Column>,
    /// Trained rows that have a shadow, with the slot where their layers find it.
    pub(super) shadow_slots: Vec<(usize, Shadow)>,
}

impl Table {
    /// Moves `parameters` (trained ones first, each kind in the order of construction) into blocks; layers
    /// that hold a tensor see its new storage. Expects gradients in reverse order; [`Table::rearrange`] sets
    /// the observed order. `shard` is the part of `options.shards` that this rank updates.
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
            shadow_slots: Vec::new(),
        };
        table.enter_phase(parameters, &crate::collectives::Ranks::single())?;
        Ok(table)
    }

    /// Creates a table as `Table::new` does, from trained parameters in one group, without shards.
    pub fn of<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Self> {
        let in_one = parameters.into_iter().map(|(name, tensor)| (name, tensor, 0));
        Self::of_groups(in_one, &[GroupOptions::plain(0.0)])
    }

    /// Creates a table as `Table::of` does, from parameters with the numbers of their groups.
    pub fn of_groups<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a Tensor, usize)>,
        groups: &[GroupOptions],
    ) -> Result<Self> {
        let parameter = |(name, tensor, number): (_, _, usize)| {
            let is_matrix = groups.get(number).is_some_and(|group| group.is_matrix);
            Parameter { name, tensor, group: Group::trained(number, is_matrix) }
        };
        let parameters: Vec<Parameter<'_>> = parameters.into_iter().map(parameter).collect();
        Self::new(&parameters, LayoutOptions::default(), 0)
    }

    /// Adds a column with its first values.
    pub fn add_column(&mut self, spec: ColumnSpec) -> Result<(), TchError> {
        let parts = self.parts(spec.role).into_iter();
        let held = parts.map(|part| self.initial_values(spec.role, &part)).collect::<Result<_, _>>()?;
        self.columns.push(Column { spec, held });
        Ok(())
    }

    pub(super) fn initial_values(&self, role: Role, part: &Part) -> Result<Tensor, TchError> {
        role.initial(&narrow(&self.data[part.block].flat, &part.range)?)
    }

    /// Returns the parts of columns of this role that this rank holds.
    pub(crate) fn parts(&self, role: Role) -> Vec<Part> {
        match role {
            Role::Moment(_) => self.parts_of(role, self.shard),
            Role::Average => self.layout.whole_blocks(|group| role.has_rows(group)).collect(),
            Role::Shadow(_) => self.shadow_parts(),
        }
    }

    /// Returns the parts of a column of the optimizer's state that another rank holds and updates.
    pub(crate) fn parts_of(&self, role: Role, shard: usize) -> Vec<Part> {
        self.layout.shard_parts(shard, |group| role.has_rows(group))
    }

    /// Points the rows' tensors to their views of a block.
    pub(super) fn point_data(&self, block: usize) -> Result<()> {
        let flat = &self.data[block].flat;
        self.point_rows(block, |leaf, slot| tensor::set_data(leaf, &slot.view(flat)?))
    }

    /// Points the gradients of trained rows to their views of a block.
    pub(super) fn point_grad(&self, block: usize) -> Result<()> {
        let Some(Flat { flat, .. }) = self.grad.get(block) else { return Ok(()) };
        self.point_rows(block, |leaf, slot| tensor::set_grad(leaf, &slot.view(flat)?))
    }

    fn point_rows(
        &self,
        block: usize,
        point: impl Fn(&Tensor, &Slot) -> Result<(), ShimError>,
    ) -> Result<()> {
        for slot in &self.layout.blocks[block].slots {
            point(&self.leaves[slot.row], slot).map_err(StateError::moved(&slot.name))?;
        }
        Ok(())
    }

    /// Moves the gradients, and with shards the parameters, into zeroed memory that `allocate` (elements,
    /// dtype) returns; those already moved stay, as do those for which it returns None. Every rank makes the
    /// same calls in the same order.
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
            self.point_data(block)?;
            self.point_grad(block)?;
        }
        Ok(())
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.layout.blocks
    }

    /// Returns the data of every block; the moving average follows it, and the ranks start with equal values.
    pub fn data(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.data.iter().map(|flat| &flat.flat)
    }

    pub(crate) fn grad(&self, block: usize) -> &Tensor {
        &self.grad[block].flat
    }

    /// Returns this rank's tensors of a column, one for each of `Table::parts`, for copies in both
    /// directions. None if the column does not exist.
    pub fn column(&self, name: &str) -> Option<&[Tensor]> {
        let column = self.columns.iter().find(|column| column.spec.name == name);
        column.map(|column| column.held.as_slice())
    }

    /// Returns the columns that checkpoints contain, in the order in which they were added.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (ColumnSpec, &[Tensor])> {
        let saved = self.columns.iter().filter(|column| column.spec.role.is_saved());
        saved.map(|column| (column.spec, column.held.as_slice()))
    }

    /// Returns this rank's bytes of the columns for whose role `of` is true.
    pub(crate) fn column_bytes(&self, of: impl Fn(Role) -> bool) -> u64 {
        let columns = self.columns.iter().filter(|column| of(column.spec.role));
        columns.flat_map(|column| column.held.iter().map(bytes)).sum()
    }

    /// Returns the columns of the optimizer's state for these rows: one tensor for every part that this rank updates.
    pub(crate) fn moments_of(&self, rows: Rows) -> Vec<&[Tensor]> {
        let columns = self.columns().filter(|(spec, _)| spec.role == Role::Moment(rows));
        columns.map(|(_, held)| held).collect()
    }

    /// Returns the number of elements of the optimizer's state over all ranks, without gaps for alignment.
    pub(crate) fn moment_elements(&self) -> u64 {
        let columns = self.columns.iter().filter(|column| column.spec.role.is_moment());
        let rows = |column: &Column| {
            self.rows
                .iter()
                .filter(|row| column.spec.role.has_rows(row.group))
                .map(Row::elements)
                .sum::<u64>()
        };
        columns.map(rows).sum()
    }

    /// Returns the most elements of the optimizer's state for an element of a parameter.
    pub(crate) fn most_moments(&self) -> usize {
        [Rows::Elements, Rows::Matrices]
            .map(|rows| self.moments_of(rows).len())
            .into_iter()
            .max()
            .unwrap_or_default()
    }

    pub(crate) fn device(&self) -> Device {
        self.leaves.first().map_or(Device::Cpu, Tensor::device)
    }

    /// Returns the scratch bytes for gathering updated parameters: 4 times the largest bucket outside shared
    /// memory, because an exchange by messages holds two copies of two buckets at a time. NCCL gathers in place.
    pub(crate) fn gathering_bytes(&self) -> u64 {
        if self.shards() == 1 || self.device().is_cuda() {
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

    /// Returns the number of shards of an update; 1 if every rank updates everything.
    pub(crate) fn shards(&self) -> usize {
        self.layout.options.shards
    }

    /// Returns the shard that this rank updates.
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Returns the trained leaves that the layers hold, in the order of construction.
    pub fn leaves(&self) -> &[Tensor] {
        &self.leaves[..self.trained]
    }

    /// Returns the names of the trained rows, in the order of construction.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows[..self.trained].iter().map(|row| row.name.as_str())
    }

    /// Returns how many updates each trained row has had, in the order of construction.
    pub fn updates(&self) -> &[u64] {
        &self.updates
    }

    /// Adds `by` to the update counts of the rows that `used` marks: 1, or -1 to undo.
    pub(crate) fn count_updates(&mut self, used: &[bool], by: i64) {
        let used = self.updates.iter_mut().zip(used).filter(|(_, used)| **used);
        used.for_each(|(updates, _)| *updates = updates.saturating_add_signed(by));
    }

    /// Returns views of the gradients in the rows' shapes, in the order of construction.
    pub(crate) fn grads(&self) -> Result<Vec<Tensor>, TchError> {
        let mut grads: Vec<Tensor> = self.leaves().iter().map(|_| Tensor::new()).collect();
        for (block, grad) in self.layout.blocks.iter().zip(&self.grad) {
            for slot in &block.slots {
                grads[slot.row] = slot.view(&grad.flat)?;
            }
        }
        Ok(grads)
    }

    /// Returns the number of trained elements, without gaps for alignment.
    pub(crate) fn trained_elements(&self) -> u64 {
        self.leaves().iter().map(|leaf| leaf.numel() as u64).sum()
    }

    /// Returns the bytes of the data of the blocks for which `of` is true, including gaps between rows.
    pub(crate) fn bytes(&self, of: impl Fn(Group) -> bool) -> u64 {
        self.bytes_of(of, |block| block.len)
    }

    /// Returns the bytes of the gaps between the rows of these blocks.
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

    /// Returns the gradients of the parts that this rank updates.
    pub(crate) fn own_grads(&self) -> Result<Vec<Tensor>, TchError> {
        let parts = self.layout.shard_parts(self.shard, Group::is_trained);
        let grad = |part: &Part| narrow(&self.grad[part.block].flat, &part.range);
        parts.iter().map(grad).collect()
    }

    /// Multiplies the gradients of the parts that this rank updates.
    pub(crate) fn scale_grad(&self, factor: f64) -> Result<(), TchError> {
        let scale = |grad: &mut Tensor| retry_on_oom(self.device(), || grad.f_mul_scalar_(factor).map(drop));
        tch::no_grad(|| self.own_grads()?.iter_mut().try_for_each(scale))
    }

    /// Returns the norms of the gradients that this rank updates, one per part: scalars on the gradients'
    /// device, without a synchronization. A norm is not finite if an element is not.
    pub(crate) fn own_norms(&self) -> Result<Vec<Tensor>, TchError> {
        self.own_grads()?.iter().map(norm).collect()
    }
}

/// Returns the norm of a part. On a CPU it is one of float64: libtorch adds float32 there one after the other, so that the norm of a
/// million elements has five digits, and other ones after a resume, whose first step has its blocks in another order.
fn norm(grad: &Tensor) -> Result<Tensor, TchError> {
    /// Elements whose float64 are 2 MiB, which a cache holds.
    const PIECE: i64 = 1 << 18;
    if grad.device() != Device::Cpu {
        return grad.f_norm();
    }
    let pieces = grad.f_split(PIECE, 0)?;
    let norms = pieces.iter().map(|piece| piece.f_norm_scalaropt_dtype(2, Kind::Double));
    Tensor::f_stack(&norms.collect::<Result<Vec<_>, _>>()?, 0)?.f_norm()
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
