//! Rules without a fused kernel, as operations on a range of values. The new values are computed before any is written: an update
//! that runs out of memory can be tried again, and one that the device skips changes nothing.

use dtrain_torch_shim::fused::{ScaleAndSkip, WeightDecay};
use tch::{TchError, Tensor};

use super::{Rule, UpdateFigures};

/// Elements that are updated at once, which bounds the memory of the operations.
const PIECE: i64 = 1 << 22;

/// Returns the ranges of pieces of `elements` values: their begins and lengths.
pub(super) fn pieces(elements: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..elements).step_by(PIECE as usize).map(move |begin| (begin, PIECE.min(elements - begin)))
}

/// Updates `data` and `moments` from `grad`, all of one length.
pub(super) fn update(
    rule: Rule,
    [data, grad]: [&Tensor; 2],
    moments: &[Tensor],
    figures: UpdateFigures,
    scale_and_skip: Option<ScaleAndSkip<'_>>,
) -> Result<(), TchError> {
    let grad = unscaled(grad, scale_and_skip)?;
    let new = new_values(rule, [data, &grad], moments, figures)?;
    write(std::iter::once(data).chain(moments), new, scale_and_skip)
}

/// Returns a gradient divided by its scale.
pub(super) fn unscaled(grad: &Tensor, scale_and_skip: Option<ScaleAndSkip<'_>>) -> Result<Tensor, TchError> {
    match scale_and_skip {
        Some(ScaleAndSkip { scale, .. }) => grad.f_div(&scale.f_to_kind(grad.kind())?),
        None => Ok(grad.shallow_clone()),
    }
}

/// Copies new values to the old ones, unless the device skips the update.
pub(super) fn write<'a>(
    old: impl Iterator<Item = &'a Tensor> + Clone,
    new: Vec<Tensor>,
    scale_and_skip: Option<ScaleAndSkip<'_>>,
) -> Result<(), TchError> {
    let keeps = scale_and_skip.map(|device| device.skip.f_ne(0.0)).transpose()?;
    let written = |(old, new): (&Tensor, Tensor)| match &keeps {
        Some(keeps) => old.f_where_self(keeps, &new),
        None => Ok(new),
    };
    let new = old.clone().zip(new).map(written).collect::<Result<Vec<_>, _>>()?;
    tch::no_grad(|| old.zip(&new).try_for_each(|(old, new)| old.shallow_clone().f_copy_(new).map(drop)))
}

/// Returns the new values of the data, and then of the moments.
fn new_values(
    rule: Rule,
    [data, grad]: [&Tensor; 2],
    moments: &[Tensor],
    UpdateFigures { lr, weight_decay, number, .. }: UpdateFigures,
) -> Result<Vec<Tensor>, TchError> {
    let missing = || TchError::Convert("an optimizer without its moments; this is a bug of dtrain".into());
    let with_decay = || match weight_decay {
        0.0 => Ok(grad.shallow_clone()),
        _ => grad.f_add(&data.f_mul_scalar(weight_decay)?),
    };
    let decayed = || data.f_mul_scalar(1.0 - lr * weight_decay);
    // mean + part (value - mean)
    let moved = |mean: &Tensor, value: &Tensor, part: f64| mean.f_lerp(value, part);
    let squares = |mean: &Tensor, grad: &Tensor, beta: f64| {
        mean.f_mul_scalar(beta)?.f_add(&grad.f_square()?.f_mul_scalar(1.0 - beta)?)
    };
    match (rule, moments) {
        (Rule::Lion { betas: (beta1, beta2) }, [mean]) => {
            let direction = mean.f_mul_scalar(beta1)?.f_add(&grad.f_mul_scalar(1.0 - beta1)?)?.f_sign()?;
            let data = decayed()?.f_sub(&direction.f_mul_scalar(lr)?)?;
            Ok(vec![data, moved(mean, grad, 1.0 - beta2)?])
        }
        (Rule::Adam { betas: (beta1, beta2), eps, decay, amsgrad: true }, [mean, square, largest]) => {
            let (data, grad) = match decay {
                WeightDecay::Decoupled => (decayed()?, grad.shallow_clone()),
                WeightDecay::L2 => (data.shallow_clone(), with_decay()?),
            };
            let (mean, square) = (moved(mean, &grad, 1.0 - beta1)?, squares(square, &grad, beta2)?);
            let largest = largest.f_maximum(&square)?;
            let [first, second] = [beta1, beta2].map(|beta| 1.0 - beta.powf(number));
            let root = largest.f_sqrt()?.f_div_scalar(second.sqrt())?.f_add_scalar(eps)?;
            let data = data.f_sub(&mean.f_div(&root)?.f_mul_scalar(lr / first)?)?;
            Ok(vec![data, mean, square, largest])
        }
        (Rule::RmsProp { alpha, eps, momentum, centered }, [square, others @ ..]) => {
            let grad = with_decay()?;
            let square = squares(square, &grad, alpha)?;
            let (mean, buffer) = match (centered, others) {
                (true, [mean, buffer @ ..]) => (Some(moved(mean, &grad, 1.0 - alpha)?), buffer),
                (true, []) => return Err(missing()),
                (false, buffer) => (None, buffer),
            };
            let variance = match &mean {
                Some(mean) => square.f_sub(&mean.f_square()?)?,
                None => square.shallow_clone(),
            };
            let change = grad.f_div(&variance.f_sqrt()?.f_add_scalar(eps)?)?;
            let buffer = buffer.first().map(|old| old.f_mul_scalar(momentum)?.f_add(&change)).transpose()?;
            let data = data.f_sub(&buffer.as_ref().unwrap_or(&change).f_mul_scalar(lr)?)?;
            Ok([Some(data), Some(square), mean, buffer].into_iter().flatten().collect())
        }
        _ => Err(missing()),
    }
}
