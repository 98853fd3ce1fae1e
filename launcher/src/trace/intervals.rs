//! Arithmetic of intervals on a timeline.

/// Begin and end, in microseconds.
pub(super) type Interval = (f64, f64);

/// Returns the time that at least one interval covers.
pub(super) fn covered(intervals: impl IntoIterator<Item = Interval>) -> f64 {
    let mut sorted: Vec<Interval> = intervals.into_iter().collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut total, mut reached) = (0.0, f64::NEG_INFINITY);
    for (begin, end) in sorted {
        if end > reached {
            total += end - begin.max(reached);
            reached = end;
        }
    }
    total
}

/// Returns for each interval its length without those directly inside it, and the number of the one directly around it.
/// The intervals are sorted by begin, and longer ones come first.
pub(super) fn nested(sorted: &[Interval]) -> Vec<(f64, Option<usize>)> {
    let mut own: Vec<(f64, Option<usize>)> = Vec::with_capacity(sorted.len());
    let mut open: Vec<usize> = Vec::new();
    for (number, &(begin, end)) in sorted.iter().enumerate() {
        while open.pop_if(|last| sorted[*last].1 <= begin).is_some() {}
        let around = open.last().copied();
        if let Some(around) = around {
            own[around].0 -= end.min(sorted[around].1) - begin;
        }
        own.push((end - begin, around));
        open.push(number);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_count_once_and_parents_lose_their_children() {
        assert_eq!(covered([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.0)]), 4.0);
        assert_eq!(covered([]), 0.0);
        let sorted = [(0.0, 10.0), (1.0, 5.0), (1.0, 2.0), (6.0, 7.0), (10.0, 11.0)];
        let expected = [(5.0, None), (3.0, Some(0)), (1.0, Some(1)), (1.0, Some(0)), (1.0, None)];
        assert_eq!(nested(&sorted), expected);
    }
}
