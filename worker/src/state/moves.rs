//! All moves of a table's values, written once for every column: a new order of the rows, other rows in
//! another phase, and gathering whole rows from the ranks that hold parts of them.

use std::collections::HashMap;
use std::ops::Range;

use dtrain_torch_shim::tensor;
use tch::{Device, TchError, Tensor};

use super::column::{Keep, Role};
use super::error::{Result, StateError};
use super::layout::{Block, Group, Layout, Part, Row, Slot, narrow};
use super::shards::Owned;
use super::table::{Flat, Parameter, Table, row};
use crate::collectives::{Collective, Ranks};
use crate::out_of_memory::retry_on_oom;

/// The previous layout, with the positions of its rows.
struct OldLayout {
    layout: Layout,
    shard: usize,
    slots: HashMap<String, (usize, Slot)>,
}

impl OldLayout {
    fn new(layout: Layout, shard: usize) -> Self {
        let blocks = layout.blocks.iter().enumerate();
        let slots = blocks.flat_map(|(number, block)| {
            block.slots.iter().map(move |slot| (slot.name.clone(), (number, slot.clone())))
        });
        Self { slots: slots.collect(), layout, shard }
    }

    fn find_same_block(&self, block: &Block) -> Option<usize> {
        self.layout.blocks.iter().position(|old| old.has_same_rows(block))
    }

    fn find_kind(&self, block: &Block) -> Option<usize> {
        let is = |old: &Block| (old.kind, old.group) == (block.kind, block.group);
        self.layout.blocks.iter().position(is)
    }

    /// Returns the earlier block and range of these elements of a row.
    fn old_range(&self, slot: &Slot, range: &Range<i64>) -> Option<(usize, Range<i64>)> {
        let (block, old) = self.slots.get(&slot.name)?;
        let start = old.offset + range.start - slot.offset;
        Some((*block, start..start + range.end - range.start))
    }
}

/// The rows of a new layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Those of the old layout.
    Same,
    Other,
}

impl Table {
    /// Frees gradients and the columns that the next phase does not keep. Until [`Table::enter_phase`] only the
    /// data and the kept columns may be used.
    pub(crate) fn leave_phase(&mut self, keep: Keep) -> Result<()> {
        self.remove_shadow();
        for (leaf, name) in self.leaves().iter().zip(self.names()) {
            tensor::clear_grad(leaf).map_err(StateError::moved(name))?;
        }
        self.grad.clear();
        self.columns.retain(|column| column.spec.role.is_kept(keep));
        if !keep.moments {
            self.updates.fill(0);
        }
        Ok(())
    }

