//! Whether the rows that a batch normalisation sees for each sample follow each other, as groups of samples need. Two
//! passes differ in the last sample only; the layers record a figure of each row.

use std::sync::Mutex;

use tch::{Kind, TchError, Tensor};

use super::error::ModelError;
use super::lock;

/// The figures of a layer's rows in a pass.
#[derive(Debug)]
pub(crate) struct RowFigures {
    layer: String,
    figures: Vec<f64>,
}

/// The figures of a pass, while it is recorded.
#[derive(Debug, Default)]
pub(super) struct Recording(Mutex<Option<Vec<RowFigures>>>);

impl Recording {
    pub(super) fn begin(&self) {
        *lock(&self.0) = Some(Vec::new());
    }

    pub(super) fn end(&self) -> Vec<RowFigures> {
        lock(&self.0).take().unwrap_or_default()
    }

    /// Records the rows of a layer's input. Returns false if nothing is recorded.
    pub(super) fn add(&self, layer: &str, x: &Tensor) -> Result<bool, TchError> {
        let mut recording = lock(&self.0);
        let Some(recording) = recording.as_mut() else { return Ok(false) };
        let rows = x.f_detach()?.f_reshape([x.size()[0], -1])?.f_to_kind(Kind::Double)?;
        let figures = rows.f_square()?.f_add(&rows)?.f_sum_dim_intlist([1i64].as_slice(), false, None)?;
        recording.push(RowFigures { layer: layer.to_owned(), figures: Vec::try_from(figures)? });
        Ok(true)
    }
}

/// Checks two passes over `samples` samples that differ in the last one. A layer of which all rows differ mixes samples
/// itself, and is not judged.
pub(crate) fn check_order(passes: &[Vec<RowFigures>; 2], samples: usize) -> Result<(), ModelError> {
    /// The smallest difference that is no rounding, in terms of the largest.
    const CHANGED: f64 = 1e-3;
    for (one, other) in passes[0].iter().zip(&passes[1]) {
        let rows = one.figures.len();
        if !rows.is_multiple_of(samples) {
            return Err(ModelError::Rows(one.layer.clone(), rows as i64, samples as i64));
        }
        let differences: Vec<f64> =
            one.figures.iter().zip(&other.figures).map(|(one, other)| (one - other).abs()).collect();
        let largest = differences.iter().copied().fold(0.0, f64::max);
        let changed = |difference: &f64| largest > 0.0 && *difference > CHANGED * largest;
        let (others, last) = differences.split_at(rows - rows / samples);
        if others.iter().any(changed) && !last.iter().all(changed) {
            return Err(ModelError::RowOrder(one.layer.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(one: &[f64], other: &[f64], samples: usize) -> Result<(), ModelError> {
        let pass = |figures: &[f64]| vec![RowFigures { layer: "bn".to_owned(), figures: figures.to_vec() }];
        check_order(&[pass(one), pass(other)], samples)
    }

    #[test]
    fn rows_of_a_sample_must_follow_each_other() {
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert!(check(&rows, &[1.0, 2.0, 3.0, 4.0, 7.0, 8.0], 3).is_ok());
        assert!(check(&rows, &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 3).is_ok(), "the layer mixes samples itself");
        let apart = check(&rows, &[1.0, 2.0, 9.0, 4.0, 5.0, 9.0], 3);
        assert!(matches!(apart, Err(ModelError::RowOrder(layer)) if layer == "bn"));
        assert!(matches!(check(&rows, &rows, 4), Err(ModelError::Rows(_, 6, 4))));
    }
}
