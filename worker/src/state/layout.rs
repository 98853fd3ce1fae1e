//! Where every row lies in the flat tensors of a column, and which ranges are reduced together. Pure arithmetic.

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

/// Parameters start on cache lines, as libtorch's own allocations do.
const ALIGNMENT_BYTES: usize = 64;

/// What happens to a row in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The optimizer updates it, with the options of the group of this number.
    Trained(usize),
    /// A parameter that is frozen now and was trained earlier: the moving average still moves towards it.
    Resting,
    /// A buffer of the model: running statistics and counters.
    Statistics,
}

impl Group {
    /// Blocks of trained rows come first, then those of resting rows, then those of statistics.
    fn class(self) -> usize {
        match self {
            Self::Trained(_) => 0,
            Self::Resting => 1,
            Self::Statistics => 2,
        }
    }

    /// The number of the optimizer group.
    pub fn number(self) -> Option<usize> {
        match self {
            Self::Trained(number) => Some(number),
            Self::Resting | Self::Statistics => None,
        }
    }

    /// Whether the optimizer updates the row.
    pub fn is_trained(self) -> bool {
        matches!(self, Self::Trained(_))
    }
}

/// What the layout needs to know of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The strides of its elements, which lie densely: contiguous or channels-last, say.
    pub strides: Vec<i64>,
    /// Its dtype.
    pub kind: Kind,
    /// What happens to it.
    pub group: Group,
}

/// How the blocks are cut into buckets and shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutOptions {
    /// The first bucket of a block is small so that the first bytes travel early.
    pub first_bucket_bytes: usize,
    /// The others are large enough to keep the cost per message low.
    pub bucket_bytes: usize,
    /// Into how many equal parts every bucket can be cut, each on cache lines: the number of ranks that share the
    /// optimizer's state, or 1.
    pub shards: usize,
}

impl Default for LayoutOptions {
    /// The sizes of PyTorch's reducer (Li et al. 2020, arXiv 2006.15704).
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            shards: 1,
        }
    }
}

/// Where one row lies in its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The row's number: trained rows are numbered first, each kind of row in the order of construction.
    pub row: usize,
    /// The row's name.
    pub name: String,
    /// Its first element in the block.
    pub offset: i64,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Its strides.
    pub strides: Vec<i64>,
}

impl Slot {
    /// The number of its elements.
    pub fn len(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in the block.
    pub fn range(&self) -> Range<i64> {
        self.offset..self.offset + self.len()
    }

    /// The row's elements of a flat tensor of the block, in the row's shape and strides.
    ///
    /// # Errors
    /// Where `flat` is shorter than the block.
    pub fn view(&self, flat: &Tensor) -> Result<Tensor, TchError> {
        self.shaped(&narrow(flat, &self.range())?)
    }

    /// Elements in the order of memory as a tensor of the row's shape.
    ///
    /// # Errors
    /// Where there are fewer than the row has.
    pub(crate) fn shaped(&self, elements: &Tensor) -> Result<Tensor, TchError> {
        elements.f_as_strided(self.shape.as_slice(), self.strides.as_slice(), None)
    }

    /// The elements of a tensor of the row's shape in the order in which the block holds them.
    ///
    /// # Errors
    /// Where the shape differs.
    pub(crate) fn flat(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let flat = Tensor::f_empty([self.len()], (tensor.kind(), tensor.device()))?;
        let mut view = self.shaped(&flat)?;
        tch::no_grad(|| view.f_copy_(tensor))?;
        Ok(flat)
    }

    /// Whether the row's elements lie in memory in the order of a file.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let in_order = |(&size, &stride): (&i64, &i64)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        };
        self.is_empty() || self.shape.iter().zip(&self.strides).rev().all(in_order)
    }
}

/// A range of a block that a rank holds of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The number of the block.
    pub block: usize,
    /// Its elements.
    pub range: Range<i64>,
}

impl Part {
    /// What the part has of a row of its block; None where it has nothing.
    pub(crate) fn of(&self, slot: &Slot) -> Option<Range<i64>> {
        let row = slot.range();
        let (start, end) = (row.start.max(self.range.start), row.end.min(self.range.end));
        (start < end).then_some(start..end)
    }

    /// A range of the block within `held`, the memory of this part.
    ///
    /// # Errors
    /// Where the part does not have all of it.
    pub(crate) fn within(&self, held: &Tensor, range: &Range<i64>) -> Result<Tensor, TchError> {
        let start = range.start - self.range.start;
        held.f_narrow(0, start, range.end - range.start)
    }
}

/// The elements of a flat tensor in `range`.
///
/// # Errors
/// Where the tensor is shorter.
pub(crate) fn narrow(flat: &Tensor, range: &Range<i64>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, range.start, range.end - range.start)
}

