//! Whole rows as shards: an update that needs whole tensors, such as an orthogonalized matrix, happens on one rank.
//!
//! Rows go to ranks by size, the largest first, each to the rank that has least (Graham 1969): no rank has more than 4/3 of the
//! least possible. The order of the rows has no influence, so a row stays on its rank when the layout changes.

use std::cmp::Reverse;
use std::ops::Range;

use super::layout::{Block, Bucket};

/// Neighbouring rows of a bucket that one rank updates, with their gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owned {
    pub shard: usize,
    pub range: Range<i64>,
}

/// Divides the buckets of the blocks for which `is_whole` is true into whole rows.
pub(super) fn divide(
    blocks: &[Block],
    buckets: &mut [Bucket],
    shards: usize,
    is_whole: impl Fn(&Block) -> bool,
) {
    let whole = blocks.iter().filter(|block| is_whole(block));
    let mut rows: Vec<(u64, usize)> = whole
        .flat_map(|block| {
            let width = block.kind.elt_size_in_bytes() as u64;
            block.slots.iter().map(move |slot| (slot.len() as u64 * width, slot.row))
        })
        .collect();
    rows.sort_unstable_by_key(|&(bytes, row)| (Reverse(bytes), row));
    let mut held = vec![0u64; shards];
    let mut owners: Vec<(usize, usize)> = Vec::with_capacity(rows.len());
    for (bytes, row) in rows {
        let least = (0..shards).min_by_key(|&shard| held[shard]).unwrap_or_default();
        held[least] += bytes;
        owners.push((row, least));
    }
    owners.sort_unstable();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use tch::Kind;

    use super::super::layout::{Group, Layout, LayoutOptions, Row};

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let group = prop::sample::select(vec![Group::Trained(0), Group::Matrices(1), Group::Matrices(2)]);
        let row = (1i64..3000, group).prop_map(|(len, group)| Row {
            name: String::new(),
            shape: vec![len],
            strides: vec![1],
            kind: Kind::Float,
            group,
        });
        prop::collection::vec(row, 1..40)
    }

    proptest! {
        #[test]
        fn every_whole_row_has_one_rank_and_the_ranks_have_about_as_much(
            rows in rows(), shards in 2usize..9, next in 64usize..30_000, seed: u64, whole_rows: bool
        ) {
            let options =
                LayoutOptions { first_bucket_bytes: 1000, bucket_bytes: next, shards, whole_rows };
            let mut order: Vec<usize> = (0..rows.len()).collect();
            let owners = |order: &[usize]| {
                let layout = Layout::new(&rows, order, options);
                let mut owners = vec![None; rows.len()];
                for (shard, part) in (0..shards).flat_map(|shard| {
                    layout.shard_parts(shard, Group::is_trained).into_iter().map(move |part| (shard, part))
                }) {
                    let block = &layout.blocks[part.block];
                    if !whole_rows && matches!(block.group, Group::Trained(_)) {
                        continue;
                    }
                    for slot in &block.slots {
                        if let Some(overlap) = part.overlap(slot) {
                            assert_eq!(overlap, slot.range(), "a row is divided");
                            assert!(owners[slot.row].replace(shard).is_none(), "a row has two ranks");
                        }
                    }
                }
                owners
            };
            let first = owners(&order);
            let mut held = vec![0; shards];
            let mut largest = 0;
            for (row, owner) in rows.iter().zip(&first) {
                let is_whole = whole_rows || matches!(row.group, Group::Matrices(_));
                prop_assert_eq!(owner.is_some(), is_whole);
                if let Some(owner) = owner {
                    held[*owner] += row.shape[0];
                    largest = largest.max(row.shape[0]);
                }
            }
            let spread = held.iter().max().unwrap() - held.iter().min().unwrap();
            prop_assert!(spread <= largest, "{:?}", held);
            order.sort_by_key(|&index| (index as u64 + 1).wrapping_mul(seed | 1));
            prop_assert_eq!(owners(&order), first);
        }
    }
}
