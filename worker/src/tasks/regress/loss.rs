//! The losses of regressions. All are sums with weights, so they do not depend on the cut of a step.

use dtrain_recipe as recipe;
use tch::{Device, Kind, Reduction, TchError, Tensor};

use super::super::network::{Outputs, enlarged};
use super::super::per_sample::{loss_of, sample_means};
use super::super::{Loss, TaskError};
use crate::data::Moments;

/// The unit of the network's output, by number: target = mean + deviation x output.
pub(super) struct Units {
    pub(super) mean: Vec<f64>,
    pub(super) deviation: Vec<f64>,
    /// The values of the two lists, float64 on the device; None if the output has the targets' unit.
    values: Option<[Tensor; 2]>,
}

impl Units {
    /// Makes the units of `numbers` numbers: those of normalised targets with these moments, else the targets'.
    pub(super) fn new(
        normalise: Option<&[Moments]>,
        numbers: usize,
        device: Device,
    ) -> Result<Self, TchError> {
        let (mean, deviation): (Vec<f64>, Vec<f64>) = match normalise {
            Some(all) => all.iter().map(|moments| (moments.mean, moments.deviation())).unzip(),
            None => (vec![0.0; numbers], vec![1.0; numbers]),
        };
        let on_device = |list: &[f64]| Tensor::f_from_slice(list)?.f_to_device(device);
        let values = normalise.map(|_| Ok::<_, TchError>([on_device(&mean)?, on_device(&deviation)?]));
        Ok(Self { values: values.transpose()?, mean, deviation })
    }

    /// Returns the output, float32, that predicts `targets`.
    fn goal(&self, targets: &Tensor) -> Result<Tensor, TchError> {
        let Some([mean, deviation]) = &self.values else { return targets.f_to_kind(Kind::Float) };
        let centred = targets.f_to_kind(Kind::Double)?.f_sub(mean)?;
        centred.f_div(deviation)?.f_to_kind(Kind::Float)
    }

    /// Returns the differences of an output to `targets`, in their unit, float64 and detached.
    fn errors(&self, output: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
        let mut output = output.f_detach()?.f_to_kind(Kind::Double)?;
        if let Some([mean, deviation]) = &self.values {
            output = output.f_mul(deviation)?.f_add(mean)?;
        }
        output.f_sub(targets)
    }
}

/// Returns the loss of each element.
fn elementwise(output: &Tensor, goal: &Tensor, loss: recipe::Loss) -> Result<Tensor, TchError> {
    match loss {
        recipe::Loss::L1 => output.f_sub(goal)?.f_abs(),
        recipe::Loss::Huber => output.f_huber_loss(goal, Reduction::None, 1.0),
        _ => output.f_sub(goal)?.f_square(),
    }
}

/// Computes the loss of outputs, N x K (or N for K = 1), for `targets`, N x K: the mean of each sample, times
/// its weight in `weights`, N. The figures are K times each of: sums of absolute errors, of squared errors, of
/// targets and of squared targets, the last two less `center`, K float64.
pub(super) fn vector_loss(
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
    center: &Tensor,
    loss: recipe::Loss,
) -> Result<Loss, TaskError> {
    let (shape, goal) = (targets.size(), units.goal(targets)?);
    let outputs = outputs.map(|output| output.f_to_kind(Kind::Float)?.f_reshape(shape.as_slice()))?;
    let losses = outputs.loss(|output| sample_means(&elementwise(output, &goal, loss)?))?;
    let unreadable = weights.f_eq(0.0)?;
    let counted = loss_of(&losses.f_masked_fill(&unreadable, 0.0)?, None, weights)?;
    let errors = units.errors(&outputs.main, targets)?;
    let centred = targets.f_to_kind(Kind::Double)?.f_sub(center)?;
    let unreadable = unreadable.f_view([-1, 1])?;
    let total = |values: Tensor| {
        values.f_masked_fill(&unreadable, 0.0)?.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Double)
    };
    let sums = [errors.f_abs()?, errors.f_square()?, centred.shallow_clone(), centred.f_square()?];
    let sums = sums.into_iter().map(total).collect::<Result<Vec<_>, _>>()?;
    Ok(Loss { sums: Tensor::f_cat(&sums, 0)?, ..counted })
}

/// Computes the loss of outputs, N x H x W or N x 1 x H x W or smaller, for the maps `targets`, N x H x W. The
/// loss is a sum over pixels. Pixels without a number (NaN), and all pixels of samples with weight 0 in
/// `weights`, N, do not count. The figures are the sums of absolute and of squared errors.
pub(super) fn map_loss(
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
    loss: recipe::Loss,
) -> Result<Loss, TaskError> {
    let (_, height, width) = targets.size3()?;
    let left_out = targets.f_isnan()?.f_logical_or(&weights.f_eq(0.0)?.f_view([-1, 1, 1])?)?;
    let targets = targets.f_masked_fill(&left_out, 0.0)?;
    let goal = units.goal(&targets)?;
    let outputs = outputs.map(|output| {
        let planes = if output.dim() == 3 { output.f_unsqueeze(1)? } else { output.shallow_clone() };
        enlarged(&planes, (height, width))?.f_to_kind(Kind::Float)?.f_squeeze_dim(1)
    })?;
    let counted = |values: Tensor, kind| values.f_masked_fill(&left_out, 0.0)?.f_sum(kind);
    let sum = outputs.loss(|output| counted(elementwise(output, &goal, loss)?, Kind::Float))?;
    let errors = units.errors(&outputs.main, &targets)?;
    let sums = [counted(errors.f_abs()?, Kind::Double)?, counted(errors.f_square()?, Kind::Double)?];
    Ok(Loss { sum, weight: left_out.f_logical_not()?.f_sum(Kind::Double)?, sums: Tensor::f_stack(&sums, 0)? })
}

/// Returns the mean absolute error, the root mean squared error and the coefficient of determination, each
/// the mean over the numbers, from the sums of [`vector_loss`] over samples of this weight.
pub(super) fn vector_metrics(sums: &[f64], weight: f64) -> [(&'static str, f64); 3] {
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
