//! Means over samples: a sum of values over a sum of weights, and the 95% interval of their ratio.

use tch::{Kind, TchError, Tensor};

/// Half of the interval that holds 95% of a normal distribution, in standard deviations.
const NORMAL_95: f64 = 1.96;

/// Returns the number of [`sums`] of a mean, with or without its interval.
pub(super) fn count(interval: Option<bool>) -> usize {
    if interval == Some(true) { 6 } else { 2 }
}

/// Returns the [`count`] sums over the samples of each of G means, one kind after the other. `above` and `below`: N x G, or N for one mean.
/// A sample without weight is 0 in both.
pub(super) fn sums(above: &Tensor, below: &Tensor, interval: Option<bool>) -> Result<Tensor, TchError> {
    let [above, below] = [above, below].map(|of| of.f_to_kind(Kind::Double)?.f_reshape([of.size()[0], -1]));
    let (above, below) = (above?, below?);
    let mut all = vec![above.shallow_clone(), below.shallow_clone()];
    if interval == Some(true) {
        let counted = below.f_ne(0.0)?.f_to_kind(Kind::Double)?;
        all.extend([above.f_square()?, above.f_mul(&below)?, below.f_square()?, counted]);
    }
    Tensor::f_stack(&all, 0)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?.f_reshape([-1])
}

/// A mean, by its sums.
pub(super) struct Mean<'a> {
    sums: &'a [f64],
    /// Its number among all.
    at: usize,
    /// The number of all.
    of: usize,
}

impl Mean<'_> {
    fn sum(&self, kind: usize) -> f64 {
        self.sums[kind * self.of + self.at]
    }

    /// Returns the mean; NaN without weight.
    pub(super) fn value(&self) -> f64 {
        self.sum(0) / self.sum(1)
    }

    /// Returns half of the 95% interval: 1.96 standard errors of the mean of the samples. If they weigh differently, that of the ratio of two
    /// sums (Cochran 1977, Sampling Techniques, 6.4).
    pub(super) fn interval(&self) -> f64 {
        let (mean, count) = (self.value(), self.sum(5));
        let squares = self.sum(2) - 2.0 * mean * self.sum(3) + mean * mean * self.sum(4);
        let variance = squares.max(0.0) / (count - 1.0);
        NORMAL_95 * (variance / count).sqrt() / (self.sum(1) / count)
    }
}

/// Returns all means of the [`sums`].
pub(super) fn all(sums: &[f64], interval: Option<bool>) -> impl Iterator<Item = Mean<'_>> {
    let of = sums.len() / count(interval);
    (0..of).map(move |at| Mean { sums, at, of })
}

/// Returns the only mean of the [`sums`].
pub(super) fn only(sums: &[f64]) -> Mean<'_> {
    Mean { sums, at: 0, of: 1 }
}

/// Returns the interval of the only mean, if the settings want it.
pub(super) fn further(sums: &[f64], interval: Option<bool>) -> Vec<f64> {
    (interval == Some(true)).then(|| only(sums).interval()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_interval_is_that_of_the_values_or_of_the_ratio() {
        let of = |above: &[f64], below: &[f64]| {
            let [above, below] = [above, below].map(Tensor::from_slice);
            Vec::<f64>::try_from(sums(&above, &below, Some(true)).unwrap()).unwrap()
        };
        let equal = of(&[0.25, 0.0, 0.75, 0.5, 1.0], &[1.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(only(&equal).value(), 0.625);
        // The deviation of 0.25, 0.75, 0.5, 1 is the root of 0.3125 / 3.
        assert!((only(&equal).interval() - 1.96 * (0.3125f64 / 3.0).sqrt() / 2.0).abs() < 1e-12);
        let ratio = of(&[1.0, 2.0, 6.0], &[2.0, 3.0, 5.0]);
        // Distances to 0.9 of each weight: -0.8, -0.7, 1.5.
        let expected = 1.96 * (3.38f64 / 2.0 / 3.0).sqrt() / (10.0 / 3.0);
        assert!((only(&ratio).interval() - expected).abs() < 1e-12, "{}", only(&ratio).interval());
        assert!(only(&of(&[1.0], &[1.0])).interval().is_nan(), "one sample has no interval");
    }
}
