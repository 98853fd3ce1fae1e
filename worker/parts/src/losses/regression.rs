//! The losses of regressions. All are sums with weights, so they do not depend on the cut of a step.

use dtrain_recipe::{self as recipe, SampleLoss};
use tch::{Device, Kind, TchError, Tensor};

use super::classes::{add, or_nothing};
use super::of_samples::of_samples;
use crate::figures::errors::{map_sums, vector_sums};
use crate::loss::sample_means;
use crate::{Loss, Outputs, enlarged};

/// The unit of the network's output, by number: target = mean + deviation x output.
pub struct Units {
    /// By number.
    pub mean: Vec<f64>,
    /// By number.
    pub deviation: Vec<f64>,
    /// The values of the two lists, float64 on the device; None if the output has the targets' unit.
    values: Option<[Tensor; 2]>,
}

impl Units {
    /// Returns the units of `numbers` numbers in the targets' unit.
    pub fn of_targets(numbers: usize) -> Self {
        Self { mean: vec![0.0; numbers], deviation: vec![1.0; numbers], values: None }
    }

    /// Returns the units of targets that are normalised by these means and deviations.
    pub fn normalised(mean: Vec<f64>, deviation: Vec<f64>, device: Device) -> Result<Self, TchError> {
        let on_device = |list: &[f64]| Tensor::f_from_slice(list)?.f_to_device(device);
        let values = Some([on_device(&mean)?, on_device(&deviation)?]);
        Ok(Self { mean, deviation, values })
    }

    /// Returns the output, float32, that predicts `targets`.
    pub fn goal(&self, targets: &Tensor) -> Result<Tensor, TchError> {
        let Some([mean, deviation]) = &self.values else { return targets.f_to_kind(Kind::Float) };
        let centred = targets.f_to_kind(Kind::Double)?.f_sub(mean)?;
        centred.f_div(deviation)?.f_to_kind(Kind::Float)
    }

    /// Returns the differences of an output to `targets`, in their unit, float64 and detached.
    fn errors(&self, output: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
        self.of_output(output)?.f_sub(targets)
    }

    /// Returns an output in the unit of the targets, float64 and detached.
    pub fn of_output(&self, output: &Tensor) -> Result<Tensor, TchError> {
        let output = output.f_detach()?.f_to_kind(Kind::Double)?;
        match &self.values {
            Some([mean, deviation]) => output.f_mul(deviation)?.f_add(mean),
            None => Ok(output),
        }
    }
}

/// Returns the loss of each element: the sum of its terms.
fn elementwise(output: &Tensor, goal: &Tensor, terms: &[&SampleLoss]) -> Result<Tensor, TchError> {
    let mut total = None;
    for term in terms {
        let Some(of_numbers) = of_samples(term).of_numbers() else { continue };
        let losses = of_numbers.losses(output, goal)?;
        let losses = if term.weight() == 1.0 { losses } else { losses.f_mul_scalar(term.weight())? };
        total = Some(add(total, losses)?);
    }
    or_nothing(total, output)
}

fn settings(loss: &recipe::Loss) -> Vec<&SampleLoss> {
    loss.terms().iter().map(|term| &term.settings).collect()
}

/// Computes the loss of outputs, N x K (or N for K = 1), for `targets`, N x K: the mean of each sample, times
/// its weight in `weights`, N. The figures are those of [`vector_sums`] with `center`, K float64.
pub fn vector_loss(
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
    center: &Tensor,
    loss: &recipe::Loss,
) -> Result<Loss, TchError> {
    let vectors = Vectors::of(outputs, targets, weights)?;
    let losses = vectors.losses(targets, units, &settings(loss))?;
    let errors = units.errors(&vectors.outputs.main, targets)?;
    Loss::of_samples(&losses, weights, vector_sums(&errors, targets, center, &vectors.unreadable)?)
}

/// Returns the loss of each sample by one term, as [`vector_loss`]; 0 of those of weight 0.
pub fn vector_losses(
    term: &SampleLoss,
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
) -> Result<Tensor, TchError> {
    Vectors::of(outputs, targets, weights)?.losses(targets, units, &[term])
}

