//! Positions of rows in the flat tensors of a column, and ranges to reduce together. Only arithmetic.

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use super::shards::{Owned, owners};

/// Parameters start on cache lines, as allocations of libtorch do.
const ALIGNMENT_BYTES: usize = 64;

/// The treatment of a row in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// A parameter that the optimizer updates, with the options of the group of this number.
    Trained(usize),
    /// One that it updates as a whole matrix, with these options.
    Matrices(usize),
    /// A parameter that was trained earlier and is frozen now: the moving average still moves towards it.
    Resting,
    /// A buffer of the model, of any dtype: running statistics, counters, flags.
    Statistics,
}

impl Group {
    /// Returns the position among the blocks: trained rows, then resting rows, then statistics.
    fn order(self) -> usize {
        match self {
            Self::Trained(_) | Self::Matrices(_) => 0,
            Self::Resting => 1,
            Self::Statistics => 2,
        }
    }

    pub(crate) fn is_trained(self) -> bool {
        self.options().is_some()
    }

    /// Returns the trained group with the options of this number.
    pub(super) fn trained(number: usize, is_matrix: bool) -> Self {
        match is_matrix {
            true => Self::Matrices(number),
            false => Self::Trained(number),
        }
    }

    /// Returns the number of the options of a trained group.
    pub(crate) fn options(self) -> Option<usize> {
        match self {
            Self::Trained(number) | Self::Matrices(number) => Some(number),
            Self::Resting | Self::Statistics => None,
        }
    }
}

/// A tensor of the model, as the layout sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub name: String,
    pub shape: Vec<i64>,
    /// Strides of a dense tensor, such as contiguous or channels-last.
    pub strides: Vec<i64>,
    pub kind: Kind,
    pub group: Group,
}

impl Row {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }
}

/// How blocks are divided into buckets and shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayoutOptions {
    /// Limit for the first bucket of a block: small, to begin communication early.
    pub first_bucket_bytes: usize,
    /// Limit for the other buckets: large, to keep the cost per message low.
    pub bucket_bytes: usize,
    /// The number of parts of each bucket: the ranks that share the optimizer's state, or 1.
    pub shards: usize,
    /// Whether all parts consist of whole rows. Otherwise they are equal, except those of [`Group::Matrices`].
    pub whole_rows: bool,
}

impl Default for LayoutOptions {
    /// Returns the sizes of PyTorch's reducer (Li et al. 2020, arXiv 2006.15704).
    fn default() -> Self {
        Self { first_bucket_bytes: 1 << 20, bucket_bytes: 25 << 20, shards: 1, whole_rows: false }
    }
}

/// The position of one row in its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The row's number: trained rows come first; each kind of row is in the order of construction.
    pub row: usize,
    pub name: String,
    /// The first element in the block.
    pub offset: i64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
}

impl Slot {
    pub(crate) fn len(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Returns the row's elements in the block.
    pub(crate) fn range(&self) -> Range<i64> {
        self.offset..self.offset + self.len()
    }

    /// Returns the row's elements of a flat tensor of the block, in the row's shape and strides.
    pub(crate) fn view(&self, flat: &Tensor) -> Result<Tensor, TchError> {
        self.reshape(&narrow(flat, &self.range())?)
    }

    /// Views elements in memory order as a tensor of the row's shape.
    pub(crate) fn reshape(&self, elements: &Tensor) -> Result<Tensor, TchError> {
        elements.f_as_strided(self.shape.as_slice(), self.strides.as_slice(), None)
    }

    /// Copies a tensor of the row's shape into the block's order of elements.
    pub(crate) fn flatten(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let flat = Tensor::f_empty([self.len()], (tensor.kind(), tensor.device()))?;
        let mut view = self.reshape(&flat)?;
        tch::no_grad(|| view.f_copy_(tensor))?;
        Ok(flat)
    }

    /// Returns whether the row's elements have the same order in memory as in a file.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let in_order = |(&size, &stride): (&i64, &i64)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        };
        self.len() == 0 || self.shape.iter().zip(&self.strides).rev().all(in_order)
    }
}

/// A range of a block, held by one rank for a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub block: usize,
    pub range: Range<i64>,
}

impl Part {
    /// Returns the elements of a row of this block that the part contains; None if it contains none.
    pub(crate) fn overlap(&self, slot: &Slot) -> Option<Range<i64>> {
        let row = slot.range();
        let (start, end) = (row.start.max(self.range.start), row.end.min(self.range.end));
        (start < end).then_some(start..end)
    }

