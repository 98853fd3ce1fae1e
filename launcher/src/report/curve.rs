//! Curves of at most some thousand points.

use std::ops::Range;

/// A curve. `None` is a gap.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Curve {
    pub(super) x: Vec<u64>,
    pub(super) y: Vec<Option<f64>>,
    /// The number of steps if only the extremes of spans of them are kept.
    pub(super) reduced_from: Option<usize>,
}

impl Curve {
    /// Makes a curve of values by step. With more than two for each of `spans`, only the least and the largest value of each span
    /// of equally many steps are kept, and that it has a gap: a value that is NaN, or steps that are missing.
    pub(super) fn new(x: &[u64], y: &[f64], spans: usize) -> Self {
        let mut curve = Self::default();
        let usual = x.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1);
        let (Some(first), Some(last)) = (x.first(), x.last()) else { return curve };
        if x.len() <= 2 * spans {
            (0..x.len()).for_each(|at| curve.push(x, y, at, usual));
            return curve;
        }
        curve.reduced_from = Some(x.len());
        let width = ((last - first) / spans as u64 + 1).max(1);
        let mut begin = 0;
        while begin < x.len() {
            let end = begin
                + x[begin..].partition_point(|step| (step - first) / width == (x[begin] - first) / width);
            for at in extremes(x, y, begin..end, usual) {
                curve.push(x, y, at, usual);
            }
            begin = end;
        }
        curve
    }

    /// Adds a value, after a gap if steps before it are missing.
    fn push(&mut self, x: &[u64], y: &[f64], at: usize, usual: u64) {
        if is_after_gap(x, at, usual) {
            self.x.push(x[at - 1] + 1);
            self.y.push(None);
        }
        self.x.push(x[at]);
        self.y.push(y[at].is_finite().then(|| rounded(y[at])));
    }
}

fn is_after_gap(x: &[u64], at: usize, usual: u64) -> bool {
    at > 0 && x[at] - x[at - 1] > usual
}

