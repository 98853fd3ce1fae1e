//! The decision about a step: gradient norm, clipping, skipping, and the update.
//!
//! On a CPU the host decides and then updates. On a GPU the device decides: the host queues the decision's
//! arithmetic and the update, whose kernels read the decision from device memory, and then waits once for the
//! figures. So the GPU has work while the host waits. docs/decisions/0062-one-wait-a-step.md

use dtrain_torch_shim::fused;
use tch::{Device, Kind, TchError, Tensor};

use super::exchange::Exchange;
use super::reading::Reading;
use super::recover::retry_on_oom;
use super::status::Status;
use super::{Replica, StepPlan};
use crate::metrics::SkipCause;
use crate::state::Table;
use crate::tasks::Totals;
use crate::train_error::{Result, TrainError};

/// torch's clip_grad_norm_ divides by the norm plus this.
const CLIP_EPS: f64 = 1e-6;

/// Returns whether a device decides about its steps: it has the totals of all ranks. Otherwise the host
/// decides and has them from the statuses.
pub(super) fn decides_on_device(device: Device) -> bool {
    #[cfg(test)]
    if tests::AS_ON_A_GPU.get() {
        return true;
    }
    device.is_cuda()
}

/// The decision about a step, the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) totals: Totals,
    /// The norm of the mean gradient, over the weight of the samples that counted.
    pub(super) norm: f64,
    /// False if a gradient was not finite. True without a loss scale.
    pub(super) finite: bool,
    pub(super) is_skipped: bool,
}

impl Decision {
    /// Returns why the step is skipped; None if it is not skipped.
    pub(super) fn skip_cause(&self) -> Option<SkipCause> {
        self.is_skipped.then(|| SkipCause::of(self.totals.loss(), self.totals.weight))
    }
}

/// Values on the device, which computes them before the update.
struct DeviceDecision {
    scale: Tensor,
    skip: Tensor,
    figures: Reading,
}

/// Decides about a step and updates the used rows, after `before_update`. Call it when the reduction is
/// complete, or queued on the device. If the host decides, the status has the totals of all ranks, otherwise
/// `figures`.
///
/// Retries failed allocations, because this rank can no longer report them. Before the check of the process
/// groups it changes no state, except by the optimizer's kernels on a device.
pub(super) fn decide_and_update(
    replica: &mut Replica,
    exchange: &Exchange,
    (status, figures): (&Status, Option<&Tensor>),
    plan: &StepPlan,
    before_update: impl FnOnce() -> Result<()>,
) -> Result<Decision> {
    let Replica { model, precision } = replica;
    let (totals, used) = (&status.totals, &status.used(plan.is_rehearsed));
    let found = precision.unscale(&model.table)?;
    let decision = match figures {
        None => {
            let (norm, finite) = measure_gradients(exchange, &model.table, found)?;
            exchange.check_health()?;
            let correction = plan.expected_weight / totals.weight;
            let factor = choose_factor(totals, correction, norm * correction, finite, plan);
            before_update()?;
            if let Some(factor) = factor {
                if factor != 1.0 {
                    model.table.scale_grad(factor)?;
                }
                model.optimizer.step(&mut model.table, plan.lr, used, None)?;
            }
            Decision { totals: totals.clone(), norm: norm * correction, finite, is_skipped: factor.is_none() }
        }
        Some(totals) => {
            let DeviceDecision { scale, skip, figures } =
                queue_decision(exchange, &model.table, found, totals, plan)?;
            before_update()?;
            let scale_and_skip = fused::ScaleAndSkip { scale: &scale, skip: &skip };
            model.optimizer.step(&mut model.table, plan.lr, used, Some(scale_and_skip))?;
            let decision = read_decision(&figures.wait()?)?;
            // The host has waited for the device, so this detects a group that broke during the step.
            exchange.check_health()?;
            if decision.is_skipped {
                model.table.count_updates(used, -1);
            }
            decision
        }
    };
    if !decision.is_skipped || plan.is_rehearsed {
        model.table.gather_data(exchange.ranks())?;
        model.buffers.commit()?;
        model.average.as_mut().map_or(Ok(()), |average| average.update(&model.table))?;
    }
    precision.update(decision.finite)?;
    Ok(decision)
}

