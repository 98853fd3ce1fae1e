//! The area under the curve of true over false positives: Hanley and McNeil 1982, doi 10.1148/radiology.143.1.7063747.

use dtrain_recipe::figures::Auc;
use tch::{Kind, TchError, Tensor};

use super::elements::Elements;
use super::label_accuracy::same_shape;
use super::rows::ByRows;
use super::{Figure, Made, Shape, Source};

/// Of too many samples, scores are counted in as many bins: by sign, exponent and the first 7 bits after the point.
const BINS: usize = 1 << 16;

impl Figure for Auc {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        check("auc", self.positive, self.classes.as_deref().unwrap_or_default(), shapes, classes)
    }

    fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
        check_sets("auc", self.positive, shapes)
    }

    fn made(&self) -> Made<'_> {
        Made::ByRows(self)
    }
}

/// Checks that there is one score for each sample, or logits with the class `positive`.
pub(super) fn check(
    figure: &str,
    positive: usize,
    field: &str,
    shapes: &[Shape],
    classes: Option<usize>,
) -> Result<(), String> {
    let least = |known: Option<i64>| known.filter(|known| *known <= positive as i64);
    let logits = match shapes[0][..] {
        [None] | [None, Some(1)] => None,
        [None, k] if shapes[1].len() == 1 => k,
        [None, _, k] if shapes[1].len() == 2 => k,
        _ if shapes[1].len() > 1 => {
            return Err(format!("{figure} takes one class for each sample, and `{field}` has several"));
        }
        _ => {
            return Err(format!(
                "{figure} takes logits, N x K, or a score for each sample, N; set output to them"
            ));
        }
    };
    match least(logits).or(least(classes.map(|classes| classes as i64))) {
        Some(known) => Err(no_such_class(figure, positive, known)),
        None => Ok(()),
    }
}

/// As [`check`], for any number of classes of a sample.
pub(super) fn check_sets(figure: &str, positive: usize, shapes: &[Shape]) -> Result<(), String> {
    same_shape(figure, shapes)?;
    match shapes[1][1] {
        Some(known) if known <= positive as i64 => Err(no_such_class(figure, positive, known)),
        _ => Ok(()),
    }
}

/// Says that the positive class is not among the `known` ones.
fn no_such_class(figure: &str, positive: usize, known: i64) -> String {
    format!(
        "{figure} counts class {positive} as positive, and there are {known} classes; set positive below {known}"
    )
}

/// A row is a score, and 2 for a positive or 1 for a negative sample.
impl ByRows for Auc {
    fn columns(&self) -> usize {
        2
    }

    fn rows(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        rows(self.positive, values, weights)
    }

    fn of_rows(&self, rows: &[f32]) -> f64 {
        by_score(rows).map_or(f64::NAN, |equal| area(equal.into_iter()))
    }

    fn sums(&self, rows: &[f32]) -> Vec<f64> {
        binned(rows)
    }

    fn of_sums(&self, sums: &[f64]) -> f64 {
        of_bins(sums).map_or(f64::NAN, area)
    }
}

/// Returns a row for each sample: a score, and 2 for a positive or 1 for a negative one.
///
/// The score is the logit of the positive class less the log of the sum of the others' exponentials, which is the log of
/// its odds; or the output itself, if it has one number for each sample.
pub(super) fn rows(positive: usize, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
    let positive = positive as i64;
    if values[1].kind() == Kind::Float {
        let of_class = |values: &Tensor| values.f_select(1, positive);
        let marks = of_class(values[1])?.f_add_scalar(1.0)?;
        let output = values[0].f_detach()?.f_to_kind(Kind::Float)?;
        return rows_of(&of_class(&output)?, &marks, &weights.f_ne(0.0)?);
    }
    let Elements { logits, targets, counted } = match values[0].dim() {
        1 => Elements::of(&[&values[0].f_unsqueeze(1)?, values[1]], weights)?,
        _ => Elements::of(values, weights)?,
    };
    let (output, classes) = (logits.f_to_kind(Kind::Float)?, logits.size()[1]);
    let scores = match classes {
        1 => output.f_reshape([-1])?,
        _ => {
            let before = output.f_narrow(1, 0, positive)?;
            let after = output.f_narrow(1, positive + 1, classes - positive - 1)?;
            let others = Tensor::f_cat(&[before, after], 1)?.f_logsumexp([1i64].as_slice(), false)?;
            output.f_select(1, positive)?.f_sub(&others)?
        }
    };
    let marks = targets.f_eq(positive)?.f_to_kind(Kind::Float)?.f_add_scalar(1.0)?;
    rows_of(&scores, &marks, &counted)
}

/// Returns the negative and the positive samples of each score, rising; None if a score is no number.
pub(super) fn by_score(rows: &[f32]) -> Option<Vec<[f64; 2]>> {
    let mut scores = Vec::with_capacity(rows.len() / 2);
    scores.extend(samples(rows));
    if scores.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    scores.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    let counts = scores.chunk_by(|(a, _), (b, _)| a == b).map(|equal| {
        let positives = equal.iter().filter(|(_, is_positive)| *is_positive).count();
        [(equal.len() - positives) as f64, positives as f64]
    });
    Some(counts.collect())
}

/// Returns the negative and the positive samples of each bin, in turns, and the scores that are no number.
pub(super) fn binned(rows: &[f32]) -> Vec<f64> {
    let mut sums = vec![0.0; 2 * BINS + 1];
    for (score, is_positive) in samples(rows) {
        // Rising bits for rising numbers: of negative ones all are inverted, of others the sign.
        let bits = score.to_bits();
        let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        let bin = (rising >> 16) as usize;
        sums[if score.is_nan() { 2 * BINS } else { 2 * bin + usize::from(is_positive) }] += 1.0;
    }
    sums
}

/// Returns the negative and the positive samples of each bin of scores, rising; None if a score is no number.
pub(super) fn of_bins(sums: &[f64]) -> Option<impl DoubleEndedIterator<Item = [f64; 2]>> {
    (sums[2 * BINS] == 0.0).then(|| sums[..2 * BINS].chunks_exact(2).map(|bin| [bin[0], bin[1]]))
}

/// Returns rows of scores and marks, which are 0 where nothing counts.
fn rows_of(scores: &Tensor, marks: &Tensor, counted: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_stack(&[scores, marks], 1)?.f_masked_fill(&counted.f_logical_not()?.f_unsqueeze(1)?, 0.0)
}

/// Returns the score of each sample that counts, and whether it is positive.
fn samples(rows: &[f32]) -> impl Iterator<Item = (f32, bool)> {
    let counted = rows.chunks_exact(2).filter(|row| row[1] != 0.0);
    // -0 and 0 are equal scores.
    counted.map(|row| (row[0] + 0.0, row[1] == 2.0))
}

/// Returns the part of all pairs in which the positive sample has the larger score; NaN without a pair. `equal`: the
/// negative and the positive samples of each score, rising. All counts are exact.
fn area(equal: impl Iterator<Item = [f64; 2]>) -> f64 {
    let (mut below, mut all, mut won) = (0.0, 0.0, 0.0);
    for [negatives, positives] in equal {
        won += positives * (below + 0.5 * negatives);
        below += negatives;
        all += positives;
    }
    won / (below * all)
}

#[cfg(test)]
mod tests;
