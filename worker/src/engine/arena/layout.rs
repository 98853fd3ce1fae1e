//! Where every parameter lies in the flat buffers, and which ranges are reduced together. Pure arithmetic.

use std::ops::Range;

use tch::Kind;

/// Parameters start on cache lines, as libtorch's own allocations do.
const ALIGNMENT_BYTES: usize = 64;

/// What the layout needs to know of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Spec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The strides of its elements, which lie densely: contiguous or channels-last, say.
    pub strides: Vec<i64>,
    /// Its dtype.
    pub kind: Kind,
    /// The number of its optimizer group.
    pub group: usize,
}

/// How the buffers are cut into buckets and shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutOptions {
    /// The first bucket of a buffer is small so that the first bytes travel early.
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

/// Where one parameter lies in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The parameter's number in the order of construction.
    pub parameter: usize,
    /// The parameter's name.
    pub name: String,
    /// Its first element in the buffer.
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

    /// Its elements in the buffer.
    pub fn range(&self) -> Range<i64> {
        self.offset..self.offset + self.len()
    }
}

/// The layout of one buffer: all parameters of one dtype and optimizer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct BufferLayout {
    /// The dtype.
    pub kind: Kind,
    /// The optimizer group.
    pub group: usize,
    /// The parameters in the order of their offsets.
    pub slots: Vec<Slot>,
    /// Elements, with the gaps of alignment.
    pub len: i64,
}

/// A range of one buffer that is reduced in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The number of the buffer.
    pub buffer: usize,
    /// Its elements, gaps included; the length divides by the number of shards.
    pub range: Range<i64>,
    /// Its parameters, by their number in the order of construction.
    pub parameters: Vec<usize>,
}

impl Bucket {
    /// The part of shard `shard` of `shards`.
    pub fn part(&self, shard: usize, shards: usize) -> Range<i64> {
        let len = (self.range.end - self.range.start) / shards as i64;
        let start = self.range.start + shard as i64 * len;
        start..start + len
    }
}

/// The layout of a model's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Layout {
    /// The buffers.
    pub buffers: Vec<BufferLayout>,
    /// The buckets in the order in which they become complete.
    pub buckets: Vec<Bucket>,
    /// As asked for.
    pub options: LayoutOptions,
}

impl Layout {
    /// Lays out `specs` in `order`, which names each of them once: the order in which their gradients become ready.
    pub(in crate::engine) fn new(specs: &[Spec], order: &[usize], options: LayoutOptions) -> Self {
        let mut layout = Self {
            buffers: Vec::new(),
            buckets: Vec::new(),
            options,
        };
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        for &parameter in order {
            let key = (specs[parameter].kind, specs[parameter].group);
            if !kinds.contains(&key) {
                kinds.push(key);
            }
        }
        for (kind, group) in kinds {
            let members = order
                .iter()
                .copied()
                .filter(|&parameter| (specs[parameter].kind, specs[parameter].group) == (kind, group));
            layout.add_buffer(specs, members, kind, group);
        }
        // A bucket is complete when its last parameter is.
        let mut ready = vec![0; specs.len()];
        for (position, &parameter) in order.iter().enumerate() {
            ready[parameter] = position;
        }
        layout
            .buckets
            .sort_by_key(|bucket| bucket.parameters.iter().map(|&parameter| ready[parameter]).max());
        layout
    }

    fn add_buffer(&mut self, specs: &[Spec], members: impl Iterator<Item = usize>, kind: Kind, group: usize) {
        let element_bytes = kind.elt_size_in_bytes();
        let align = (ALIGNMENT_BYTES / element_bytes).max(1) as i64;
        let unit = align * self.options.shards.max(1) as i64;
        let buffer = self.buffers.len();
        let mut slots = Vec::new();
        let mut bucket = Bucket {
            buffer,
            range: 0..0,
            parameters: Vec::new(),
        };
        let mut limit = self.options.first_bucket_bytes;
        for parameter in members {
            let spec = &specs[parameter];
            let slot = Slot {
                parameter,
                name: spec.name.clone(),
                offset: bucket.range.end,
                shape: spec.shape.clone(),
                strides: spec.strides.clone(),
            };
            let end = up(slot.offset + slot.len(), align);
            // Whole parameters only: a bucket is full when the next one would take it over its limit.
            let bytes = (end - bucket.range.start) as usize * element_bytes;
            if bytes > limit && !bucket.parameters.is_empty() {
                limit = self.options.bucket_bytes;
                let start = close(&mut bucket, unit, &mut self.buckets);
                let slot = Slot {
                    offset: start,
                    ..slot
                };
                bucket.range.end = up(start + slot.len(), align);
                slots.push(slot);
            } else {
                bucket.range.end = end;
                slots.push(slot);
            }
            bucket.parameters.push(parameter);
        }
        let len = close(&mut bucket, unit, &mut self.buckets);
        self.buffers.push(BufferLayout {
            kind,
            group,
            slots,
            len,
        });
    }