/// Returns the places of the extremes of a span, of its first NaN, and of values after missing steps, in order.
fn extremes(x: &[u64], y: &[f64], span: Range<usize>, usual: u64) -> Vec<usize> {
    let finite = || span.clone().filter(|at| y[*at].is_finite());
    let least = finite().min_by(|a, b| y[*a].total_cmp(&y[*b]));
    let largest = finite().max_by(|a, b| y[*a].total_cmp(&y[*b]));
    let nan = span.clone().find(|at| !y[*at].is_finite());
    let after_gap = span.clone().find(|at| is_after_gap(x, *at, usual));
    let mut places: Vec<_> = [least, largest, nan, after_gap].into_iter().flatten().collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Returns the mean around each value over `window` values; NaN where the value is.
pub(super) fn running_mean(y: &[f64], window: usize) -> Vec<f64> {
    let half = window / 2;
    // Sum and count within blocks that are as long as a window: of a block's begin up to a value, and of a value up to the block's end.
    // A difference of sums over all values would be noise after one spike of 1e20.
    let block = 2 * half + 1;
    let add = |(sum, count): (f64, f64), value: f64| match value.is_finite() {
        true => (sum + value, count + 1.0),
        false => (sum, count),
    };
    let (mut up_to, mut from) = (vec![(0.0, 0.0); y.len()], vec![(0.0, 0.0); y.len()]);
    for begin in (0..y.len()).step_by(block) {
        let end = (begin + block).min(y.len());
        let mut sum = (0.0, 0.0);
        for at in begin..end {
            sum = add(sum, y[at]);
            up_to[at] = sum;
        }
        sum = (0.0, 0.0);
        for at in (begin..end).rev() {
            sum = add(sum, y[at]);
            from[at] = sum;
        }
    }
    let mean = |(at, value): (usize, &f64)| {
        let (first, last) = (at.saturating_sub(half), (at + half).min(y.len() - 1));
        let (sum, count) = if first.is_multiple_of(block) {
            up_to[last]
        } else if first / block == last / block {
            // Only the last window ends with its block's values.
            from[first]
        } else {
            (from[first].0 + up_to[last].0, from[first].1 + up_to[last].1)
        };
        if value.is_finite() { sum / count } else { f64::NAN }
    };
    y.iter().enumerate().map(mean).collect()
}

/// Returns the value with six digits: a picture has no more.
pub(super) fn rounded(value: f64) -> f64 {
    if value == value.trunc() && value.abs() < 1e6 {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const NAN: f64 = f64::NAN;

    #[test]
    fn a_short_curve_is_kept_whole_with_gaps() {
        let curve = Curve::new(&[1, 2, 3, 7, 8], &[1.0, NAN, 3.0, 7.0, f64::INFINITY], 100);
        assert_eq!(curve.x, [1, 2, 3, 4, 7, 8]);
        assert_eq!(curve.y, [Some(1.0), None, Some(3.0), None, Some(7.0), None]);
        assert_eq!(curve.reduced_from, None);
        // Steps of which every tenth has a line have no gaps.
        assert_eq!(Curve::new(&[10, 20, 30], &[1.0, 2.0, 3.0], 100).x, [10, 20, 30]);
        assert_eq!(Curve::new(&[], &[], 100), Curve::default());
    }

    #[test]
    fn one_spike_among_a_hundred_thousand_steps_is_kept() {
        let x: Vec<u64> = (1..=100_000).collect();
        let mut y: Vec<f64> = x.iter().map(|x| 1.0 / *x as f64).collect();
        y[54_321] = 1e9;
        y[70_000] = NAN;
        let curve = Curve::new(&x, &y, 1000);
        assert!(curve.x.len() <= 2002, "{}", curve.x.len());
        assert!(curve.x.contains(&54_322) && curve.y.contains(&Some(1e9)));
        assert_eq!(curve.x.iter().position(|x| *x == 70_001), curve.y.iter().position(Option::is_none));
        assert_eq!((curve.x[0], *curve.x.last().unwrap()), (1, 100_000));
        assert_eq!(curve.reduced_from, Some(100_000));
    }

    proptest! {
        #[test]
        fn a_mean_is_that_of_its_window_also_after_a_spike(
            values in prop::collection::vec(prop::option::weighted(0.9, -50i32..50), 0..200),
            window in 1usize..30,
            spike in 0usize..200,
        ) {
            let mut y: Vec<f64> = values.iter().map(|value| value.map_or(NAN, f64::from)).collect();
            if let Some(value) = y.get_mut(spike) {
                *value = 1e20;
            }
            let half = window / 2;
            for (at, mean) in running_mean(&y, window).into_iter().enumerate() {
                let near = &y[at.saturating_sub(half)..(at + half + 1).min(y.len())];
                let near: Vec<f64> = near.iter().copied().filter(|value| value.is_finite()).collect();
                let expected = near.iter().sum::<f64>() / near.len() as f64;
                prop_assert_eq!(mean.is_nan(), y[at].is_nan());
                prop_assert!(y[at].is_nan() || (mean - expected).abs() <= 1e-9 * expected.abs().max(1.0));
            }
        }

        #[test]
        fn a_reduced_curve_has_the_extremes_of_the_whole_in_order(
            steps in prop::collection::btree_set(0u64..5000, 0..400),
            values in prop::collection::vec(prop::option::weighted(0.9, -50i32..50), 400),
            spans in 1usize..60,
        ) {
            let x: Vec<u64> = steps.into_iter().collect();
            let y: Vec<f64> = values.iter().take(x.len()).map(|value| value.map_or(NAN, f64::from)).collect();
            let curve = Curve::new(&x, &y, spans);
            prop_assert!(curve.x.is_sorted_by(|a, b| a < b));
            let extreme = |values: &mut dyn Iterator<Item = f64>| {
                values.fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(value), b.max(value)))
            };
            let whole = extreme(&mut y.iter().copied().filter(|value| value.is_finite()));
            prop_assert_eq!(extreme(&mut curve.y.iter().copied().flatten()), whole);
            if y.iter().any(|value| value.is_nan()) {
                prop_assert!(curve.y.contains(&None));
            }
            prop_assert!(x.len() <= 2 * spans || curve.x.len() <= 8 * (spans + 1));
        }
    }

    #[test]
    fn a_mean_keeps_gaps_and_numbers_six_digits() {
        let mean = running_mean(&[1.0, 2.0, NAN, 6.0, 0.0], 3);
        assert_eq!(mean[..2], [1.5, 1.5]);
        assert!(mean[2].is_nan());
        assert_eq!(mean[3..], [3.0, 3.0]);
        assert_eq!([0.1 + 0.2, 1_234_567.8, 128.0, 1e-9].map(rounded), [0.3, 1_234_570.0, 128.0, 1e-9]);
    }
}
