//! The weighted F-measure: Margolin et al. 2014, doi 10.1109/CVPR.2014.39.

use super::nearest::nearest;
use super::{EPS, Object};

/// The side of the square over which errors within an object are smoothed, and the deviation of the weights.
const SIDE: isize = 7;
const DEVIATION: f64 = 5.0;

/// Returns the measure with equal weights of precision and recall; 0 of an image without the object.
pub(in super::super) fn measure(object: &Object) -> f64 {
    let Object { height, width, probabilities, target, .. } = object;
    let count = target.iter().filter(|is| **is).count() as f64;
    if count == 0.0 {
        return 0.0;
    }
    let errors: Vec<f64> =
        probabilities.iter().zip(target).map(|(p, is)| (p - f64::from(u8::from(*is))).abs()).collect();
    let places = nearest(target, *height, *width);
    // A pixel of background has the error of the nearest one of the object.
    let spread: Vec<f64> = places.iter().map(|place| errors[place.0 * width + place.1]).collect();
    let smooth = smoothed(&spread, *height, *width);
    let (mut of_object, mut of_background) = (0.0, 0.0);
    for (at, error) in errors.iter().enumerate() {
        if target[at] {
            of_object += error.min(smooth[at]);
        } else {
            let (row, column) = (at / width, at % width);
            let squared = row.abs_diff(places[at].0).pow(2) + column.abs_diff(places[at].1).pow(2);
            of_background += error * (2.0 - (0.5f64.ln() / 5.0 * (squared as f64).sqrt()).exp());
        }
    }
    let right = count - of_object;
    let recall = 1.0 - of_object / count;
    let precision = right / (right + of_background + EPS);
    2.0 * recall * precision / (recall + precision + EPS)
}

/// Returns values smoothed by a Gaussian of [`SIDE`] x [`SIDE`] pixels; outside of the image they are 0.
fn smoothed(values: &[f64], height: usize, width: usize) -> Vec<f64> {
    let half = SIDE / 2;
    let weight = |offset: isize| (-((offset * offset) as f64) / (2.0 * DEVIATION * DEVIATION)).exp();
    let sum: f64 = (-half..=half).map(weight).sum();
    // The weights of the square are products, so lines and columns follow each other.
    let along = |values: &[f64], length: usize, step: usize| {
        let at = |index: usize| {
            let place = index / step % length;
            let near = (-half..=half).filter_map(|offset| {
                let other = place.checked_add_signed(offset).filter(|other| *other < length)?;
                Some(weight(offset) / sum * values[index + other * step - place * step])
            });
            near.sum::<f64>()
        };
        (0..values.len()).map(at).collect::<Vec<f64>>()
    };
    along(&along(values, width, 1), height, width)
}