/// Outputs, N x K float32, which are 0 for unreadable samples.
struct Vectors {
    outputs: Outputs,
    unreadable: Tensor,
}

impl Vectors {
    fn of(outputs: &Outputs, targets: &Tensor, weights: &Tensor) -> Result<Self, TchError> {
        let (shape, unreadable) = (targets.size(), weights.f_eq(0.0)?);
        // Also the derivatives of unreadable samples are 0, whatever their outputs.
        let absent = unreadable.f_view([-1, 1])?;
        let outputs = outputs.map(|output| {
            output.f_to_kind(Kind::Float)?.f_reshape(shape.as_slice())?.f_masked_fill(&absent, 0.0)
        })?;
        Ok(Self { outputs, unreadable })
    }

    fn losses(&self, targets: &Tensor, units: &Units, terms: &[&SampleLoss]) -> Result<Tensor, TchError> {
        let goal = units.goal(targets)?;
        let losses = self.outputs.loss(|output| sample_means(&elementwise(output, &goal, terms)?))?;
        losses.f_masked_fill(&self.unreadable, 0.0)
    }
}

/// Returns maps, N x height x width float32, of an output, N x H x W or N x 1 x H x W, which may be smaller.
pub fn map_of(output: &Tensor, size: (i64, i64)) -> Result<Tensor, TchError> {
    let planes = if output.dim() == 3 { output.f_unsqueeze(1)? } else { output.shallow_clone() };
    enlarged(&planes, size)?.f_to_kind(Kind::Float)?.f_squeeze_dim(1)
}

/// Computes the loss of outputs, N x H x W or N x 1 x H x W or smaller, for the maps `targets`, N x H x W. The
/// loss is a sum over pixels. Pixels without a number (NaN), and all pixels of samples with weight 0 in
/// `weights`, N, do not count. The figures are those of [`map_sums`].
pub fn map_loss(
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
    loss: &recipe::Loss,
) -> Result<Loss, TchError> {
    let Maps { outputs, targets, left_out } = Maps::of(outputs, targets, weights)?;
    let (goal, terms) = (units.goal(&targets)?, settings(loss));
    let sum = outputs.loss(|output| {
        elementwise(output, &goal, &terms)?.f_masked_fill(&left_out, 0.0)?.f_sum(Kind::Float)
    })?;
    let sums = map_sums(&units.errors(&outputs.main, &targets)?, &left_out)?;
    Ok(Loss { sum, weight: left_out.f_logical_not()?.f_sum(Kind::Double)?, sums })
}

/// Returns the loss of each sample by one term, the mean over its pixels that count; 0 without such a pixel. See [`map_loss`].
pub fn map_losses(
    term: &SampleLoss,
    outputs: &Outputs,
    targets: &Tensor,
    weights: &Tensor,
    units: &Units,
) -> Result<Tensor, TchError> {
    let Maps { outputs, targets, left_out } = Maps::of(outputs, targets, weights)?;
    let goal = units.goal(&targets)?;
    let sums = |values: &Tensor| values.f_sum_dim_intlist([1i64, 2].as_slice(), false, Kind::Float);
    let losses =
        outputs.loss(|output| sums(&elementwise(output, &goal, &[term])?.f_masked_fill(&left_out, 0.0)?))?;
    losses.f_div(&sums(&left_out.f_logical_not()?)?.f_clamp_min(1.0)?)
}

/// Outputs and targets, N x H x W, which are 0 for pixels that are left out.
struct Maps {
    outputs: Outputs,
    targets: Tensor,
    left_out: Tensor,
}

impl Maps {
    fn of(outputs: &Outputs, targets: &Tensor, weights: &Tensor) -> Result<Self, TchError> {
        let (_, height, width) = targets.size3()?;
        let left_out = targets.f_isnan()?.f_logical_or(&weights.f_eq(0.0)?.f_view([-1, 1, 1])?)?;
        let outputs = outputs.map(|output| map_of(output, (height, width))?.f_masked_fill(&left_out, 0.0))?;
        Ok(Self { outputs, targets: targets.f_masked_fill(&left_out, 0.0)?, left_out })
    }
}

#[cfg(test)]
mod tests;
