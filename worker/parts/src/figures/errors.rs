//! Errors of predicted numbers: mean absolute, root mean squared, and the coefficient of determination.

use tch::{Kind, TchError, Tensor};

/// Returns K times each of: sums over the samples of absolute errors, of squared errors, of targets and of squared targets,
/// the last two less `center`, K float64. `errors` and `targets`: N x K. Samples that are `unreadable`, N, add nothing.
pub fn vector_sums(
    errors: &Tensor,
    targets: &Tensor,
    center: &Tensor,
    unreadable: &Tensor,
) -> Result<Tensor, TchError> {
    let centred = targets.f_to_kind(Kind::Double)?.f_sub(center)?;
    let unreadable = unreadable.f_view([-1, 1])?;
    let total = |values: Tensor| {
        values.f_masked_fill(&unreadable, 0.0)?.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Double)
    };
    let sums = [errors.f_abs()?, errors.f_square()?, centred.shallow_clone(), centred.f_square()?];
    Tensor::f_cat(&sums.into_iter().map(total).collect::<Result<Vec<_>, _>>()?, 0)
}

/// Returns the sums of absolute and of squared errors over all pixels that are not `left_out`.
pub fn map_sums(errors: &Tensor, left_out: &Tensor) -> Result<Tensor, TchError> {
    let total = |values: Tensor| values.f_masked_fill(left_out, 0.0)?.f_sum(Kind::Double);
    Tensor::f_stack(&[total(errors.f_abs()?)?, total(errors.f_square()?)?], 0)
}

/// Returns the mean absolute and the root mean squared error from the sums of [`map_sums`] over pixels of this weight.
pub fn map_metrics([absolute, squared]: [f64; 2], weight: f64) -> [(&'static str, f64); 2] {
    [("mae", absolute / weight), ("rmse", (squared / weight).sqrt())]
}

/// Returns the mean absolute error, the root mean squared error and the coefficient of determination, each
/// the mean over the numbers, from the sums of [`vector_sums`] over samples of this weight.
pub fn vector_metrics(sums: &[f64], weight: f64) -> [(&'static str, f64); 3] {
    let numbers = sums.len() / 4;
    let part = |at: usize| &sums[at * numbers..][..numbers];
    let mean = |value: &dyn Fn(usize) -> f64| (0..numbers).map(value).sum::<f64>() / numbers as f64;
    let [absolute, squared, centred, centred_squared] = [part(0), part(1), part(2), part(3)];
    let spread = |number: usize| centred_squared[number] - centred[number].powi(2) / weight;
    [
        ("mae", mean(&|number| absolute[number] / weight)),
        ("rmse", mean(&|number| (squared[number] / weight).sqrt())),
        ("r2", mean(&|number| 1.0 - squared[number] / spread(number))),
    ]
}
