//! What becomes of a step: its gradient's norm, how far it is clipped, whether the step is skipped, and its update.
//!
//! On a CPU the host decides, and then updates. On a GPU the device decides: the host gives it the update behind the arithmetic of
//! the decision, which the update's kernels read from the device's memory, and only then waits, once, for the figures. The GPU so has
//! work while the host learns what has become of the step. docs/decisions/0062-one-wait-a-step.md

use dtrain_torch_shim::fused;
use tch::{Device, Kind, TchError, Tensor};

use super::exchange::Exchange;
use super::reading::Reading;
use super::recover::patiently;
use super::status::Status;
use super::{Cut, Replica};
use crate::metrics::SkipCause;
use crate::state::Table;
use crate::tasks::Totals;
use crate::train_error::{Result, TrainError};

/// torch's clip_grad_norm_ divides by the norm and this.
const CLIP_EPS: f64 = 1e-6;

/// Whether a device decides about steps that are computed there, on which the totals of all ranks are; else the host does, which has
/// them from the statuses.
pub(super) fn is_device_s(device: Device) -> bool {
    #[cfg(test)]
    if tests::AS_ON_A_GPU.get() {
        return true;
    }
    device.is_cuda()
}

/// A step of which all is known, the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    pub(super) totals: Totals,
    /// The norm of the mean gradient over the weight that counted.
    pub(super) norm: f64,
    /// Whether no gradient was found that is not finite, where there is a loss scale.
    pub(super) finite: bool,
    pub(super) is_skipped: bool,
}

impl Judged {
    /// Why the step is skipped, where it is.
    pub(super) fn cause(&self) -> Option<SkipCause> {
        self.is_skipped.then(|| SkipCause::of(self.totals.loss(), self.totals.weight))
    }
}

/// What the device will have found when it comes to the update.
struct Coming {
    scale: Tensor,
    skip: Tensor,
    figures: Reading,
}

/// Decides, once the gradients of all ranks are added up, or the device was given that, and updates the rows that were used, after
/// `before_update`. The totals of all ranks are in the status where the host has them, else they are `figures` on the device.
///
/// What takes memory is tried again where it is refused, as the other ranks cannot be told any more. Nothing but the optimizer's kernels
/// on a device, which decide for themselves, is done before the groups of the ranks are known to be well.
pub(super) fn decide_and_update(
    replica: &mut Replica,
    exchange: &Exchange,
    (status, figures): (&Status, Option<&Tensor>),
    cut: &Cut,
    before_update: impl FnOnce() -> Result<()>,
) -> Result<Judged> {
    let Replica { model, precision } = replica;
    let (totals, used) = (&status.totals, &status.used(cut.is_rehearsed));
    let found = precision.unscale(&model.table)?;
    let judged = match figures {
        None => {
            let (norm, finite) = examine(exchange, &model.table, found)?;
            exchange.health()?;
            let missing = cut.expected / totals.weight;
            let factor = decide(totals, missing, norm * missing, finite, cut);
            before_update()?;
            if let Some(factor) = factor {
                if factor != 1.0 {
                    model.table.scale_grad(factor)?;
                }
                model.optimizer.step(&mut model.table, cut.lr, used, None)?;
            }
            Judged { totals: totals.clone(), norm: norm * missing, finite, is_skipped: factor.is_none() }
        }
        Some(totals) => {
            let Coming { scale, skip, figures } = ask_device(exchange, &model.table, found, totals, cut)?;
            before_update()?;
            let found = fused::Found { scale: &scale, skip: &skip };
            model.optimizer.step(&mut model.table, cut.lr, used, Some(found))?;
            let judged = read(&figures.wait()?)?;
            // The device was waited for: what a broken group would have left in the gradients shows here.
            exchange.health()?;
            if judged.is_skipped {
                model.table.count(used, -1);
            }
            judged
        }
    };
    if !judged.is_skipped || cut.is_rehearsed {
        // Every rank has all parameters, and statistics and averages move.
        model.table.gather_data(exchange.ranks())?;
        model.buffers.commit()?;
        model.average.as_mut().map_or(Ok(()), |average| average.update(&model.table))?;
    }
    precision.update(judged.finite)?;
    Ok(judged)
}

/// The norm of the mean gradient, and whether all of it is finite, for the host to decide by: it waits for the
/// device once, here. `found` is a scalar there, not 0 where an element that this rank updates was not finite.
pub(super) fn examine(exchange: &Exchange, table: &Table, found: Option<&Tensor>) -> Result<(f64, bool)> {
    // What takes memory is apart from what the ranks do together: it can be tried again.
    let figures = patiently(table.device(), || {
        let norms = table.own_norms()?;
        let scalars = norms.iter().chain(found).map(|scalar| scalar.f_to_kind(Kind::Double)?.f_view([1]));
        match scalars.collect::<Result<Vec<Tensor>, TchError>>()?.as_slice() {
            [] => Ok::<_, TrainError>(Vec::new()),
            scalars => Reading::begin(&Tensor::f_cat(scalars, 0)?)?.wait(),
        }
    })?;
    let norms = figures.len() - usize::from(found.is_some());
    let squares: f64 = figures[..norms].iter().map(|norm| norm * norm).sum();
    let mut agreed = [squares, figures[norms..].iter().sum()];
    // Where all ranks update everything, they agree already.
    if table.shards() > 1 {
        let own = patiently(Device::Cpu, || Tensor::f_from_slice(&agreed))?;
        exchange.sum(&own)?;
        agreed = [f64::try_from(own.f_get(0)?)?, f64::try_from(own.f_get(1)?)?];
    }
    Ok((agreed[0].sqrt(), agreed[1] == 0.0))
}

