//! The samples, pixels or tokens of each class by target and prediction.

use tch::{Kind, TchError, Tensor};

use super::Shape;
use super::elements::{self, Elements};
use super::label_accuracy::same_shape;

/// The number of [`sums`] of a class.
pub(super) const SUMS: usize = 3;

/// The samples of a class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    /// Those that are predicted as such.
    pub(super) both: f64,
    pub(super) predicted: f64,
    pub(super) target: f64,
}

/// Returns the numbers of samples of each class, float64: by target and prediction, by prediction, by target. `values`: logits, N x K or
/// N x M x K with K at least `classes`, and classes, N or N x M int64; or sets of classes, N x K float32, of which a positive logit
/// predicts one.
pub(super) fn sums(values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
    if values[1].kind() == Kind::Float {
        let counted = weights.f_ne(0.0)?.f_unsqueeze(1)?;
        let (predicted, target) = (values[0].f_detach()?.f_gt(0.0)?, values[1].f_gt(0.5)?);
        let count = |of: Tensor| {
            of.f_logical_and(&counted)?.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Double)
        };
        let both = predicted.f_logical_and(&target)?;
        return Tensor::f_cat(&[count(both)?, count(predicted)?, count(target)?], 0);
    }
    let Elements { logits, targets, counted } = Elements::of(values, weights)?;
    let predicted = logits.f_argmax(1, false)?;
    let right = counted.f_logical_and(&predicted.f_eq_tensor(&targets)?)?;
    let count = |of: &Tensor, among: &Tensor| elements::count(of, among, classes as i64);
    Tensor::f_cat(&[count(&targets, &right)?, count(&predicted, &counted)?, count(&targets, &counted)?], 0)
}

/// Returns the counts of each class.
pub(super) fn counts(sums: &[f64]) -> impl Iterator<Item = Counts> {
    let classes = sums.len() / SUMS;
    let at = move |part: usize, class: usize| sums[part * classes + class];
    (0..classes).map(move |class| Counts {
        both: at(0, class),
        predicted: at(1, class),
        target: at(2, class),
    })
}

/// A quotient of the counts of a class: what is divided, and by what.
pub(super) type Quotient = fn(Counts) -> [f64; 2];

/// Returns the value of each class. A quotient of nothing is 0.
pub(super) fn values(sums: &[f64], value: Quotient) -> Vec<f64> {
    let value = |counts: Counts| {
        let [above, below] = value(counts);
        if below == 0.0 { 0.0 } else { above / below }
    };
    counts(sums).map(value).collect()
}

/// Returns the value of the class `positive`, else the mean over the classes that occur.
pub(super) fn of_classes(sums: &[f64], positive: Option<usize>, value: Quotient) -> f64 {
    let values = values(sums, value);
    if let Some(positive) = positive {
        return values.get(positive).copied().unwrap_or(f64::NAN);
    }
    let occurs = counts(sums).map(|counts| counts.predicted + counts.target > 0.0);
    let values: Vec<f64> =
        values.into_iter().zip(occurs).filter_map(|(value, occurs)| occurs.then_some(value)).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Checks that there is a logit for each class of a sample, and that the class `positive` is among them.
pub(super) fn check(
    figure: &str,
    shapes: &[Shape],
    known: Option<usize>,
    positive: Option<usize>,
) -> Result<(), String> {
    let least = known.unwrap_or(0) as i64;
    match (elements::logits(shapes), known) {
        (Some(Some(k)), _) if k >= least => has_class(figure, positive, known.unwrap_or(k as usize)),
        (Some(None), Some(known)) => has_class(figure, positive, known),
        _ => Err(format!("{figure} takes a logit for each class, N x K; set output to them")),
    }
}

/// As [`check`], for any number of classes of a sample.
pub(super) fn check_sets(figure: &str, shapes: &[Shape], positive: Option<usize>) -> Result<(), String> {
    same_shape(figure, shapes)?;
    shapes[1][1].map_or(Ok(()), |classes| has_class(figure, positive, classes as usize))
}

pub(super) fn has_class(figure: &str, positive: Option<usize>, classes: usize) -> Result<(), String> {
    match positive {
        Some(positive) if positive >= classes => Err(format!(
            "{figure} counts class {positive}, and there are {classes} classes; set positive below {classes}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
