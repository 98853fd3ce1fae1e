//! The distance between borders: the 95th percentile of the Hausdorff distance, as `hd95` of MedPy.

use super::Object;
use super::nearest::nearest;

/// Returns the distance in pixels that 95% of the border pixels of target and prediction do not exceed. If one of them has no object it is the
/// diagonal of the image, which no distance exceeds; None if both have none.
pub(in super::super) fn distance_95(object: &Object) -> Option<f64> {
    let Object { height, width, target, predicted, .. } = object;
    match [target, predicted].map(|of| of.contains(&true)) {
        [false, false] => return None,
        [true, true] => {}
        _ => return Some(((height * height + width * width) as f64).sqrt()),
    }
    let [one, other] = [target, predicted].map(|of| border(of, *height, *width));
    let mut all = [between(&one, &other, *height, *width), between(&other, &one, *height, *width)].concat();
    all.sort_unstable_by(f64::total_cmp);
    Some(percentile(&all, 0.95))
}

/// Returns the pixels of an object with a neighbour, of four, that is not in it or outside of the image.
fn border(of: &[bool], height: usize, width: usize) -> Vec<bool> {
    let is_inner = |at: usize| {
        let (row, column) = (at / width, at % width);
        let inside = row > 0 && row + 1 < height && column > 0 && column + 1 < width;
        inside && of[at - 1] && of[at + 1] && of[at - width] && of[at + width]
    };
    of.iter().enumerate().map(|(at, is)| *is && !is_inner(at)).collect()
}

/// Returns the distances of the pixels of one border to the other.
fn between(one: &[bool], other: &[bool], height: usize, width: usize) -> Vec<f64> {
    let places = nearest(other, height, width);
    let distance = |(at, _): (usize, &bool)| {
        let (row, column) = places[at];
        ((row.abs_diff(at / width).pow(2) + column.abs_diff(at % width).pow(2)) as f64).sqrt()
    };
    one.iter().enumerate().filter(|(_, is)| **is).map(distance).collect()
}

/// Returns the value below which this part of sorted values is, between two of them in proportion.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, rest) = (place.floor() as usize, place.fract());
    let next = sorted[(below + 1).min(sorted.len() - 1)];
    sorted[below] + rest * (next - sorted[below])
}
