//! The enhanced-alignment measure: Fan et al. 2018, arXiv 1805.10421.

use super::{EPS, Object};

/// The thresholds of a curve: of probabilities in 8 bits.
pub(in super::super) const THRESHOLDS: usize = 256;

/// Returns the measure for each threshold, falling.
pub(in super::super) fn curve(object: &Object) -> Vec<f64> {
    // Pixels of background and object by probability.
    let mut counts = [[0usize; 2]; THRESHOLDS];
    for (p, is) in object.probabilities.iter().zip(&object.target) {
        counts[(p * 255.0) as usize][usize::from(*is)] += 1;
    }
    let mut above = [0, 0];
    let falling = counts.iter().rev().map(|of| {
        above = [above[0] + of[0], above[1] + of[1]];
        measure(object, above)
    });
    falling.collect()
}

/// Returns the measure for the threshold that depends on the prediction.
pub(in super::super) fn adaptive(object: &Object) -> f64 {
    let threshold = object.adaptive_threshold();
    let mut above = [0, 0];
    for (p, is) in object.probabilities.iter().zip(&object.target) {
        above[usize::from(*is)] += usize::from(*p >= threshold);
    }
    measure(object, above)
}

/// Returns the measure if this many pixels of background and object are predicted as object.
fn measure(object: &Object, [wrong, right]: [usize; 2]) -> f64 {
    let size = object.target.len() as f64;
    let of_target = object.target.iter().filter(|is| **is).count() as f64;
    let (wrong, right) = (wrong as f64, right as f64);
    let predicted = wrong + right;
    let sum = if of_target == 0.0 {
        size - predicted
    } else if of_target == size {
        predicted
    } else {
        let (p, t) = (predicted / size, of_target / size);
        let missed = of_target - right;
        let parts = [
            (right, 1.0 - p, 1.0 - t),
            (wrong, 1.0 - p, -t),
            (missed, -p, 1.0 - t),
            (size - predicted - missed, -p, -t),
        ];
        let aligned = |(pixels, a, b): (f64, f64, f64)| {
            let alignment = 2.0 * (a * b) / (a * a + b * b + EPS);
            (alignment + 1.0).powi(2) / 4.0 * pixels
        };
        parts.into_iter().map(aligned).sum()
    };
    sum / (size - 1.0 + EPS)
}
