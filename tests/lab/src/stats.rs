//! Statistics of repeated measurements.

use serde::Serialize;

/// Returns the median (of an even number, the middle two's mean). `None` without values or with a NaN.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 })
}

/// Returns the smallest value that at least this share of the values does not exceed. With fewer than a
/// hundred values, the 99th percentile is the maximum. `None` without values or with a NaN.
pub(crate) fn percentile(values: &[f64], share: f64) -> Option<f64> {
    if values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// One figure over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    /// The value of each round, in order.
    pub(crate) rounds: Vec<f64>,
}

impl Spread {
    /// Computes the spread. `None` without rounds or with a NaN.
    pub(crate) fn of(rounds: Vec<f64>) -> Option<Self> {
        let median = median(&rounds)?;
        Some(Self {
            median,
            lowest: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            highest: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            rounds,
        })
    }

    /// Returns the ratio within each round, and its spread: a slow round does not change it. `None` if the
    /// numbers of rounds differ, or if a ratio is not finite.
    pub(crate) fn ratio(over: &Self, under: &Self) -> Option<Self> {
        if over.rounds.len() != under.rounds.len() {
            return None;
        }
        let ratios = over.rounds.iter().zip(&under.rounds).map(|(over, under)| over / under);
        Self::of(ratios.collect()).filter(|spread| spread.rounds.iter().all(|ratio| ratio.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), Some(99.0));
        assert_eq!(percentile(&hundred, 0.5), Some(50.0));
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 0.99), Some(3.0));
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(percentile(&[7.0], 0.0), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[1.0, f64::NAN], 0.5), None);
    }

    #[test]
    fn a_slow_round_does_not_change_the_median() {
        let spread = Spread::of(vec![10.0, 11.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.lowest, spread.highest), (10.0, 2.0, 11.0));
        assert_eq!(spread.rounds, [10.0, 11.0, 2.0]);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // In the second round, the machine was half as fast; the ratio does not change.
        let ours = Spread::of(vec![12.0, 6.0, 12.6]).unwrap();
        let theirs = Spread::of(vec![10.0, 5.0, 10.0]).unwrap();
        let ratio = Spread::ratio(&ours, &theirs).unwrap();
        assert_eq!(ratio.median, 1.2);
        assert_eq!((ratio.lowest, ratio.highest), (1.2, 1.26));
    }

    #[test]
    fn a_ratio_needs_equal_rounds_and_a_nonzero_divisor() {
        let two = Spread::of(vec![1.0, 2.0]).unwrap();
        let three = Spread::of(vec![1.0, 2.0, 3.0]).unwrap();
        let none = Spread::of(vec![0.0, 0.0]).unwrap();
        assert_eq!(Spread::ratio(&two, &three), None);
        assert_eq!(Spread::ratio(&two, &none), None);
    }
}
