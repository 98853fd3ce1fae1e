//! The structure measure: Fan et al. 2017, arXiv 1708.00786.

use super::{EPS, Object, mean};

/// Returns half of the similarity of the object and half of that of four regions about its centre.
pub(in super::super) fn measure(object: &Object) -> f64 {
    let Object { probabilities, target, .. } = object;
    let of_target = mean(target.iter().map(|is| number(*is)));
    let of_prediction = mean(probabilities.iter().copied());
    if of_target == 0.0 {
        return 1.0 - of_prediction;
    }
    if of_target == 1.0 {
        return of_prediction;
    }
    let of = |wanted: bool| {
        let values = probabilities.iter().zip(target).filter(move |(_, is)| **is == wanted);
        values.map(move |(p, _)| if wanted { *p } else { 1.0 - *p }).collect::<Vec<_>>()
    };
    let of_object = similarity(&of(true)) * of_target + similarity(&of(false)) * (1.0 - of_target);
    (0.5 * of_object + 0.5 * of_regions(object)).max(0.0)
}

fn number(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Returns the similarity of the values of object or background to 1.
fn similarity(values: &[f64]) -> f64 {
    let mean = mean(values.iter().copied());
    let deviation = match values.len() {
        0 | 1 => 0.0,
        count => (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64).sqrt(),
    };
    2.0 * mean / (mean * mean + 1.0 + deviation + EPS)
}

/// Returns the mean similarity of the four regions that meet at the centre of the object, by their areas.
fn of_regions(object: &Object) -> f64 {
    let Object { height, width, target, .. } = object;
    let places = || target.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| (at / width, at % width));
    // Half to even, as numpy rounds.
    let centre = |values: Vec<usize>| {
        (values.iter().sum::<usize>() as f64 / values.len() as f64).round_ties_even() as usize + 1
    };
    let (y, x) =
        (centre(places().map(|place| place.0).collect()), centre(places().map(|place| place.1).collect()));
    let area = (height * width) as f64;
    let weights = [x * y, y * (width - x), (height - y) * x].map(|pixels| pixels as f64 / area);
    let last = 1.0 - weights[0] - weights[1] - weights[2];
    let regions = [(0..y, 0..x), (0..y, x..*width), (y..*height, 0..x), (y..*height, x..*width)];
    let weights = weights.into_iter().chain([last]);
    // A region without pixels weighs nothing.
    let filled = regions
        .into_iter()
        .zip(weights)
        .filter(|((rows, columns), _)| !rows.is_empty() && !columns.is_empty());
    filled.map(|((rows, columns), weight)| weight * of_region(object, rows, columns)).sum()
}

/// Returns the structural similarity of a region as a whole.
fn of_region(object: &Object, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> f64 {
    let at: Vec<usize> =
        rows.flat_map(|row| columns.clone().map(move |column| row * object.width + column)).collect();
    let (p, t) = (|at: &usize| object.probabilities[*at], |at: &usize| number(object.target[*at]));
    let (x, y) = (mean(at.iter().map(p)), mean(at.iter().map(t)));
    let below = at.len() as f64 - 1.0 + EPS;
    let sum = |of: &dyn Fn(&usize) -> f64| at.iter().map(of).sum::<f64>() / below;
    let (own, other) = (sum(&|at| (p(at) - x).powi(2)), sum(&|at| (t(at) - y).powi(2)));
    let both = sum(&|at| (p(at) - x) * (t(at) - y));
    let (above, below) = (4.0 * x * y * both, (x * x + y * y) * (own + other));
    match (above == 0.0, below == 0.0) {
        (false, _) => above / (below + EPS),
        (true, true) => 1.0,
        (true, false) => 0.0,
    }
}
