//! The 95% interval of a mean over the samples.

use dtrain_recipe::figures::Interval;
use tch::{Kind, TchError, Tensor};

use super::{BySums, Figure, Made, Shape, Source, means};

impl Figure for Interval {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(Some(&self.output))]
    }

    fn check(&self, shapes: &[Shape], _: Option<usize>) -> Result<(), String> {
        match &shapes[0][..] {
            [None] => Ok(()),
            _ => Err("interval takes one number for each sample, N; set output to such an output".to_owned()),
        }
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

impl BySums for Interval {
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let values =
            values[0].f_detach()?.f_to_kind(Kind::Double)?.f_masked_fill(&weights.f_eq(0.0)?, 0.0)?;
        means::sums(&values, weights, Some(true))
    }

    fn sums(&self) -> usize {
        means::count(Some(true))
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        means::only(sums).interval()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_interval_is_that_of_the_samples_that_count() {
        let figure = Interval::default();
        let add = |values: &[f32], weights: &[f32]| {
            let sums = figure.add(&[&Tensor::from_slice(values)], &Tensor::from_slice(weights)).unwrap();
            Vec::<f64>::try_from(sums).unwrap()
        };
        let parts = [add(&[0.25, f32::NAN, 0.75], &[1.0, 0.0, 1.0]), add(&[0.5, 1.0], &[1.0, 1.0])];
        let sums: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(one, other)| one + other).collect();
        // The deviation of 0.25, 0.75, 0.5, 1 is the root of 0.3125 / 3.
        let expected = 1.96 * (0.3125f64 / 3.0).sqrt() / 2.0;
        assert!((figure.figure(&sums) - expected).abs() < 1e-12);
        assert!(figure.figure(&add(&[1.0], &[1.0])).is_nan(), "one sample has no interval");
        assert!(
            figure.check(&[vec![None, Some(2)]], None).is_err() && figure.check(&[vec![None]], None).is_ok()
        );
    }
}
