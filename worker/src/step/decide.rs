//! What becomes of a step: its gradient's norm, how far it is clipped, and whether the step is skipped.
//!
//! On a CPU the host decides, and then updates. On a GPU the device decides: the host gives it the update behind the arithmetic of
//! the decision, which the update's kernels read from the device's memory, and only then waits, once, for the figures. The GPU so has
//! work while the host learns what has become of the step. docs/decisions/0062-one-wait-a-step.md

use dtrain_torch_shim::fused;
use tch::{Device, Kind, TchError, Tensor};

use super::exchange::{Exchange, ReduceError};
use super::reading::Reading;
use super::recover::patiently;
use super::{Cut, Replica};
use crate::engine::TrainError;
use crate::state::{Model, Table};
use crate::tasks::Totals;

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

/// What the ranks have decided about a step from the figures that all of them share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decision {
    /// Update with the gradient multiplied by this factor.
    Commit { factor: f64 },
    /// Leave parameters and buffers as they are.
    Skip,
}

/// What the ranks know of a step's gradient, the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    /// The norm of the mean gradient.
    pub(super) norm: f64,
    /// Whether nothing was found in it that is not finite.
    pub(super) finite: bool,
}

/// The totals of all ranks, where they are.
#[derive(Debug)]
pub(super) enum Counted {
    OnHost(Totals),
    /// Loss, weight and the task's own sums, in float64.
    OnDevice(Tensor),
}

/// A step of which all is known.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) totals: Totals,
    /// The norm of the mean gradient over the weight that counted.
    pub(super) norm: f64,
    /// Whether no gradient was found that is not finite, where there is a loss scale.
    pub(super) finite: bool,
    pub(super) decision: Decision,
}

/// A decision that was made, or that the device makes.
#[derive(Debug)]
pub(super) enum Verdict {
    Known(Judged),
    Coming(Coming),
}

/// What the device will have found when it comes to the update.
#[derive(Debug)]
pub(super) struct Coming {
    scale: Tensor,
    skip: Tensor,
    figures: Reading,
}

/// Begins to decide, once the gradients of all ranks are added up, or the device was given that. Takes the loss scale out of them.
pub(super) fn judge(
    replica: &mut Replica,
    exchange: &Exchange,
    counted: Counted,
    cut: &Cut,
) -> Result<Verdict, TrainError> {
    let table = &replica.model.table;
    let found = replica.precision.unscale(table)?;
    match counted {
        Counted::OnHost(totals) => {
            let found = examine(exchange, table, found)?;
            exchange.health()?;
            let missing = cut.expected / totals.weight;
            let norm = found.norm * missing;
            Ok(Verdict::Known(Judged {
                decision: decide(&totals, missing, norm, found.finite, cut),
                totals,
                norm,
                finite: found.finite,
            }))
        }
        Counted::OnDevice(totals) => {
            let coming = ask_device(exchange, table, found, &totals, cut)?;
            Ok(Verdict::Coming(coming))
        }
    }
}

impl Verdict {
    /// Updates what is to be updated, and says what was decided. Nothing but the optimizer's kernels, which decide for themselves, is
    /// done before the groups of the ranks are known to be well.
    pub(super) fn update(
        self,
        model: &mut Model,
        exchange: &Exchange,
        used: &[bool],
        cut: &Cut,
    ) -> Result<Judged, TrainError> {
        let judged = match self {
            Self::Known(judged) => {
                if let Decision::Commit { factor } = judged.decision {
                    if factor != 1.0 {
                        model.table.scale_grad(factor)?;
                    }
                    model.optimizer.step(&mut model.table, cut.lr, used, None)?;
                }
                judged
            }
            Self::Coming(coming) => {
                let found = fused::Found {
                    scale: &coming.scale,
                    skip: &coming.skip,
                };
                model
                    .optimizer
                    .step(&mut model.table, cut.lr, used, Some(found))?;
                let judged = read(&coming.figures.wait()?)?;
                // The device was waited for: what a broken group would have left in the gradients shows here.
                exchange.health()?;
                if judged.decision == Decision::Skip {
                    model.table.discount(used);
                }
                judged
            }
        };
        if judged.decision != Decision::Skip || cut.is_rehearsed {
            // Every rank has all parameters, and statistics and averages move.
            exchange.gather(&model.table)?;
            model.buffers.commit()?;
            model.update_average()?;
        }
        Ok(judged)
    }
}

