//! The decision about a step: gradient norm, clipping, skipping, and the update.
//!
//! On a CPU the host decides and then updates. On a GPU the device decides: the host queues the decision's
//! arithmetic and the update, whose kernels read the decision from device memory, and then waits once for the
//! figures. So the GPU has work while the host waits. docs/decisions/0062-one-wait-a-step.md

use dtrain_common::trace;
use dtrain_torch_shim::fused;
use tch::{Device, Kind, TchError, Tensor};

use super::exchange::Exchange;
use super::micro::{DecisionKey, Executor};
use super::reading::Reading;
use super::recover::retry_on_oom;
use super::status::Status;
use super::{Replica, StepPlan};
use crate::metrics::SkipCause;
use crate::state::Table;
use crate::step::error::{Result, StepError};
use crate::tasks::Totals;

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
    executor: &mut dyn Executor,
    status: &Status,
    figures: Option<&Tensor>,
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
                queue_decision(exchange, executor, &model.table, found, totals, plan)?;
            before_update()?;
            let scale_and_skip = fused::ScaleAndSkip { scale: &scale, skip: &skip };
            model.optimizer.step(&mut model.table, plan.lr, used, Some(scale_and_skip))?;
            let waiting = trace::span(trace::Kind::Update, "wait for the device");
            let decision = read_decision(&figures.wait()?, status.totals.sums.len())?;
            drop(waiting);
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
    } else {
        model.buffers.rewind()?;
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
            [] => Ok::<_, StepError>(Vec::new()),
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
    executor: &mut dyn Executor,
    table: &Table,
    found: Option<&Tensor>,
    totals: &Tensor,
    plan: &StepPlan,
) -> Result<DeviceDecision> {
    let device = table.device();
    let key = DecisionKey {
        expected_weight: plan.expected_weight,
        clip: plan.clip,
        has_loss_scale: found.is_some(),
    };
    let decide = |own: &GradientFigures| tch::no_grad(|| decide_on_device(own, totals, key));
    let [scale, skip, figures] = match table.shards() {
        1 => executor
            .decide(key, &|| retry_on_oom(device, || Ok(decide(&gradient_figures(table, found)?)?)))?,
        _ => {
            // Allocations are separate from collectives, so that they can be retried.
            let sums = retry_on_oom(device, || gradient_figures(table, found)?.squares_and_found())?;
            exchange.sum(&sums)?;
            retry_on_oom(device, || decide(&GradientFigures::of_sums(&sums, found.is_some())?))?
        }
    };
    let figures = retry_on_oom(device, || Reading::begin(&figures))?;
    Ok(DeviceDecision { scale, skip, figures })
}

/// Figures of the gradients on the device: float64, of length 1.
struct GradientFigures {
    norm: Tensor,
    /// With a loss scale, a number that is at least 1 if a gradient is not finite, otherwise 0.
    found: Option<Tensor>,
}

/// Returns the figures of the gradients that this rank updates.
fn gradient_figures(table: &Table, found: Option<&Tensor>) -> Result<GradientFigures, TchError> {
    let double = |scalar: &Tensor| scalar.f_to_kind(Kind::Double)?.f_view([1]);
    let norm = match table.own_norms()?.as_slice() {
        [] => Tensor::f_zeros([1], (Kind::Double, table.device()))?,
        [norm] => double(norm)?,
        norms => double(&Tensor::f_stack(norms, 0)?.f_norm_scalaropt_dtype(2, Kind::Double)?)?,
    };
    Ok(GradientFigures { norm, found: found.map(double).transpose()? })
}

impl GradientFigures {
    /// Returns the figures that add up over the ranks, as one tensor.
    fn squares_and_found(&self) -> Result<Tensor, TchError> {
        let squares = self.norm.f_square()?;
        self.found.as_ref().map_or(Ok(squares.shallow_clone()), |found| Tensor::f_cat(&[&squares, found], 0))
    }

    /// Reads the sums of [`GradientFigures::squares_and_found`].
    fn of_sums(sums: &Tensor, has_found: bool) -> Result<Self, TchError> {
        let at = |index| sums.f_narrow(0, index, 1);
        Ok(Self { norm: at(0)?.f_sqrt()?, found: has_found.then(|| at(1)).transpose()? })
    }
}

/// Returns the divisor of the gradients, whether to skip the update (1, else 0), and the figures for the
/// host: totals, norm, the decision, and `found` if there is one. Each operation is a kernel.
fn decide_on_device(
    own: &GradientFigures,
    totals: &Tensor,
    key: DecisionKey,
) -> Result<[Tensor; 3], TchError> {
    let at = |index| totals.f_narrow(0, index, 1);
    let (loss, weight) = (at(0)?, at(1)?);
    let expected = Tensor::f_scalar_tensor(key.expected_weight, (Kind::Double, Device::Cpu))?;
    let correction = expected.f_div(&weight)?;
    let norm = own.norm.f_mul(&correction)?;
    // 0 if both are finite, otherwise NaN. Without a weight the norm is infinite or NaN.
    let mut skip = norm.f_add(&loss)?.f_mul_scalar_(0.0)?.f_nan_to_num_(1.0, 0.0, 0.0)?;
    if let Some(found) = &own.found {
        skip = skip.f_add_(found)?.f_clamp_max_(1.0)?;
    }
    let scale = match key.clip {
        Some(limit) => {
            norm.f_add_scalar(CLIP_EPS)?.f_div_scalar_(limit)?.f_clamp_min_(1.0)?.f_div_(&correction)?
        }
        None => correction.f_reciprocal()?,
    };
    let figures: Vec<&Tensor> = [totals, &norm, &skip].into_iter().chain(&own.found).collect();
    Ok([scale.f_to_kind(Kind::Float)?, skip.f_to_kind(Kind::Float)?, Tensor::f_cat(&figures, 0)?])
}

/// Reads the figures of [`decide_on_device`] about a task that counts `sums` figures.
fn read_decision(figures: &[f64], sums: usize) -> Result<Decision> {
    match figures.split_at_checked(2 + sums) {
        Some(([loss_sum, weight, sums @ ..], [norm, skip, found @ ..])) => Ok(Decision {
            totals: Totals { loss_sum: *loss_sum, weight: *weight, sums: sums.to_vec() },
            norm: *norm,
            finite: found.iter().all(|found| *found == 0.0),
            is_skipped: *skip != 0.0,
        }),
        _ => Err(TchError::Convert(format!(
            "a decision of {} figures; this is a bug of dtrain",
            figures.len()
        ))
        .into()),
    }
}

#[cfg(test)]
pub(super) mod tests;