    /// The most elements that a buffer of the same parameters can have in any order: what memory that outlives a new
    /// order must hold.
    pub(in crate::engine) fn capacity(&self, buffer: usize) -> i64 {
        let buffer = &self.buffers[buffer];
        let align = (ALIGNMENT_BYTES / buffer.kind.elt_size_in_bytes()).max(1) as i64;
        let aligned: i64 = buffer.slots.iter().map(|slot| up(slot.len(), align)).sum();
        let padding = align * (self.options.shards.max(1) as i64 - 1);
        aligned + padding * buffer.slots.len() as i64
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
        buffer: bucket.buffer,
        range: end..end,
        parameters: Vec::new(),
    };
    let mut full = std::mem::replace(bucket, next);
    full.range.end = end;
    if !full.parameters.is_empty() {
        buckets.push(full);
    }
    end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn specs() -> impl Strategy<Value = Vec<Spec>> {
        let kind = prop::sample::select(vec![Kind::Float, Kind::Double]);
        let spec = (1i64..3000, kind, 0usize..3).prop_map(|(len, kind, group)| Spec {
            name: String::new(),
            shape: vec![len],
            strides: vec![1],
            kind,
            group,
        });
        prop::collection::vec(spec, 1..40)
    }

    proptest! {
        #[test]
        fn buckets_cover_every_buffer_and_parameter_once(
            specs in specs(), shards in 1usize..9, first in 64usize..4000, next in 64usize..30_000, seed: u64
        ) {
            let options = LayoutOptions { first_bucket_bytes: first, bucket_bytes: next, shards };
            let mut order: Vec<usize> = (0..specs.len()).collect();
            order.sort_by_key(|&index| (index as u64 + 1).wrapping_mul(seed | 1));
            let layout = Layout::new(&specs, &order, options);

            for (number, buffer) in layout.buffers.iter().enumerate() {
                let mut ranges: Vec<&Bucket> = layout.buckets.iter().filter(|b| b.buffer == number).collect();
                ranges.sort_by_key(|bucket| bucket.range.start);
                let mut next_start = 0;
                for bucket in ranges {
                    prop_assert_eq!(bucket.range.start, next_start);
                    let len = bucket.range.end - bucket.range.start;
                    prop_assert!(len > 0);
                    let align = 64 / buffer.kind.elt_size_in_bytes() as i64;
                    prop_assert_eq!(len % (align * shards as i64), 0);
                    // Parts are in order, equal, and cover the bucket.
                    let parts: Vec<_> = (0..shards).map(|shard| bucket.part(shard, shards)).collect();
                    prop_assert_eq!(parts[0].start, bucket.range.start);
                    prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                    prop_assert_eq!(parts[shards - 1].end, bucket.range.end);
                    next_start = bucket.range.end;
                }
                prop_assert_eq!(next_start, buffer.len);
                prop_assert!(buffer.len <= layout.capacity(number));
                let mut end = 0;
                for slot in &buffer.slots {
                    prop_assert!(slot.offset >= end);
                    end = slot.range().end;
                    let bucket = layout.buckets.iter().find(|b| b.parameters.contains(&slot.parameter)).unwrap();
                    prop_assert!(bucket.buffer == number && bucket.range.start <= slot.offset && end <= bucket.range.end);
                    let spec = &specs[slot.parameter];
                    prop_assert_eq!((spec.kind, spec.group), (buffer.kind, buffer.group));
                }
            }
            let mut all: Vec<usize> = layout.buckets.iter().flat_map(|b| b.parameters.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..specs.len()).collect::<Vec<_>>());
            // Launched in the order in which they are complete.
            let ready = |bucket: &Bucket| bucket.parameters.iter().map(|p| order.iter().position(|o| o == p)).max();
            prop_assert!(layout.buckets.windows(2).all(|pair| ready(&pair[0]) < ready(&pair[1])));
        }
    }

    #[test]
    fn only_a_parameter_larger_than_the_limit_exceeds_it() {
        let spec = |len| Spec {
            name: String::new(),
            shape: vec![len],
            strides: vec![1],
            kind: Kind::Float,
            group: 0,
        };
        let specs: Vec<Spec> = [100, 200, 5000, 16, 16].map(spec).into();
        let options = LayoutOptions {
            first_bucket_bytes: 1200,
            bucket_bytes: 4000,
            shards: 1,
        };
        let layout = Layout::new(&specs, &[0, 1, 2, 3, 4], options);
        let parameters: Vec<_> = layout.buckets.iter().map(|b| b.parameters.clone()).collect();
        assert_eq!(parameters, [vec![0], vec![1], vec![2], vec![3, 4]]);
    }
}