/// Returns the norm of the mean gradient and whether it is finite, for the host's decision. Waits for the
/// device once. `found` is a scalar on the device, not 0 if an element that this rank updates is not finite.
pub(super) fn measure_gradients(
    exchange: &Exchange,
    table: &Table,
    found: Option<&Tensor>,
) -> Result<(f64, bool)> {
    // Allocations are separate from collectives, so that they can be retried.
    let figures = retry_on_oom(table.device(), || {
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
    // Without shards all ranks have the same values.
    if table.shards() > 1 {
        let own = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(&agreed))?;
        exchange.sum(&own)?;
        agreed = [f64::try_from(own.f_get(0)?)?, f64::try_from(own.f_get(1)?)?];
    }
    Ok((agreed[0].sqrt(), agreed[1] == 0.0))
}

/// Returns the factor of the gradient for the update; None to skip the step. `norm` is the norm of the mean
/// gradient over the weight that counted; `correction` is the expected weight divided by that weight.
fn choose_factor(totals: &Totals, correction: f64, norm: f64, finite: bool, plan: &StepPlan) -> Option<f64> {
    if plan.is_rehearsed {
        // A factor other than 1, so that the rehearsal multiplies.
        return Some(0.5);
    }
    if !finite || totals.weight == 0.0 || !totals.loss_sum.is_finite() || !norm.is_finite() {
        return None;
    }
    let clipped = plan.clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Some(correction * clipped)
}

/// Queues the work of [`measure_gradients`] and [`choose_factor`] on the device.
fn queue_decision(
    exchange: &Exchange,
    table: &Table,
    found: Option<&Tensor>,
    totals: &Tensor,
    plan: &StepPlan,
) -> Result<DeviceDecision> {
    let device = table.device();
    // Allocations are separate from collectives, so that they can be retried.
    let own = retry_on_oom(device, || gradient_figures(table, found))?;
    if table.shards() > 1 {
        exchange.sum(&own)?;
    }
    let [scale, skip, figures] =
        retry_on_oom(device, || tch::no_grad(|| decide_on_device(&own, totals, plan)))?;
    let figures = retry_on_oom(device, || Reading::begin(&figures))?;
    Ok(DeviceDecision { scale, skip, figures })
}

/// Returns the gradients' sum of squares on this rank, and a number that is not 0 if one is not finite.
fn gradient_figures(table: &Table, found: Option<&Tensor>) -> Result<Tensor, TchError> {
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

/// Returns the divisor of the gradients, whether to skip the update (1, else 0), and the figures for the
/// host: totals, norm, `found` and the decision.
fn decide_on_device(own: &Tensor, totals: &Tensor, plan: &StepPlan) -> Result<[Tensor; 3], TchError> {
    let at = |tensor: &Tensor, index| tensor.f_narrow(0, index, 1);
    let (loss, weight) = (at(totals, 0)?, at(totals, 1)?);
    let correction = weight.f_reciprocal()?.f_mul_scalar_(plan.expected_weight)?;
    let norm = at(own, 0)?.f_sqrt()?.f_mul_(&correction)?;
    // 0 if both are finite, otherwise NaN. Without a weight the norm is infinite or NaN.
    let mut doubt = norm.f_sub(&norm)?.f_add_(&loss.f_sub(&loss)?)?;
    let found = at(own, 1)?;
    let skip = doubt.f_add_(&found)?.f_ne(0.0)?.f_to_kind(Kind::Float)?;
    let scale = match plan.clip {
        Some(limit) => {
            norm.f_add_scalar(CLIP_EPS)?.f_div_scalar_(limit)?.f_clamp_min_(1.0)?.f_div_(&correction)?
        }
        None => correction.f_reciprocal()?,
    };
    let figures = Tensor::f_cat(&[totals, &norm, &found, &skip.f_to_kind(Kind::Double)?], 0)?;
    Ok([scale.f_to_kind(Kind::Float)?, skip, figures])
}

/// Reads the figures of [`decide_on_device`].
fn read_decision(figures: &[f64]) -> Result<Decision> {
    match figures {
        [loss_sum, weight, sums @ .., norm, found, skip] => Ok(Decision {
            totals: Totals { loss_sum: *loss_sum, weight: *weight, sums: sums.to_vec() },
            norm: *norm,
            finite: *found == 0.0,
            is_skipped: *skip != 0.0,
        }),
        few => {
            Err(TchError::Convert(format!("a decision of {} figures; this is a bug of dtrain", few.len()))
                .into())
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
