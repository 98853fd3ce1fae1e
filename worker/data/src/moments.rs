//! Mean, deviation and range of targets.

use serde::{Deserialize, Serialize};

/// Statistics of numbers; the default is of none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    pub count: u64,
    pub mean: f64,
    /// The sum of the squared differences to the mean.
    squares: f64,
    pub min: f64,
    pub max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        // JSON has no infinities.
        Self { count: 0, mean: 0.0, squares: 0.0, min: f64::MAX, max: f64::MIN }
    }
}

impl Moments {
    /// Computes the statistics of the numbers that are not NaN.
    pub fn of(numbers: impl Iterator<Item = f32> + Clone) -> Self {
        let numbers = numbers.filter(|number| !number.is_nan()).map(f64::from);
        let count = numbers.clone().count();
        if count == 0 {
            return Self::default();
        }
        let mean = numbers.clone().sum::<f64>() / count as f64;
        Self {
            count: count as u64,
            mean,
            squares: numbers.clone().map(|number| (number - mean).powi(2)).sum(),
            min: numbers.clone().fold(f64::MAX, f64::min),
            max: numbers.fold(f64::MIN, f64::max),
        }
    }

    /// Returns statistics of which only the mean and the standard deviation are known.
    pub fn stated(mean: f64, deviation: f64) -> Self {
        Self { count: 1, mean, squares: deviation * deviation, ..Self::default() }
    }

    /// Adds further numbers (Chan et al. 1983). The order of additions changes the result by rounding.
    pub fn add(&mut self, other: &Self) {
        let count = self.count + other.count;
        if count == 0 {
            return;
        }
        let (own, others) = (self.count as f64, other.count as f64);
        let step = other.mean - self.mean;
        *self = Self {
            count,
            mean: self.mean + step * others / count as f64,
            squares: self.squares + other.squares + step * step * own * others / count as f64,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        };
    }

    /// Returns the standard deviation, of the numbers themselves; 0 without numbers.
    pub fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_number_is_not_a_number() {
        let moments = Moments::of([f32::NAN, 1.0, 3.0].into_iter());
        assert_eq!((moments.count, moments.mean, moments.deviation()), (2, 2.0, 1.0));
        assert_eq!((moments.min, moments.max), (1.0, 3.0));
        assert_eq!(Moments::of([f32::NAN].into_iter()), Moments::default());
        assert_eq!(Moments::default().deviation(), 0.0);
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_whole(a in proptest::collection::vec(-1e3f32..1e3, 0..20), b in proptest::collection::vec(-1e3f32..1e3, 0..20)) {
            let whole = Moments::of(a.iter().chain(&b).copied());
            let mut parts = Moments::of(a.iter().copied());
            parts.add(&Moments::of(b.iter().copied()));
            prop_assert_eq!((parts.count, parts.min, parts.max), (whole.count, whole.min, whole.max));
            prop_assert!((parts.mean - whole.mean).abs() < 1e-9);
            prop_assert!((parts.deviation() - whole.deviation()).abs() < 1e-6);
        }
    }
}
