//! The structural similarity of maps: Wang et al. 2004, doi 10.1109/TIP.2003.819861, with a Gaussian window as in the paper.

use dtrain_recipe::figures::Ssim;
use tch::{Kind, TchError, Tensor};

use super::{BySums, Figure, Made, Shape, Source, means};

/// The side of the window, and the deviation of its weights.
const SIDE: i64 = 11;
const DEVIATION: f64 = 1.5;
/// The parts of the range that keep quotients finite.
const PARTS: [f64; 2] = [0.01, 0.03];

impl Figure for Ssim {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Numbers(self.target.as_deref())]
    }

    fn check(&self, shapes: &[Shape], _: Option<usize>) -> Result<(), String> {
        match shapes[1][..] {
            [_, _, Some(height), Some(width)] if height.min(width) >= SIDE => Ok(()),
            _ => Err(format!(
                "ssim takes maps of at least {SIDE} x {SIDE} pixels; remove it, or enlarge the images"
            )),
        }
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

impl BySums for Ssim {
    /// Each image has the mean over its windows, without those with a pixel that does not count.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let left_out = values[1].f_isnan()?.f_logical_or(&weights.f_eq(0.0)?.f_view([-1, 1, 1, 1])?)?;
        let [x, y] =
            [0, 1].map(|at| values[at].f_detach()?.f_to_kind(Kind::Double)?.f_masked_fill(&left_out, 0.0));
        let (x, y) = (x?, y?);
        let weight = |at: i64| (-((at - SIDE / 2) as f64).powi(2) / (2.0 * DEVIATION * DEVIATION)).exp();
        let weights: Vec<f64> = (0..SIDE).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let gaussian: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let mean = |of: &Tensor| windows(of, &gaussian);
        let (mean_x, mean_y) = (mean(&x)?, mean(&y)?);
        let product = mean_x.f_mul(&mean_y)?;
        let squares = mean_x.f_square()?.f_add(&mean_y.f_square()?)?;
        let covariance = mean(&x.f_mul(&y)?)?.f_sub(&product)?;
        let variances = mean(&x.f_square()?.f_add(&y.f_square()?)?)?.f_sub(&squares)?;
        let [one, two] = PARTS.map(|part| (part * self.range.unwrap_or(1.0)).powi(2));
        let double = |of: &Tensor, add: f64| of.f_mul_scalar(2.0)?.f_add_scalar(add);
        let above = double(&product, one)?.f_mul(&double(&covariance, two)?)?;
        let below = squares.f_add_scalar(one)?.f_mul(&variances.f_add_scalar(two)?)?;
        let counts = windows(&left_out.f_to_kind(Kind::Double)?, &[1.0; SIDE as usize])?.f_lt(0.5)?;
        let total =
            |of: Tensor| of.f_flatten(1, -1)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double);
        let sum = total(above.f_div(&below)?.f_masked_fill(&counts.f_logical_not()?, 0.0)?)?;
        let count = total(counts)?;
        means::sums(&sum.f_div(&count.f_clamp_min(1.0)?)?, &count.f_gt(0.0)?, self.interval)
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

/// Returns the weighted sums of all windows that are within the maps, N x 1 x H x W float64.
fn windows(of: &Tensor, weights: &[f64]) -> Result<Tensor, TchError> {
    let kernel = Tensor::f_from_slice(weights)?.f_to_device(of.device())?;
    let along = |of: &Tensor, shape: [i64; 4]| {
        of.f_conv2d(&kernel.f_view(shape)?, None::<Tensor>, [1i64, 1], [0i64, 0], [1i64, 1], 1)
    };
    along(&along(of, [1, 1, 1, SIDE])?, [1, 1, SIDE, 1])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::parity::OfFigures;

    #[test]
    fn the_similarity_is_that_of_scikit_image_in_every_cut() {
        let figure = Ssim { range: Some(3.0), interval: Some(true), ..Ssim::default() };
        OfFigures::read().compare(&figure, ["maps.output", "maps.target"], 1, &["ssim", "ssim.interval"]);
    }

    #[test]
    fn windows_with_a_pixel_that_does_not_count_are_left_out() {
        let figure = Ssim { range: Some(1.0), ..Ssim::default() };
        let target = Tensor::rand([1, 1, 12, 24], (Kind::Double, tch::Device::Cpu));
        let output = target.copy();
        let _ = output.narrow(3, 0, 6).fill_(9.0);
        let _ = target.narrow(3, 3, 1).fill_(f64::NAN);
        let of = |target: &Tensor| {
            let sums = figure.add(&[&output, target], &Tensor::from_slice(&[1f32])).unwrap();
            figure.figure(&Vec::<f64>::try_from(sums).unwrap())
        };
        // Of windows from columns 4 and 5 a part differs still.
        assert!(of(&target) > 0.5 && of(&target) < 1.0, "{}", of(&target));
        let _ = target.narrow(3, 5, 1).fill_(f64::NAN);
        assert!((of(&target) - 1.0).abs() < 1e-9, "{}", of(&target));
        let small = [vec![None, Some(1), Some(10), Some(20)], vec![None, Some(1), Some(10), Some(20)]];
        assert!(figure.check(&small, None).unwrap_err().contains("at least 11 x 11"));
    }
}
