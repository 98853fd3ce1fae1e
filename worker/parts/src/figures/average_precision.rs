//! The mean precision over all thresholds, as `average_precision_score` of scikit-learn.

use dtrain_recipe::figures::AveragePrecision;
use tch::{TchError, Tensor};

use super::auc;
use super::rows::ByRows;
use super::{Figure, Made, Shape, Source};

const NAME: &str = "average-precision";

impl Figure for AveragePrecision {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        auc::check(NAME, self.positive, self.classes.as_deref().unwrap_or_default(), shapes, classes)
    }

    fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
        auc::check_sets(NAME, self.positive, shapes)
    }

    fn made(&self) -> Made<'_> {
        Made::ByRows(self)
    }
}

/// The rows are those of `auc`.
impl ByRows for AveragePrecision {
    fn columns(&self) -> usize {
        2
    }

    fn rows(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        auc::rows(self.positive, values, weights)
    }

    fn of_rows(&self, rows: &[f32]) -> f64 {
        auc::by_score(rows).map_or(f64::NAN, |equal| mean(equal.into_iter().rev()))
    }

    fn sums(&self, rows: &[f32]) -> Vec<f64> {
        auc::binned(rows)
    }

    fn of_sums(&self, sums: &[f64]) -> f64 {
        auc::of_bins(sums).map_or(f64::NAN, |equal| mean(equal.rev()))
    }
}

/// Returns the mean of the precisions, each weighted by the positive samples that its threshold adds; NaN without a positive one.
/// `equal`: the negative and the positive samples of each score, falling.
fn mean(equal: impl Iterator<Item = [f64; 2]>) -> f64 {
    let (mut above, mut right, mut sum) = (0.0, 0.0, 0.0);
    for [negatives, positives] in equal {
        above += negatives + positives;
        right += positives;
        // Empty bins before the first score add nothing.
        if positives > 0.0 {
            sum += positives * (right / above);
        }
    }
    sum / right
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Values of average_precision_score of scikit-learn 1.9.
    #[test]
    fn the_figure_is_that_of_scikit_learn() {
        let scores: [f32; 8] = [0.1, 0.4, 0.35, 0.8, 0.8, 0.2, 0.4, -1.0];
        let right = [0, 0, 1, 1, 0, 0, 1, 1];
        let rows: Vec<f32> =
            scores.iter().zip(right).flat_map(|(score, right)| [*score, right as f32 + 1.0]).collect();
        let figure = AveragePrecision::default();
        assert!((figure.of_rows(&rows) - EXPECTED).abs() < 1e-12, "{}", figure.of_rows(&rows));
        // None of these scores shares a bin with another.
        assert!((figure.of_sums(&figure.sums(&rows)) - EXPECTED).abs() < 1e-12);
        let unreadable = [&rows[..], &[0.0, 0.0]].concat();
        assert!((figure.of_rows(&unreadable) - EXPECTED).abs() < 1e-12);
        assert!(figure.of_rows(&[0.5, 1.0]).is_nan(), "without a positive sample");
        assert!(figure.of_rows(&[f32::NAN, 1.0, 1.0, 2.0]).is_nan());
    }

    const EXPECTED: f64 = 0.525;
}