/// All rows of one dtype and group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The dtype.
    pub kind: Kind,
    /// What happens to the rows.
    pub group: Group,
    /// The rows in the order of their offsets.
    pub slots: Vec<Slot>,
    /// Elements, with the gaps of alignment, which stay zero.
    pub len: i64,
}

impl Block {
    /// Whether the same rows lie at the same places in both.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let place = |slot: &Slot| {
            (
                slot.name.clone(),
                slot.offset,
                slot.shape.clone(),
                slot.strides.clone(),
            )
        };
        self.kind == other.kind
            && self.len == other.len
            && self.group.class() == other.group.class()
            && self.slots.iter().map(place).eq(other.slots.iter().map(place))
    }
}

/// A range of one block that is reduced in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The number of the block.
    pub block: usize,
    /// Its elements, gaps included; the length divides by the number of shards.
    pub range: Range<i64>,
    /// Its rows.
    pub rows: Vec<usize>,
}

impl Bucket {
    /// The part of shard `shard` of `shards`.
    pub fn part(&self, shard: usize, shards: usize) -> Range<i64> {
        let len = (self.range.end - self.range.start) / shards as i64;
        let start = self.range.start + shard as i64 * len;
        start..start + len
    }
}

/// The layout of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// The blocks: of trained rows, of resting rows, of statistics.
    pub blocks: Vec<Block>,
    /// The buckets of the trained rows, in the order in which they become complete.
    pub buckets: Vec<Bucket>,
    /// How the blocks are cut.
    pub options: LayoutOptions,
}

impl Layout {
    /// Lays out `rows` in `order`, which names each of them once: trained rows in the order in which their gradients become ready.
    pub(super) fn new(rows: &[Row], order: &[usize], options: LayoutOptions) -> Self {
        let mut layout = Self {
            blocks: Vec::new(),
            buckets: Vec::new(),
            options,
        };
        let key = |row: &usize| (rows[*row].kind, rows[*row].group);
        let mut keys: Vec<(Kind, Group)> = Vec::new();
        for key in order.iter().map(key) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort_by_key(|(_, group)| group.class());
        for of in keys {
            let members = order.iter().copied().filter(|row| key(row) == of);
            layout.add_block(rows, members, of);
        }
        // A bucket is complete when its last row is.
        let mut ready = vec![0; rows.len()];
        for (position, &row) in order.iter().enumerate() {
            ready[row] = position;
        }
        let blocks = &layout.blocks;
        layout
            .buckets
            .retain(|bucket| blocks[bucket.block].group.is_trained());
        layout
            .buckets
            .sort_by_key(|bucket| bucket.rows.iter().map(|&row| ready[row]).max());
        layout
    }

    fn add_block(
        &mut self,
        rows: &[Row],
        members: impl Iterator<Item = usize>,
        (kind, group): (Kind, Group),
    ) {
        let element_bytes = kind.elt_size_in_bytes();
        let align = (ALIGNMENT_BYTES / element_bytes).max(1) as i64;
        let unit = align * self.options.shards.max(1) as i64;
        let mut slots = Vec::new();
        let mut bucket = Bucket {
            block: self.blocks.len(),
            range: 0..0,
            rows: Vec::new(),
        };
        let mut limit = self.options.first_bucket_bytes;
        for row in members {
            let len: i64 = rows[row].shape.iter().product();
            // Whole rows only: a bucket is full when the next one would take it over its limit.
            let end = up(bucket.range.end + len, align);
            let bytes = (end - bucket.range.start) as usize * element_bytes;
            if bytes > limit && !bucket.rows.is_empty() {
                limit = self.options.bucket_bytes;
                close(&mut bucket, unit, &mut self.buckets);
            }
            slots.push(Slot {
                row,
                name: rows[row].name.clone(),
                offset: bucket.range.end,
                shape: rows[row].shape.clone(),
                strides: rows[row].strides.clone(),
            });
            bucket.range.end = up(bucket.range.end + len, align);
            bucket.rows.push(row);
        }
        let len = close(&mut bucket, unit, &mut self.buckets);
        self.blocks.push(Block {
            kind,
            group,
            slots,
            len,
        });
    }

    /// The most elements that a block of the same rows can have in any order: what memory that outlives a new order must hold.
    pub(super) fn capacity(&self, block: usize) -> i64 {
        let block = &self.blocks[block];
        let align = (ALIGNMENT_BYTES / block.kind.elt_size_in_bytes()).max(1) as i64;
        let aligned: i64 = block.slots.iter().map(|slot| up(slot.len(), align)).sum();
        let padding = align * (self.options.shards.max(1) as i64 - 1);
        aligned + padding * block.slots.len() as i64
    }

    /// What one of the shards updates of the trained blocks: all of them, or its part of every bucket.
    pub(super) fn shard(&self, shard: usize) -> Vec<Part> {
        match self.options.shards {
            0 | 1 => self
                .whole()
                .filter(|part| self.blocks[part.block].group.is_trained())
                .collect(),
            shards => {
                let part = |bucket: &Bucket| Part {
                    block: bucket.block,
                    range: bucket.part(shard, shards),
                };
                self.buckets.iter().map(part).collect()
            }
        }
    }