    /// Makes these parameters the rows, trained ones first, each kind in the order of construction. Rows that
    /// stay keep their values; new rows start with the column's first values. Tensors that leave the table
    /// get separate storage. Every rank calls it after [`Table::leave_phase`] and before [`Table::share`].
    pub(crate) fn enter_phase(&mut self, parameters: &[Parameter<'_>], ranks: &Ranks) -> Result<()> {
        let rows = parameters.iter().map(row).collect();
        let old_rows = std::mem::replace(&mut self.rows, rows);
        let leaf = |parameter: &Parameter<'_>| parameter.tensor.shallow_clone();
        let leaves = parameters.iter().map(leaf).collect();
        let old_leaves = std::mem::replace(&mut self.leaves, leaves);
        for (old, leaf) in old_rows.iter().zip(&old_leaves) {
            if !self.rows.iter().any(|row| row.name == old.name) {
                let mut own = leaf.f_empty_like()?;
                tch::no_grad(|| own.f_copy_(leaf))?;
                tensor::set_data(leaf, &own).map_err(StateError::moved(&old.name))?;
            }
        }
        // A row with other state begins anew.
        let key = |row: &Row| (row.name.clone(), matches!(row.group, Group::Matrices(_)));
        let updates: HashMap<_, u64> = old_rows.iter().map(key).zip(self.updates.iter().copied()).collect();
        self.trained = self.rows.iter().take_while(|row| row.group.is_trained()).count();
        let earlier = |row: &Row| updates.get(&key(row)).copied().unwrap_or(0);
        self.updates = self.rows[..self.trained].iter().map(earlier).collect();
        let order: Vec<usize> = (0..self.trained).rev().collect();
        self.apply_layout(self.layout_of(&order), Rows::Other, ranks)
    }

    /// Lays the trained rows out in `order`, in which their gradients became ready: row numbers, the same on
    /// every rank. Gradients are zero afterwards. Returns false if nothing changes.
    pub(crate) fn rearrange(&mut self, order: &[usize], ranks: &Ranks) -> Result<bool> {
        let layout = self.layout_of(order);
        if layout == self.layout {
            return Ok(false);
        }
        self.apply_layout(layout, Rows::Same, ranks).map(|()| true)
    }

    fn layout_of(&self, order: &[usize]) -> Layout {
        let others = self.trained..self.rows.len();
        let order: Vec<usize> = order.iter().copied().chain(others).collect();
        Layout::new(&self.rows, &order, self.layout.options)
    }

    /// Moves all values into `layout`. A new order of the same rows reuses shared memory. Retries failed allocations,
    /// because the other ranks wait. Drops the shadow; [`Table::set_shadow`] creates it again.
    fn apply_layout(&mut self, layout: Layout, rows: Rows, ranks: &Ranks) -> Result<()> {
        self.remove_shadow();
        let device = self.device();
        let data = retry_on_oom(device, || self.new_data(&layout))?;
        let old = OldLayout::new(std::mem::replace(&mut self.layout, layout), self.shard);
        self.move_data(data, rows, &old)?;
        let blocks = 0..self.layout.blocks.len();
        // Frees the old data before new gradients take as much.
        blocks.clone().try_for_each(|block| self.point_data(block))?;
        self.move_grad(&old)?;
        self.zero_grad()?;
        blocks.into_iter().try_for_each(|block| self.point_grad(block))?;
        for number in 0..self.columns.len() {
            let column = &self.columns[number];
            let whole = old.whole_column(column.spec.role, &column.held, device, ranks)?;
            let held = retry_on_oom(device, || self.new_column(column.spec.role, &whole, &old))?;
            self.columns[number].held = held;
        }
        Ok(())
    }

    /// Returns the data of every block of a new layout; None for a block that does not change.
    fn new_data(&self, layout: &Layout) -> Result<Vec<Option<Tensor>>, TchError> {
        let data = |block: &Block| {
            if self.layout.blocks.iter().any(|old| old.has_same_rows(block)) {
                return Ok(None);
            }
            let flat = Tensor::f_zeros([block.len], (block.kind, self.device()))?;
            for slot in &block.slots {
                tch::no_grad(|| slot.view(&flat)?.f_copy_(&self.leaves[slot.row]))?;
            }
            Ok(Some(flat))
        };
        layout.blocks.iter().map(data).collect()
    }

    fn move_data(&mut self, data: Vec<Option<Tensor>>, rows: Rows, old: &OldLayout) -> Result<()> {
        let mut before: Vec<Option<Flat>> = self.data.drain(..).map(Some).collect();
        let mut take = |at: Option<usize>| at.and_then(|at| before[at].take());
        for (block, new) in self.layout.blocks.iter().zip(data) {
            let flat = match new {
                None => take(old.find_same_block(block)),
                Some(flat) => {
                    let earlier = take(old.find_kind(block).filter(|_| rows == Rows::Same));
                    Some(Flat { flat, memory: None }.moved(earlier.and_then(|earlier| earlier.memory))?)
                }
            };
            let lost = || TchError::Convert("a block of a table was moved twice".into());
            self.data.push(flat.ok_or_else(lost)?);
        }
        Ok(())
    }

    /// Reuses the memory of the gradients within a phase.
    fn move_grad(&mut self, old: &OldLayout) -> Result<()> {
        let mut before: Vec<Option<Flat>> = self.grad.drain(..).map(Some).collect();
        for (block, data) in self.layout.blocks.iter().zip(&self.data) {
            if !block.group.is_trained() {
                break;
            }
            let earlier = old.find_kind(block).and_then(|at| before.get_mut(at)?.take());
            let flat = match earlier {
                Some(Flat { memory: Some(memory), .. }) => {
                    Flat { flat: memory.f_narrow(0, 0, block.len)?, memory: Some(memory) }
                }
                Some(Flat { flat, .. }) if flat.size1()? == block.len => Flat { flat, memory: None },
                _ => Flat { flat: data.flat.f_zeros_like()?, memory: None },
            };
            self.grad.push(flat);
        }
        Ok(())
    }

    /// Returns this rank's parts of a column, with values from `whole`, the complete old column by block.
    fn new_column(
        &self,
        role: Role,
        whole: &[Option<Tensor>],
        old: &OldLayout,
    ) -> Result<Vec<Tensor>, TchError> {
        let part = |part: &Part| {
            let held = self.initial_values(role, part)?;
            for slot in &self.layout.blocks[part.block].slots {
                let Some(range) = part.overlap(slot) else { continue };
                if let Some((at, from)) = old.old_range(slot, &range)
                    && let Some(Some(flat)) = whole.get(at)
                {
                    let from = narrow(flat, &from)?;
                    tch::no_grad(|| part.view(&held, &range)?.f_copy_(&from))?;
                }
            }
            Ok(held)
        };
        self.parts(role).iter().map(part).collect()
    }

    /// Returns the rows that columns of this role contain, as [`Table::slots`] does.
    pub(crate) fn slots_of(&self, role: Role) -> Vec<(usize, &Slot)> {
        let mut slots = self.slots();
        slots.retain(|(block, _)| role.has_rows(self.layout.blocks[*block].group));
        slots
    }

    /// Returns all rows with their block numbers, ordered by row number, independent of the layout.
    pub(crate) fn slots(&self) -> Vec<(usize, &Slot)> {
        let mut slots: Vec<(usize, &Slot)> = Vec::with_capacity(self.rows.len());
        for (number, block) in self.layout.blocks.iter().enumerate() {
            slots.extend(block.slots.iter().map(|slot| (number, slot)));
        }
        slots.sort_by_key(|(_, slot)| slot.row);
        slots
    }

    /// Gathers the data that the ranks have updated. Does nothing if updates are not sharded.
    pub(crate) fn gather_data(&self, ranks: &Ranks) -> Result<()> {
        let flats: Vec<Option<&Tensor>> = self.data().map(Some).collect();
        gather(&self.layout, self.shard, &flats, ranks)
    }
}

impl OldLayout {
    /// Returns a whole column by block; None for blocks without it. Gathers one of the optimizer from all ranks.
    fn whole_column(
        &self,
        role: Role,
        held: &[Tensor],
        device: Device,
        ranks: &Ranks,
    ) -> Result<Vec<Option<Tensor>>> {
        let layout = &self.layout;
        let of = |group| role.has_rows(group);
        if !role.is_moment() || layout.options.shards <= 1 {
            let mut whole: Vec<Option<Tensor>> = layout.blocks.iter().map(|_| None).collect();
            for (part, held) in layout.whole_blocks(of).zip(held) {
                whole[part.block] = Some(held.shallow_clone());
            }
            return Ok(whole);
        }
        let zeros = |block: &Block| {
            let zeros = || retry_on_oom(device, || Tensor::f_zeros([block.len], (block.kind, device)));
            of(block.group).then(zeros).transpose()
        };
        let whole: Vec<Option<Tensor>> = layout.blocks.iter().map(zeros).collect::<Result<_, TchError>>()?;
        for (part, held) in layout.shard_parts(self.shard, of).iter().zip(held) {
            if let Some(flat) = &whole[part.block] {
                tch::no_grad(|| narrow(flat, &part.range)?.f_copy_(held))?;
            }
        }
        gather(layout, self.shard, &whole.iter().map(Option::as_ref).collect::<Vec<_>>(), ranks)?;
        Ok(whole)
    }
}

/// Returns the pieces of a row of `block` in `parts`, with memory `held`. Ranges count from the row's first
/// element, in memory order.
pub(crate) fn pieces(
    parts: &[Part],
    held: &[Tensor],
    block: usize,
    slot: &Slot,
) -> Result<Vec<(Range<i64>, Tensor)>, TchError> {
    let of_block = |(part, _): &(&Part, &Tensor)| part.block == block;
    let piece = |(part, held): (&Part, &Tensor)| {
        let range = part.overlap(slot)?;
        let own = part.view(held, &range);
        Some(own.map(|own| (range.start - slot.offset..range.end - slot.offset, own)))
    };
    let of_block = std::iter::zip(parts, held).filter(of_block);
    of_block.filter_map(piece).collect()
}

/// Gathers flat tensors by block: every rank has filled its parts and receives the others.
fn gather(layout: &Layout, shard: usize, flats: &[Option<&Tensor>], ranks: &Ranks) -> Result<()> {
    let shards = layout.options.shards;
    if shards <= 1 {
        return Ok(());
    }
    let (mut equal, mut owned) = (Vec::new(), Vec::new());
    for bucket in &layout.buckets {
        let Some(flat) = flats[bucket.block] else { continue };
        if bucket.owned.is_empty() {
            equal.push((narrow(flat, &bucket.range)?, narrow(flat, &bucket.part(shard, shards))?));
        }
        for Owned { shard, range } in &bucket.owned {
            owned.push((narrow(flat, range)?, *shard));
        }
    }
    let equal = equal.iter().map(|(output, input)| Collective::AllGather { output, input });
    let owned = owned.iter().map(|(rows, shard)| Collective::Broadcast(rows, *shard));
    Ok(ranks.start_all(&equal.chain(owned).collect::<Vec<_>>())?.wait()?)
}
