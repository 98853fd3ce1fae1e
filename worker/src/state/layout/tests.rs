//! Layouts of random rows in random orders.
#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn row(len: i64, kind: Kind, group: usize) -> Row {
    Row { name: String::new(), shape: vec![len], strides: vec![1], kind, group: Group::Trained(group) }
}

fn specs() -> impl Strategy<Value = Vec<Row>> {
    let kind = prop::sample::select(vec![Kind::Float, Kind::Double]);
    let spec = (1i64..3000, kind, 0usize..3).prop_map(|(len, kind, group)| row(len, kind, group));
    prop::collection::vec(spec, 1..40)
}

proptest! {
    #[test]
    fn buckets_cover_every_block_and_row_once(
        specs in specs(), shards in 1usize..9, first in 64usize..4000, next in 64usize..30_000, seed: u64
    ) {
        let options = LayoutOptions { first_bucket_bytes: first, bucket_bytes: next, shards, whole_rows: false };
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
                // Parts are in order, have equal sizes, and cover the bucket.
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
        // Buckets are in the order in which they become complete.
        let ready = |bucket: &Bucket| bucket.rows.iter().map(|p| order.iter().position(|o| o == p)).max();
        prop_assert!(layout.buckets.windows(2).all(|pair| ready(&pair[0]) < ready(&pair[1])));
    }
}

#[test]
fn only_a_row_larger_than_the_limit_exceeds_it() {
    let specs = [100, 200, 5000, 16, 16].map(|len| row(len, Kind::Float, 0));
    let options =
        LayoutOptions { first_bucket_bytes: 1200, bucket_bytes: 4000, shards: 1, whole_rows: false };
    let layout = Layout::new(&specs, &[0, 1, 2, 3, 4], options);
    let rows: Vec<_> = layout.buckets.iter().map(|b| b.rows.clone()).collect();
    assert_eq!(rows, [vec![0], vec![1], vec![2], vec![3, 4]]);
}

/// Rows that go to a rank as a whole.
mod whole_rows {
    use super::*;

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