/// By which the gradient is multiplied for the update; None where the step is skipped. `norm` is that of the mean gradient over the
/// weight that counted; `missing` is the expected weight over that one.
fn decide(totals: &Totals, missing: f64, norm: f64, finite: bool, cut: &Cut) -> Option<f64> {
    if cut.is_rehearsed {
        // A factor that is multiplied by, as most take nothing else for it.
        return Some(0.5);
    }
    if !finite || totals.weight == 0.0 || !totals.loss_sum.is_finite() || !norm.is_finite() {
        return None;
    }
    let clipped = cut.clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Some(missing * clipped)
}

/// As [`examine`] and [`decide`], by the device.
fn ask_device(
    exchange: &Exchange,
    table: &Table,
    found: Option<&Tensor>,
    totals: &Tensor,
    cut: &Cut,
) -> Result<Coming> {
    let device = table.device();
    // What takes memory is apart from what the ranks do together: it can be tried again.
    let own = patiently(device, || own_figures(table, found))?;
    if table.shards() > 1 {
        exchange.sum(&own)?;
    }
    let [scale, skip, figures] = patiently(device, || tch::no_grad(|| decide_there(&own, totals, cut)))?;
    let figures = patiently(device, || Reading::begin(&figures))?;
    Ok(Coming { scale, skip, figures })
}

/// The sum of squares of the gradients that this rank updates, and not 0 where one of them is not finite.
fn own_figures(table: &Table, found: Option<&Tensor>) -> Result<Tensor, TchError> {
    let options = (Kind::Double, table.device());
    let norms = table.own_norms()?;
    let norms = norms.iter().map(|norm| norm.f_to_kind(Kind::Double));
    let squares = match norms.collect::<Result<Vec<Tensor>, _>>()?.as_slice() {
        [] => Tensor::f_zeros([1], options)?,
        norms => {
            let norms = Tensor::f_stack(norms, 0)?;
            norms.f_dot(&norms)?.f_view([1])?
        }
    };
    let found = match found {
        Some(found) => found.f_to_kind(Kind::Double)?.f_view([1])?,
        None => Tensor::f_zeros([1], options)?,
    };
    Tensor::f_cat(&[squares, found], 0)
}

/// What the update divides the gradients by, whether it is to change nothing (1, else 0), and the figures for the host: totals, norm,
/// what was found, and the decision.
fn decide_there(own: &Tensor, totals: &Tensor, cut: &Cut) -> Result<[Tensor; 3], TchError> {
    let at = |tensor: &Tensor, index| tensor.f_narrow(0, index, 1);
    let (loss, weight) = (at(totals, 0)?, at(totals, 1)?);
    let missing = weight.f_reciprocal()?.f_mul_scalar_(cut.expected)?;
    let norm = at(own, 0)?.f_sqrt()?.f_mul_(&missing)?;
    // 0 where both are finite, else no number; without a weight the norm is infinite, or no number.
    let mut doubt = norm.f_sub(&norm)?.f_add_(&loss.f_sub(&loss)?)?;
    let found = at(own, 1)?;
    let skip = doubt.f_add_(&found)?.f_ne(0.0)?.f_to_kind(Kind::Float)?;
    let scale = match cut.clip {
        Some(limit) => {
            norm.f_add_scalar(CLIP_EPS)?.f_div_scalar_(limit)?.f_clamp_min_(1.0)?.f_div_(&missing)?
        }
        None => missing.f_reciprocal()?,
    };
    let figures = Tensor::f_cat(&[totals, &norm, &found, &skip.f_to_kind(Kind::Double)?], 0)?;
    Ok([scale.f_to_kind(Kind::Float)?, skip, figures])
}

/// What [`decide_there`] has left for the host.
fn read(figures: &[f64]) -> Result<Judged> {
    match figures {
        [loss_sum, weight, sums @ .., norm, found, skip] => Ok(Judged {
            totals: Totals { loss_sum: *loss_sum, weight: *weight, sums: sums.to_vec() },
            norm: *norm,
            finite: *found == 0.0,
            is_skipped: *skip != 0.0,
        }),
        few => Err(TchError::Convert(format!("a verdict of {} figures", few.len())).into()),
    }
}

#[cfg(test)]
pub(super) mod tests;