    /// All of every block.
    pub(super) fn whole(&self) -> impl Iterator<Item = Part> {
        self.blocks.iter().enumerate().map(|(block, of)| Part {
            block,
            range: 0..of.len,
        })
    }
}

/// The least multiple of `unit` that is not below `elements`.
fn up(elements: i64, unit: i64) -> i64 {
    (elements as u64).next_multiple_of(unit as u64) as i64
}

/// Ends a bucket on a multiple of `unit` elements, begins the next behind it, and returns where.
fn close(bucket: &mut Bucket, unit: i64, buckets: &mut Vec<Bucket>) -> i64 {
    let length = bucket.range.end - bucket.range.start;
    let end = bucket.range.start + up(length, unit);
    let next = Bucket {
        block: bucket.block,
        range: end..end,
        rows: Vec::new(),
    };
    let mut full = std::mem::replace(bucket, next);
    full.range.end = end;
    if !full.rows.is_empty() {
        buckets.push(full);
    }
    end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn specs() -> impl Strategy<Value = Vec<Row>> {
        let kind = prop::sample::select(vec![Kind::Float, Kind::Double]);
        let spec = (1i64..3000, kind, 0usize..3).prop_map(|(len, kind, group)| Row {
            name: String::new(),
            shape: vec![len],
            strides: vec![1],
            kind,
            group: Group::Trained(group),
        });
        prop::collection::vec(spec, 1..40)
    }

    proptest! {
        #[test]
        fn buckets_cover_every_block_and_row_once(
            specs in specs(), shards in 1usize..9, first in 64usize..4000, next in 64usize..30_000, seed: u64
        ) {
            let options = LayoutOptions { first_bucket_bytes: first, bucket_bytes: next, shards };
            let mut order: Vec<usize> = (0..specs.len()).collect();
            order.sort_by_key(|&index| (index as u64 + 1).wrapping_mul(seed | 1));
            let layout = Layout::new(&specs, &order, options);

            for (number, block) in layout.blocks.iter().enumerate() {
                let mut ranges: Vec<&Bucket> = layout.buckets.iter().filter(|b| b.block == number).collect();
                ranges.sort_by_key(|bucket| bucket.range.start);
                let mut next_start = 0;
                for bucket in ranges {
                    prop_assert_eq!(bucket.range.start, next_start);
                    let len = bucket.range.end - bucket.range.start;
                    prop_assert!(len > 0);
                    let align = 64 / block.kind.elt_size_in_bytes() as i64;
                    prop_assert_eq!(len % (align * shards as i64), 0);
                    // Parts are in order, equal, and cover the bucket.
                    let parts: Vec<_> = (0..shards).map(|shard| bucket.part(shard, shards)).collect();
                    prop_assert_eq!(parts[0].start, bucket.range.start);
                    prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                    prop_assert_eq!(parts[shards - 1].end, bucket.range.end);
                    next_start = bucket.range.end;
                }
                prop_assert_eq!(next_start, block.len);
                prop_assert!(block.len <= layout.capacity(number));
                let mut end = 0;
                for slot in &block.slots {
                    prop_assert!(slot.offset >= end);
                    end = slot.range().end;
                    let bucket = layout.buckets.iter().find(|b| b.rows.contains(&slot.row)).unwrap();
                    prop_assert!(bucket.block == number && bucket.range.start <= slot.offset && end <= bucket.range.end);
                    let row = &specs[slot.row];
                    prop_assert_eq!((row.kind, row.group), (block.kind, block.group));
                }
            }
            let mut all: Vec<usize> = layout.buckets.iter().flat_map(|b| b.rows.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..specs.len()).collect::<Vec<_>>());
            // Launched in the order in which they are complete.
            let ready = |bucket: &Bucket| bucket.rows.iter().map(|p| order.iter().position(|o| o == p)).max();
            prop_assert!(layout.buckets.windows(2).all(|pair| ready(&pair[0]) < ready(&pair[1])));
        }
    }

    #[test]
    fn only_a_row_larger_than_the_limit_exceeds_it() {
        let spec = |len| Row {
            name: String::new(),
            shape: vec![len],
            strides: vec![1],
            kind: Kind::Float,
            group: Group::Trained(0),
        };
        let specs: Vec<Row> = [100, 200, 5000, 16, 16].map(spec).into();
        let options = LayoutOptions {
            first_bucket_bytes: 1200,
            bucket_bytes: 4000,
            shards: 1,
        };
        let layout = Layout::new(&specs, &[0, 1, 2, 3, 4], options);
        let rows: Vec<_> = layout.buckets.iter().map(|b| b.rows.clone()).collect();
        assert_eq!(rows, [vec![0], vec![1], vec![2], vec![3, 4]]);
    }
}
