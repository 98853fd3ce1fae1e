//! The reduction: gradients are summed over all ranks in buckets, the updates of the model's buffers too, all in flight together, the
//! status vector last.

use std::ops::Range;

use tch::TchError;
use thiserror::Error;

use super::arena::Arena;
use super::buffers::Buffers;
use super::status::Status;
use crate::collectives::{CollectiveError, ProcessGroup, ReduceOp, Work};

/// The first bucket is small so that the first bytes travel early, the others large enough to keep the cost per message
/// low (the sizes of PyTorch's reducer, Li et al. 2020, arXiv 2006.15704).
const FIRST_BUCKET_BYTES: usize = 1 << 20;
const BUCKET_BYTES: usize = 25 << 20;

/// A reduction that failed.
#[derive(Debug, Error)]
pub enum ReduceError {
    /// Between the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// On this rank.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// Sums the gradients of all ranks and their updates of the buffers, in place, and merges their statuses. Gradients are those of the summed loss divided
/// by the step's sample count, so a plain sum is the mean over the effective batch, whatever the partition.
///
/// Every rank calls it once per step.
///
/// # Errors
/// Where a peer is lost or memory runs out; the gradients are undefined then.
pub fn reduce(
    group: &dyn ProcessGroup,
    arena: &Arena,
    buffers: &Buffers,
    status: Status,
) -> Result<Status, ReduceError> {
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    for buffer in arena.buffers() {
        for range in buckets(buffer.grad.numel(), buffer.kind.elt_size_in_bytes()) {
            let bucket = buffer.grad.f_narrow(0, range.start as i64, range.len() as i64)?;
            works.push(group.all_reduce(&bucket, ReduceOp::Sum)?);
        }
    }
    works.extend(buffers.start(group)?);
    let merged = status.to_tensor()?;
    works.push(group.all_reduce(&merged, ReduceOp::Sum)?);
    for work in works {
        work.wait()?;
    }
    Ok(Status::merge(&merged)?)
}

/// Cuts a buffer of `elements` into bucket ranges, in order.
fn buckets(elements: usize, element_bytes: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    let mut bytes = FIRST_BUCKET_BYTES;
    while start < elements {
        let end = elements.min(start + bytes / element_bytes);
        ranges.push(start..end);
        start = end;
        bytes = BUCKET_BYTES;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_cover_the_buffer_once(elements in 0usize..60_000_000, size in prop::sample::select(vec![2usize, 4, 8])) {
            let ranges = buckets(elements, size);
            let mut next = 0;
            for (index, range) in ranges.iter().enumerate() {
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty());
                let limit = if index == 0 { FIRST_BUCKET_BYTES } else { BUCKET_BYTES };
                prop_assert!(range.len() * size <= limit);
                next = range.end;
            }
            prop_assert_eq!(next, elements);
        }
    }
}
