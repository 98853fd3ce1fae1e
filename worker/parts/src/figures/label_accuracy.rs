//! The part of all classes of all samples that are predicted right.

use dtrain_recipe::figures::LabelAccuracy;
use tch::{Kind, TchError, Tensor};

use super::{BySums, Figure, Made, Shape, Source, elements, means};

impl Figure for LabelAccuracy {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, _shapes: &[Shape], _known: Option<usize>) -> Result<(), String> {
        Err(format!(
            "label-accuracy takes any number of classes of a sample, and `{}` has one; use accuracy",
            self.classes.as_deref().unwrap_or_default()
        ))
    }

    fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
        same_shape("label-accuracy", shapes)
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

/// Checks that there is a logit for each class.
pub(super) fn same_shape(figure: &str, shapes: &[Shape]) -> Result<(), String> {
    match (&shapes[0][..], &shapes[1][..]) {
        ([None, k], [None, Some(classes)]) if k.is_none_or(|k| k == *classes) => Ok(()),
        (_, classes) => {
            let classes = classes.last().copied().flatten().unwrap_or_default();
            Err(format!(
                "{figure} takes a logit for each of the {classes} classes, N x {classes}; set output to them"
            ))
        }
    }
}

/// Returns for each class of each sample whether it is right: a positive logit means that the sample has the class.
pub(super) fn right(logits: &Tensor, sets: &Tensor) -> Result<Tensor, TchError> {
    logits.f_detach()?.f_gt(0.0)?.f_eq_tensor(&sets.f_gt(0.5)?)
}

/// Returns the sums of the values that are right, and of all that count, N or N x M.
pub(super) fn part(right: &Tensor, counted: &Tensor, interval: Option<bool>) -> Result<Tensor, TchError> {
    let samples = counted.size()[0];
    let sum =
        |of: &Tensor| of.f_reshape([samples, -1])?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double);
    means::sums(&sum(&right.f_logical_and(counted)?)?, &sum(counted)?, interval)
}

impl BySums for LabelAccuracy {
    /// Returns the number of classes that are right, and of all.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let right = right(values[0], values[1])?;
        part(&right, &elements::counted(&right.f_to_kind(Kind::Int64)?, weights)?, self.interval)
    }

    fn sums(&self) -> usize {
        means::count(self.interval)
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        means::only(sums).value()
    }

    fn further(&self, sums: &[f64]) -> Vec<f64> {
        means::further(sums, self.interval)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_class_of_a_sample_counts() {
        let logits = Tensor::from_slice(&[1f32, -1.0, 2.0, -3.0, 0.5, -0.5]).view([2, 3]);
        let sets = Tensor::from_slice(&[1f32, 0.0, 0.0, 1.0, 1.0, 0.0]).view([2, 3]);
        let of = |weights: &[f32]| {
            let figure = LabelAccuracy::default();
            let sums = figure.add(&[&logits, &sets], &Tensor::from_slice(weights)).unwrap();
            figure.figure(&Vec::<f64>::try_from(sums).unwrap())
        };
        assert_eq!(of(&[1.0, 1.0]), 4.0 / 6.0);
        assert_eq!(of(&[0.0, 1.0]), 2.0 / 3.0, "an unreadable sample");
    }

    #[test]
    fn a_logit_for_each_class_is_needed() {
        let check = |logits: &[Option<i64>]| {
            LabelAccuracy::default().check_sets(&[logits.to_vec(), vec![None, Some(3)]])
        };
        assert!(check(&[None, Some(3)]).is_ok() && check(&[None, None]).is_ok());
        assert!(check(&[None, Some(4)]).unwrap_err().contains("a logit for each of the 3 classes"));
        assert!(check(&[None]).is_err());
    }
}
