//! How a range is divided between the ranks.

use std::ops::Range;

/// Two ranks never write to the same cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Returns the `index`-th of `count` parts of `range` (bytes of a page-aligned region). Parts meet at cache
/// lines and are otherwise as equal as possible; some are empty if there are fewer lines than parts.
pub(crate) fn part_by_lines(range: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let first = range.start / LINE_BYTES;
    let lines = range.end.div_ceil(LINE_BYTES).saturating_sub(first);
    let cut = |index: usize| {
        // lines * index stays far below 2^63: the lines of a mapping times the ranks of a machine.
        let line = first + lines * index / count;
        (line * LINE_BYTES).clamp(range.start, range.end)
    };
    cut(index)..cut(index + 1)
}

/// Returns the `index`-th of `count` equal parts. The length must be a multiple of `count`.
pub(crate) fn equal_part(range: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let length = range.len() / count;
    let start = range.start + index * length;
    start..start + length
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_the_range_once(start in 0usize..10_000, len in 0usize..100_000, count in 1usize..9) {
            let range = start * 2..(start + len) * 2;
            let mut next = range.start;
            for index in 0..count {
                let part = part_by_lines(&range, index, count);
                prop_assert_eq!(part.start, next);
                prop_assert!(part.end >= part.start);
                if index + 1 < count && part.end != range.start && part.end != range.end {
                    prop_assert_eq!(part.end % LINE_BYTES, 0);
                }
                // Parts differ by at most one line, and the ends of the range add up to one more.
                prop_assert!(part.len() <= range.len() / count + 2 * LINE_BYTES);
                next = part.end;
            }
            prop_assert_eq!(next, range.end);
        }

        #[test]
        fn equal_parts_are_equal(start in 0usize..1000, each in 0usize..1000, count in 1usize..9) {
            let range = start..start + each * count;
            for index in 0..count {
                let part = equal_part(&range, index, count);
                prop_assert_eq!(part.len(), each);
                prop_assert_eq!(part.start, start + each * index);
            }
        }
    }
}
