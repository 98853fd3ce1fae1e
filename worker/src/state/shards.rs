//! Whole rows as shards: an update that needs whole tensors, such as an orthogonalized matrix, happens on one rank.
//!
//! Rows go to ranks by size, the largest first, each to the rank that has least (Graham 1969): no rank has more than 4/3 of the
//! least possible. The order of the rows has no influence, so a row stays on its rank when the layout changes.

use std::cmp::Reverse;
use std::ops::Range;

/// Neighbouring rows of a bucket that one rank updates, with their gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owned {
    pub shard: usize,
    pub range: Range<i64>,
}

/// Returns the shard of each of `rows`, which are sizes in bytes and numbers: pairs of a number and a shard, sorted.
pub(super) fn owners(mut rows: Vec<(u64, usize)>, shards: usize) -> Vec<(usize, usize)> {
    rows.sort_unstable_by_key(|&(bytes, row)| (Reverse(bytes), row));
    let mut held = vec![0u64; shards];
    let mut owners: Vec<(usize, usize)> = Vec::with_capacity(rows.len());
    for (bytes, row) in rows {
        let least = (0..shards).min_by_key(|&shard| held[shard]).unwrap_or_default();
        held[least] += bytes;
        owners.push((row, least));
    }
    owners.sort_unstable();
    owners
}
