//! Which elements of a part take the same update.

use std::ops::Range;

use crate::state::{Part, Slot};

/// Elements of a block, one behind the other, whose rows have all had the same number of updates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) range: Range<i64>,
    pub(super) updates: u64,
}

/// The runs of `part`, a range of the block with these `slots`, over the rows that `used` marks. In most models every row is used in
/// every step, and the part is one run. A gap of alignment goes with the row before it.
pub(super) fn runs(part: &Part, slots: &[Slot], updates: &[u64], used: &[bool]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
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
        match runs.last_mut() {
            Some(run) if run.range.end == range.start && run.updates == updates => run.range.end = range.end,
            _ => runs.push(Run { range, updates }),
        }
    }
    runs
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
    fn a_part_whose_parameters_are_alike_is_one_run() {
        let all = runs(&part(0..80), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(all, [Run { range: 0..80, updates: 3 }]);
        // A part that begins and ends within parameters, one that lies in a gap, and one behind everything.
        let some = runs(&part(20..50), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(some, [Run { range: 20..50, updates: 3 }]);
        assert!(runs(&part(12..16), &slots(), &[3; 4], &[true; 4]).is_empty());
        assert!(runs(&part(70..80), &slots(), &[3; 4], &[true; 4]).is_empty());
    }

    #[test]
    fn unused_parameters_and_other_counts_divide_it() {
        let divided = runs(&part(0..80), &slots(), &[3, 3, 3, 2], &[true, false, true, true]);
        assert_eq!(
            divided,
            [
                Run { range: 0..16, updates: 3 },
                Run { range: 32..48, updates: 3 },
                Run { range: 48..80, updates: 2 }
            ]
        );
        assert!(runs(&part(0..80), &slots(), &[3; 4], &[false; 4]).is_empty());
    }
}
