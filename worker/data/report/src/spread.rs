//! Numbers in a few figures.

use dtrain_data::Moments;
use serde::Serialize;

/// Statistics of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many there are, without those that are not numbers.
    pub count: u64,
    pub mean: f64,
    /// The standard deviation of the numbers themselves.
    pub deviation: f64,
    pub min: f64,
    pub max: f64,
    /// The 1st, 25th, 50th, 75th and 99th percentile; None if they were not computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentiles: Option<[f64; 5]>,
}

/// The parts of sorted numbers below [`Spread::percentiles`].
const PARTS: [f64; 5] = [0.01, 0.25, 0.5, 0.75, 0.99];

impl Spread {
    /// Returns the figures of `moments` with the percentiles of `values`, which may be a part of the numbers. Those that are not
    /// numbers do not count.
    pub(crate) fn of(moments: &Moments, mut values: Vec<f32>) -> Self {
        values.retain(|value| !value.is_nan());
        values.sort_unstable_by(f32::total_cmp);
        let at = |part: f64| f64::from(values[((values.len() - 1) as f64 * part).round() as usize]);
        Self { percentiles: (!values.is_empty()).then(|| PARTS.map(at)), ..Self::from(moments) }
    }
}

impl From<&Moments> for Spread {
    fn from(moments: &Moments) -> Self {
        match moments.count {
            0 => Self::default(),
            count => Self {
                count,
                mean: moments.mean,
                deviation: moments.deviation(),
                min: moments.min,
                max: moments.max,
                percentiles: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_and_no_number_does_not_count() {
        let values: Vec<f32> = (0..=100).rev().map(|value| value as f32).chain([f32::NAN]).collect();
        let spread = Spread::of(&Moments::of(values.iter().copied()), values);
        assert_eq!(spread.percentiles, Some([1.0, 25.0, 50.0, 75.0, 99.0]));
        assert_eq!((spread.count, spread.min, spread.max, spread.mean), (101, 0.0, 100.0, 50.0));
        assert_eq!(Spread::of(&Moments::default(), vec![f32::NAN]), Spread::default());
    }
}
