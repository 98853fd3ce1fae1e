//! The expected calibration error: Guo et al. 2017, arXiv 1706.04599.

use dtrain_recipe::figures::Calibration;
use tch::{Kind, TchError, Tensor};

use super::elements::Elements;
use super::{BySums, Figure, Made, Shape, Source, confusion};

impl Figure for Calibration {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        confusion::check("calibration", shapes, classes, None)
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

impl BySums for Calibration {
    /// Returns of each bin the number of samples, of those that are right, and the sum of their probabilities. Bin b of B has the
    /// probabilities above b / B and up to (b + 1) / B.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let Elements { logits, targets, counted } = Elements::of(values, weights)?;
        let logits = logits.f_to_kind(Kind::Double)?;
        let bins = self.bins as i64;
        let (probabilities, predicted) = logits.f_softmax(1, Kind::Double)?.f_max_dim(1, false)?;
        let probabilities = probabilities.f_masked_fill(&counted.f_logical_not()?, 0.0)?;
        let bin = probabilities.f_mul_scalar(bins as f64)?.f_ceil()?.f_sub_scalar(1.0)?;
        let bin = bin.f_clamp(0.0, (bins - 1) as f64)?.f_to_kind(Kind::Int64)?;
        let numbers = Tensor::f_arange(bins, (Kind::Int64, logits.device()))?.f_unsqueeze(0)?;
        // P x bins
        let is_in = bin.f_unsqueeze(1)?.f_eq_tensor(&numbers)?.f_logical_and(&counted.f_unsqueeze(1)?)?;
        let is_in = is_in.f_to_kind(Kind::Double)?;
        let sum = |of: &Tensor| {
            of.f_to_kind(Kind::Double)?.f_unsqueeze(1)?.f_mul(&is_in)?.f_sum_dim_intlist(
                [0i64].as_slice(),
                false,
                Kind::Double,
            )
        };
        let right = predicted.f_eq_tensor(&targets)?;
        Tensor::f_cat(&[sum(&counted)?, sum(&right)?, sum(&probabilities)?], 0)
    }

    fn sums(&self) -> usize {
        3 * self.bins
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        let (counts, rest) = sums.split_at(self.bins);
        let (right, probabilities) = rest.split_at(self.bins);
        let distances = right.iter().zip(probabilities).map(|(right, sum)| (right - sum).abs());
        distances.sum::<f64>() / counts.iter().sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(bins: usize, logits: &Tensor, classes: &[i64], weights: &[f32]) -> f64 {
        let figure = Calibration { bins, ..Calibration::default() };
        let sums = figure.add(&[logits, &Tensor::from_slice(classes)], &Tensor::from_slice(weights)).unwrap();
        let sums = Vec::<f64>::try_from(sums).unwrap();
        assert_eq!(sums.len(), BySums::sums(&figure));
        figure.figure(&sums)
    }

    #[test]
    fn the_error_is_the_mean_distance_of_bins() {
        // Probabilities 0.6, 0.7, 0.9 and 0.95 of the class 0.
        let logits = [0.6f64, 0.7, 0.9, 0.95].map(|p| [(p / (1.0 - p)).ln(), 0.0]).concat();
        let logits = Tensor::from_slice(&logits).view([4, 2]);
        let classes = [0, 1, 0, 0];
        // In the upper of two bins 3 are right, and 3.15 expected.
        assert!((of(2, &logits, &classes, &[1.0; 4]) - 0.0375).abs() < 1e-12);
        // In the third of four bins 1 and 1.3, in the last 2 and 1.85.
        assert!((of(4, &logits, &classes, &[1.0; 4]) - (0.3 + 0.15) / 4.0).abs() < 1e-12);
        assert!((of(2, &logits, &classes, &[1.0, 0.0, 1.0, 1.0]) - (3.0 - 2.45) / 3.0).abs() < 1e-12);
        let unreadable =
            Tensor::cat(&[logits.narrow(0, 0, 3), logits.narrow(0, 3, 1).full_like(f64::NAN)], 0);
        assert!((of(2, &unreadable, &classes, &[1.0, 1.0, 1.0, 0.0]) - 0.2 / 3.0).abs() < 1e-12);
    }
}
