//! What becomes of a step: its gradient's norm, how far it is clipped, and whether the step is skipped.
//!
//! On a CPU the host decides, and then updates. On a GPU the device decides: the host gives it the update behind the arithmetic of
//! the decision, which the update's kernels read from the device's memory, and only then waits, once, for the figures. The GPU so has
//! work while the host learns what has become of the step. docs/decisions/0062-one-wait-a-step.md

use dtrain_torch_shim::fused::Found;
use tch::{Device, Kind, TchError, Tensor};

use super::batch_sync::{RankSync, healthy};
use super::error::TrainError;
use super::precision::Precision;
use super::reading::Reading;
use super::reducer::Reducer;
use super::replay::patiently;
use crate::collectives::{Ranks, ReduceOp};
use crate::state::Model;
use crate::state::Table;
use crate::tasks::Totals;

/// torch's clip_grad_norm_ divides by the norm and this.
const CLIP_EPS: f64 = 1e-6;

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decides {
    /// The host, which has the totals of all ranks from their statuses.
    Host,
    /// The device, on which the totals of all ranks are.
    Device,
}

impl Decides {
    /// About steps on `device`.
    pub(super) fn of(device: Device) -> Self {
        #[cfg(test)]
        if tests::AS_ON_A_GPU.get() {
            return Self::Device;
        }
        match device.is_cuda() {
            true => Self::Device,
            false => Self::Host,
        }
    }
}

/// What the ranks have decided about a step from the figures that all of them share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decision {
    /// Update with the gradient multiplied by this factor.
    Commit { factor: f64 },
    /// Leave parameters and buffers as they are.
    Skip,
}

/// What a decision is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    /// The weight of the step if nothing is left out of it.
    pub(super) expected: f64,
    /// The highest norm.
    pub(super) clip: Option<f64>,
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
///
/// # Errors
/// Where a peer is lost, or memory runs out.
pub(super) fn judge(
    reducer: &Reducer,
    table: &Table,
    precision: &mut Precision,
    sync: Option<&RankSync>,
    counted: Counted,
    question: Question,
) -> Result<Verdict, TrainError> {
    let found = precision.unscale(table)?;
    match counted {
        Counted::OnHost(totals) => {
            let found = reducer.judge(table, found)?;
            healthy(reducer.ranks(), sync)?;
            let missing = question.expected / totals.weight;
            let norm = found.norm * missing;
            let decision = match found.finite {
                true => decide(&totals, missing, norm, question.clip),
                false => Decision::Skip,
            };
            Ok(Verdict::Known(Judged {
                totals,
                norm,
                finite: found.finite,
                decision,
            }))
        }
        Counted::OnDevice(totals) => {
            let coming = ask_device(reducer.ranks(), table, found, &totals, question)?;
            Ok(Verdict::Coming(coming))
        }
    }
}

impl Verdict {
    /// Updates what is to be updated, and says what was decided. Nothing but the optimizer's kernels, which decide for themselves, is
    /// done before the groups of the ranks are known to be well.
    ///
    /// # Errors
    /// Where a peer is lost, or memory runs out.
    pub(super) fn update(
        self,
        model: &mut Model,
        reducer: &Reducer,
        sync: Option<&RankSync>,
        lr: f64,
        used: &[bool],
    ) -> Result<Judged, TrainError> {
        let judged = match self {
            Self::Known(judged) => {
                if let Decision::Commit { factor } = judged.decision {
                    if factor != 1.0 {
                        model.table.scale_grad(factor)?;
                    }
                    model.optimizer.step(&mut model.table, lr, used, None)?;
                }
                judged
            }
            Self::Coming(coming) => {
                let found = Found {
                    scale: &coming.scale,
                    skip: &coming.skip,
                };
                model.optimizer.step(&mut model.table, lr, used, Some(found))?;
                let judged = read(&coming.figures.wait()?)?;
                // The device was waited for: what a broken group would have left in the gradients shows here.
                healthy(reducer.ranks(), sync)?;
                if judged.decision == Decision::Skip {
                    model.table.discount(used);
                }
                judged
            }
        };
        if judged.decision != Decision::Skip {
            keep(model, reducer)?;
        }
        Ok(judged)
    }
}

/// What follows an update: every rank has all parameters, and statistics and averages move.
///
/// # Errors
/// Where a peer is lost, or memory runs out.
pub(super) fn keep(model: &mut Model, reducer: &Reducer) -> Result<(), TrainError> {
    reducer.gather(&model.table)?;
    model.buffers.commit()?;
    Ok(model.update_average()?)
}

/// `norm` is that of the mean gradient over the weight that counted; `missing` is the expected weight over that one.
fn decide(totals: &Totals, missing: f64, norm: f64, clip: Option<f64>) -> Decision {
    let nothing = totals.weight == 0.0;
    if nothing || !totals.loss_sum.is_finite() || !norm.is_finite() {
        return Decision::Skip;
    }
    let clipped = clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Decision::Commit {
        factor: missing * clipped,
    }
}

/// As [`Reducer::judge`] and [`decide`], by the device.
fn ask_device(
    ranks: &Ranks,
    table: &Table,
    found: Option<&Tensor>,
    totals: &Tensor,
    question: Question,
) -> Result<Coming, TrainError> {
    let device = table.device();
    // What takes memory is apart from what the ranks do together: it can be tried again.
    let own = patiently(device, || own_figures(table, found))?;
    if table.shards() > 1 {
        ranks.all_reduce(&own, ReduceOp::Sum)?.wait()?;
    }
    let decided = patiently(device, || tch::no_grad(|| decide_there(&own, totals, question)))?;
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
fn decide_there(own: &Tensor, totals: &Tensor, question: Question) -> Result<[Tensor; 3], TchError> {
    let at = |tensor: &Tensor, index| tensor.f_narrow(0, index, 1);
    let (loss, weight) = (at(totals, 0)?, at(totals, 1)?);
    let missing = weight.f_reciprocal()?.f_mul_scalar_(question.expected)?;
    let norm = at(own, 0)?.f_sqrt()?.f_mul_(&missing)?;
    // 0 where both are finite, else no number; without a weight the norm is infinite, or no number.
    let mut doubt = norm.f_sub(&norm)?.f_add_(&loss.f_sub(&loss)?)?;
    let found = at(own, 1)?;
    let skip = doubt.f_add_(&found)?.f_ne(0.0)?.f_to_kind(Kind::Float)?;
    let scale = match question.clip {
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