    /// Returns a range of the block as a view of `held`, the memory of this part.
    pub(crate) fn view(&self, held: &Tensor, range: &Range<i64>) -> Result<Tensor, TchError> {
        let start = range.start - self.range.start;
        held.f_narrow(0, start, range.end - range.start)
    }
}

pub(crate) fn narrow(flat: &Tensor, range: &Range<i64>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, range.start, range.end - range.start)
}

/// All rows of one dtype and group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub kind: Kind,
    pub group: Group,
    /// Rows in the order of their offsets.
    pub slots: Vec<Slot>,
    /// Elements, including the gaps for alignment, which stay zero.
    pub len: i64,
}

impl Block {
    /// Returns whether both blocks have the same rows at the same offsets.
    pub(super) fn has_same_rows(&self, other: &Self) -> bool {
        let same = |(a, b): (&Slot, &Slot)| {
            (&a.name, a.offset, &a.shape, &a.strides) == (&b.name, b.offset, &b.shape, &b.strides)
        };
        (self.kind, self.len, self.group.order()) == (other.kind, other.len, other.group.order())
            && self.slots.len() == other.slots.len()
            && self.slots.iter().zip(&other.slots).all(same)
    }
}

/// A range of one block, reduced in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub block: usize,
    /// Elements, gaps included; the number of shards divides the length.
    pub range: Range<i64>,
    pub rows: Vec<usize>,
    /// Its whole rows by shard, in order; empty if the parts are equal.
    pub owned: Vec<Owned>,
}

impl Bucket {
    /// Returns the ranges that shard `shard` of `shards` updates.
    pub(crate) fn ranges(&self, shard: usize, shards: usize) -> Vec<Range<i64>> {
        match self.owned.as_slice() {
            [] => vec![self.part(shard, shards)],
            all => all.iter().filter(|owned| owned.shard == shard).map(|owned| owned.range.clone()).collect(),
        }
    }

    /// Returns the part of shard `shard` of `shards`, if parts are equal.
    pub(crate) fn part(&self, shard: usize, shards: usize) -> Range<i64> {
        let len = (self.range.end - self.range.start) / shards as i64;
        let start = self.range.start + shard as i64 * len;
        start..start + len
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Blocks of trained rows, then of resting rows, then of statistics.
    pub blocks: Vec<Block>,
    /// Buckets of the trained rows, in the order in which they become complete.
    pub buckets: Vec<Bucket>,
    pub options: LayoutOptions,
}

impl Layout {
    /// Lays out `rows` in `order`, which has each row once; trained rows in the order of their gradients.
    pub(super) fn new(rows: &[Row], order: &[usize], options: LayoutOptions) -> Self {
        let mut layout = Self { blocks: Vec::new(), buckets: Vec::new(), options };
        let key = |row: &usize| (rows[*row].kind, rows[*row].group);
        let mut keys: Vec<(Kind, Group)> = Vec::new();
        for key in order.iter().map(key) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort_by_key(|(_, group)| group.order());
        for (kind, group) in keys {
            let members = order.iter().copied().filter(|row| key(row) == (kind, group));
            layout.add_block(rows, members, kind, group);
        }
        // A bucket is complete when its last row is complete.
        let mut ready = vec![0; rows.len()];
        for (position, &row) in order.iter().enumerate() {
            ready[row] = position;
        }
        let blocks = &layout.blocks;
        let last = |bucket: &Bucket| bucket.rows.iter().map(|&row| ready[row]).max();
        let buckets = &mut layout.buckets;
        buckets.retain(|bucket| blocks[bucket.block].group.is_trained());
        buckets.sort_by_key(last);
        if options.shards > 1 {
            let is_whole = |block: &Block| match block.group {
                Group::Matrices(_) => true,
                group => options.whole_rows && group.is_trained(),
            };
            divide(blocks, buckets, options.shards, is_whole);
        }
        layout
    }

