//! The ranges of a block that an update changes.

use std::ops::Range;

use crate::state::{Part, Slot};

/// A range of a block, over neighbouring rows with the same number of updates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UpdateRange {
    pub(super) range: Range<i64>,
    pub(super) updates: u64,
}

/// Returns the ranges of `part`, a range of the block with these `slots`, over the rows that `used` marks: one
/// run if a step uses every row, as in most models. A gap for alignment belongs to the row before it.
pub(super) fn update_ranges(part: &Part, slots: &[Slot], updates: &[u64], used: &[bool]) -> Vec<UpdateRange> {
    let mut ranges: Vec<UpdateRange> = Vec::new();
    let first = slots.partition_point(|slot| slot.range().end <= part.range.start);
    for (index, slot) in slots.iter().enumerate().skip(first) {
        if slot.offset >= part.range.end {
            break;
        }
        let next = slots.get(index + 1).map_or(part.range.end, |next| next.offset);
        let range = slot.offset.max(part.range.start)..next.min(part.range.end);
        if !used[slot.row] {
            continue;
        }
        let updates = updates[slot.row];
        match ranges.last_mut() {
            Some(update) if update.range.end == range.start && update.updates == updates => {
                update.range.end = range.end
            }
            _ => ranges.push(UpdateRange { range, updates }),
        }
    }
    ranges
}

/// Returns the rows of `part`, a range of the block with these `slots`, that `used` marks.
pub(super) fn whole_rows<'a>(
    part: &Part,
    slots: &'a [Slot],
    used: &[bool],
) -> impl Iterator<Item = &'a Slot> {
    let first = slots.partition_point(|slot| slot.offset < part.range.start);
    let within = slots[first..].iter().take_while(|slot| slot.offset < part.range.end);
    within.filter(|slot| used[slot.row])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Vec<Slot> {
        // Lengths 10, 16, 5, 20 on multiples of 16.
        [(0, 10), (16, 16), (32, 5), (48, 20)]
            .iter()
            .enumerate()
            .map(|(row, &(offset, len))| Slot {
                row,
                name: String::new(),
                offset,
                shape: vec![len],
                strides: vec![1],
            })
            .collect()
    }

    fn part(range: Range<i64>) -> Part {
        Part { block: 0, range }
    }

    #[test]
    fn equal_update_counts_give_one_range() {
        let all = update_ranges(&part(0..80), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(all, [UpdateRange { range: 0..80, updates: 3 }]);
        // A part that begins and ends within parameters, a part within a gap, and a part after the last row.
        let some = update_ranges(&part(20..50), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(some, [UpdateRange { range: 20..50, updates: 3 }]);
        assert!(update_ranges(&part(12..16), &slots(), &[3; 4], &[true; 4]).is_empty());
        assert!(update_ranges(&part(70..80), &slots(), &[3; 4], &[true; 4]).is_empty());
    }

    #[test]
    fn unused_rows_and_other_counts_split_ranges() {
        let divided = update_ranges(&part(0..80), &slots(), &[3, 3, 3, 2], &[true, false, true, true]);
        assert_eq!(
            divided,
            [
                UpdateRange { range: 0..16, updates: 3 },
                UpdateRange { range: 32..48, updates: 3 },
                UpdateRange { range: 48..80, updates: 2 }
            ]
        );
        assert!(update_ranges(&part(0..80), &slots(), &[3; 4], &[false; 4]).is_empty());
    }
}