/// What the ranks need to know of the mean gradient for the host to decide about the step. `found`, where there is one, is a scalar on
/// the gradients' device, not 0 where an element of those that this rank updates was not finite. The host waits for the device once,
/// here, for all of it.
pub(super) fn examine(
    exchange: &Exchange,
    table: &Table,
    found: Option<&Tensor>,
) -> Result<Found, ReduceError> {
    // What takes memory is apart from what the ranks do together: it can be tried again.
    let figures = patiently(table.device(), || {
        let mut scalars = table.own_norms()?;
        scalars.extend(found.map(Tensor::shallow_clone));
        let scalars: Vec<Tensor> = scalars
            .iter()
            .map(|scalar| scalar.f_to_kind(Kind::Double)?.f_view([1]))
            .collect::<Result<_, TchError>>()?;
        match scalars.as_slice() {
            [] => Ok::<_, ReduceError>(Vec::new()),
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
    let [squares, found] = agreed;
    Ok(Found {
        norm: squares.sqrt(),
        finite: found == 0.0,
    })
}

/// `norm` is that of the mean gradient over the weight that counted; `missing` is the expected weight over that one.
fn decide(totals: &Totals, missing: f64, norm: f64, finite: bool, cut: &Cut) -> Decision {
    if cut.is_rehearsed {
        // A factor that is multiplied by, as most take nothing else for it.
        return Decision::Commit { factor: 0.5 };
    }
    let nothing = totals.weight == 0.0;
    if !finite || nothing || !totals.loss_sum.is_finite() || !norm.is_finite() {
        return Decision::Skip;
    }
    let clipped = cut.clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Decision::Commit {
        factor: missing * clipped,
    }
}

/// As [`examine`] and [`decide`], by the device.
fn ask_device(
    exchange: &Exchange,
    table: &Table,
    found: Option<&Tensor>,
    totals: &Tensor,
    cut: &Cut,
) -> Result<Coming, TrainError> {
    let device = table.device();
    // What takes memory is apart from what the ranks do together: it can be tried again.
    let own = patiently(device, || own_figures(table, found))?;
    if table.shards() > 1 {
        exchange.sum(&own)?;
    }
    let decided = patiently(device, || tch::no_grad(|| decide_there(&own, totals, cut)))?;
    let [scale, skip, figures] = decided;
    Ok(Coming {
        scale,
        skip,
        figures: patiently(device, || Reading::begin(&figures))?,
    })
}

/// The sum of squares of the gradients that this rank updates, and not 0 where one of them is not finite.
fn own_figures(table: &Table, found: Option<&Tensor>) -> Result<Tensor, TchError> {
    let options = (Kind::Double, table.device());
    let norms = table.own_norms()?;
    let norms: Vec<Tensor> = (norms.iter())
        .map(|norm| norm.f_to_kind(Kind::Double))
        .collect::<Result<_, _>>()?;
    let squares = match norms.as_slice() {
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
        Some(limit) => norm
            .f_add_scalar(CLIP_EPS)?
            .f_div_scalar_(limit)?
            .f_clamp_min_(1.0)?
            .f_div_(&missing)?,
        None => missing.f_reciprocal()?,
    };
    let figures = Tensor::f_cat(&[totals, &norm, &found, &skip.f_to_kind(Kind::Double)?], 0)?;
    Ok([scale.f_to_kind(Kind::Float)?, skip, figures])
}

/// What [`decide_there`] has left for the host.
fn read(figures: &[f64]) -> Result<Judged, TrainError> {
    match figures {
        [loss_sum, weight, sums @ .., norm, found, skip] => Ok(Judged {
            totals: Totals {
                loss_sum: *loss_sum,
                weight: *weight,
                sums: sums.to_vec(),
            },
            norm: *norm,
            finite: *found == 0.0,
            decision: match *skip == 0.0 {
                // The update has divided by it.
                true => Decision::Commit { factor: 1.0 },
                false => Decision::Skip,
            },
        }),
        few => Err(TchError::Convert(format!("a verdict of {} figures", few.len())).into()),
    }
}

#[cfg(test)]
pub(super) mod tests;