    fn add_block(&mut self, rows: &[Row], members: impl Iterator<Item = usize>, kind: Kind, group: Group) {
        let element_bytes = kind.elt_size_in_bytes();
        let align = (ALIGNMENT_BYTES / element_bytes).max(1) as i64;
        let unit = align * self.options.shards.max(1) as i64;
        let number = self.blocks.len();
        let mut slots = Vec::new();
        let (mut range, mut bucket) = (0..0, Vec::new());
        let mut limit = self.options.first_bucket_bytes;
        // A bucket ends at a multiple of `unit` elements; the next bucket begins there.
        let mut close = |range: &mut Range<i64>, rows: &mut Vec<usize>| {
            let end = range.start + round_up(range.end - range.start, unit);
            let rows = std::mem::take(rows);
            let full = Bucket { block: number, range: range.start..end, rows, owned: Vec::new() };
            *range = end..end;
            self.buckets.extend((!full.rows.is_empty()).then_some(full));
        };
        for row in members {
            let of = &rows[row];
            let len: i64 = of.shape.iter().product();
            // A bucket has whole rows only. It is full if the next row would exceed its limit.
            let bytes = (round_up(range.end + len, align) - range.start) as usize * element_bytes;
            if bytes > limit && !bucket.is_empty() {
                limit = self.options.bucket_bytes;
                close(&mut range, &mut bucket);
            }
            slots.push(Slot {
                row,
                name: of.name.clone(),
                offset: range.end,
                shape: of.shape.clone(),
                strides: of.strides.clone(),
            });
            range.end = round_up(range.end + len, align);
            bucket.push(row);
        }
        close(&mut range, &mut bucket);
        self.blocks.push(Block { kind, group, slots, len: range.end });
    }

    /// Returns the most elements of a block of these rows in any order: the size for shared memory.
    pub(super) fn capacity(&self, block: usize) -> i64 {
        let block = &self.blocks[block];
        let align = (ALIGNMENT_BYTES / block.kind.elt_size_in_bytes()).max(1) as i64;
        let aligned: i64 = block.slots.iter().map(|slot| round_up(slot.len(), align)).sum();
        let padding = align * (self.options.shards.max(1) as i64 - 1);
        aligned + padding * block.slots.len() as i64
    }

    /// Returns the parts that a shard updates of the trained blocks for which `of` is true: whole blocks, or its part of every
    /// bucket.
    pub(super) fn shard_parts(&self, shard: usize, of: impl Fn(Group) -> bool) -> Vec<Part> {
        match self.options.shards {
            0 | 1 => self.whole_blocks(|group| group.is_trained() && of(group)).collect(),
            shards => {
                let buckets = self.buckets.iter().filter(|bucket| of(self.blocks[bucket.block].group));
                let parts = |bucket: &Bucket| {
                    let part = |range| Part { block: bucket.block, range };
                    bucket.ranges(shard, shards).into_iter().map(part).collect::<Vec<_>>()
                };
                buckets.flat_map(parts).collect()
            }
        }
    }

    /// Returns all blocks for which `of` is true, as whole parts.
    pub(super) fn whole_blocks(&self, of: impl Fn(Group) -> bool) -> impl Iterator<Item = Part> {
        let blocks = self.blocks.iter().enumerate();
        let whole = |block, len| Part { block, range: 0..len };
        blocks.filter(move |(_, block)| of(block.group)).map(move |(number, block)| whole(number, block.len))
    }
}

/// Divides the buckets of the blocks for which `is_whole` is true into whole rows.
fn divide(blocks: &[Block], buckets: &mut [Bucket], shards: usize, is_whole: impl Fn(&Block) -> bool) {
    let whole = blocks.iter().filter(|block| is_whole(block));
    let rows = whole.flat_map(|block| {
        let width = block.kind.elt_size_in_bytes() as u64;
        block.slots.iter().map(move |slot| (slot.len() as u64 * width, slot.row))
    });
    let owners = owners(rows.collect(), shards);
    let owner = |row: usize| owners.binary_search_by_key(&row, |&(row, _)| row).map(|at| owners[at].1);
    for bucket in buckets {
        let slots = &blocks[bucket.block].slots;
        let first = slots.partition_point(|slot| slot.offset < bucket.range.start);
        let mut owned: Vec<Owned> = Vec::new();
        for (slot, number) in slots[first..].iter().zip(first..).take(bucket.rows.len()) {
            let Ok(shard) = owner(slot.row) else { continue };
            let next =
                slots.get(number + 1).map_or(bucket.range.end, |next| next.offset.min(bucket.range.end));
            match owned.last_mut() {
                Some(last) if last.shard == shard => last.range.end = next,
                _ => owned.push(Owned { shard, range: slot.offset..next }),
            }
        }
        bucket.owned = owned;
    }
}

/// Rounds `elements` up to a multiple of `unit`.
fn round_up(elements: i64, unit: i64) -> i64 {
    (elements as u64).next_multiple_of(unit as u64) as i64
}

#[cfg(test)]
mod tests;
