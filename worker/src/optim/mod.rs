//! The optimizers: one fused update per range of the table; and the model of a rank with its optimizer.

use std::ops::Range;

use dtrain_recipe::{OptimName, Recipe};
use dtrain_torch_shim::fused;
pub use dtrain_torch_shim::fused::{ScaleAndSkip, WeightDecay};
pub(crate) use groups::{GroupError, Inherited, ParameterInfo, assign_groups, match_names, match_rules};
pub(crate) use layers::layer_factors;
pub(crate) use model::Model;
use tch::{Kind, TchError, Tensor};

use crate::out_of_memory::retry_on_oom;
pub use crate::state::GroupOptions;
use crate::state::{ColumnSpec, Group, Part, Role, Slot, StateError, Table, narrow};

mod elementwise;
mod groups;
mod layers;
mod model;

/// The update rule: computes a parameter from its gradient and its state. Constant during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// torch.optim.Adam and AdamW.
    Adam {
        /// Decay of the mean and of the mean square of the gradient.
        betas: (f64, f64),
        /// Added to the root of the mean square.
        eps: f64,
        /// The kind of weight decay: [`WeightDecay::Decoupled`] means AdamW, [`WeightDecay::L2`] Adam.
        decay: WeightDecay,
        /// Whether the largest mean square so far takes its place (Reddi et al. 2018, arXiv 1904.09237).
        amsgrad: bool,
    },
    /// Lion (Chen et al. 2023, arXiv 2302.06675), as timm's; weight decay is decoupled.
    Lion {
        /// The part of the mean in the direction, and the decay of the mean.
        betas: (f64, f64),
    },
    /// torch.optim.RMSprop; weight decay is added to the gradient.
    RmsProp {
        /// Decay of the mean square of the gradient.
        alpha: f64,
        /// Added to the root of the mean square.
        eps: f64,
        /// Momentum; with 0 there is no buffer of it.
        momentum: f64,
        /// Whether the square of the mean is subtracted from the mean square.
        centered: bool,
    },
    /// torch.optim.SGD; weight decay is added to the gradient.
    Sgd {
        /// Momentum; with 0 there is no state.
        momentum: f64,
        /// Nesterov momentum; needs a momentum.
        nesterov: bool,
    },
}

impl Rule {
    /// Returns the names of its columns, as in checkpoints.
    fn moments(self) -> &'static [&'static str] {
        match self {
            Self::Adam { amsgrad: false, .. } => &["exp_avg", "exp_avg_sq"],
            Self::Adam { .. } => &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
            Self::Lion { .. } => &["exp_avg"],
            Self::RmsProp { momentum: 0.0, centered: false, .. } => &["square_avg"],
            Self::RmsProp { momentum: 0.0, .. } => &["square_avg", "grad_avg"],
            Self::RmsProp { centered: false, .. } => &["square_avg", "momentum_buffer"],
            Self::RmsProp { .. } => &["square_avg", "grad_avg", "momentum_buffer"],
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } => &["momentum_buffer"],
        }
    }

    /// Returns the rule with the settings of a group.
    fn of_group(mut self, options: &GroupOptions) -> Self {
        if let (Self::Adam { betas, .. } | Self::Lion { betas }, Some(own)) = (&mut self, options.betas) {
            *betas = own.into();
        }
        if let (Self::Adam { eps, .. } | Self::RmsProp { eps, .. }, Some(own)) = (&mut self, options.eps) {
            *eps = own;
        }
        self
    }
}

/// Returns the rule of a recipe. A loaded recipe has its defaults; the values here are torch's.
pub(crate) fn rule_of_recipe(recipe: &Recipe) -> Rule {
    let optim = &recipe.optim;
    let eps = optim.eps.unwrap_or(1e-8);
    let momentum = optim.momentum.unwrap_or(0.0);
    let adam = |decay| {
        let betas = optim.betas.unwrap_or([0.9, 0.999]).into();
        Rule::Adam { betas, eps, decay, amsgrad: optim.amsgrad }
    };
    match optim.name {
        OptimName::AdamW => adam(WeightDecay::Decoupled),
        OptimName::Adam => adam(WeightDecay::L2),
        OptimName::Sgd => Rule::Sgd { momentum, nesterov: optim.nesterov.unwrap_or(false) },
        OptimName::Lion => Rule::Lion { betas: optim.betas.unwrap_or([0.9, 0.99]).into() },
        OptimName::RmsProp => {
            Rule::RmsProp { alpha: optim.alpha.unwrap_or(0.99), eps, momentum, centered: optim.centered }
        }
    }
}

/// An optimizer for the rows of a table that this rank updates. Columns of the table hold its state.
#[derive(Debug)]
pub struct Optimizer {
    rule: Rule,
    /// By optimizer group.
    groups: Vec<GroupOptions>,
    /// The largest absolute value of an element of the gradient.
    clip_value: Option<f64>,
    /// The number of the update on the device, for the kernel; allocated in advance.
    number: Tensor,
}

impl Optimizer {
    /// Creates an optimizer with the state in `table`; adds missing state as zeros.
    pub fn new(rule: Rule, groups: Vec<GroupOptions>, table: &mut Table) -> Result<Self, TchError> {
        for name in rule.moments() {
            if table.column(name).is_none() {
                table.add_column(ColumnSpec { name, role: Role::Moment })?;
            }
        }
        let number = Tensor::f_scalar_tensor(0.0, (Kind::Float, table.device()))?;
        Ok(Self { rule, groups, clip_value: None, number })
    }

    /// Cuts larger elements of the gradient to this absolute value: torch's `clip_grad_value_`.
    #[must_use]
    pub fn with_clip_value(self, clip_value: Option<f64>) -> Self {
        Self { clip_value, ..self }
    }

    /// Updates the rows that `used` marks (by row number) with this step's learning rate. Rows without a
    /// gradient on any rank keep their values and state; torch skips them too.
    ///
    /// With `scale_and_skip`, the device divides the gradients, and may skip the update. The host always counts it;
    /// after a skip the caller undoes the count.
    pub fn step(
        &mut self,
        table: &mut Table,
        lr: f64,
        used: &[bool],
        scale_and_skip: Option<ScaleAndSkip<'_>>,
    ) -> Result<(), StateError> {
        let device = table.device();
        for (index, part) in table.parts(Role::Moment).iter().enumerate() {
            let block = &table.blocks()[part.block];
            let Group::Trained(group) = block.group else { continue };
            let Some(options) = self.groups.get(group) else { continue };
            let (rule, lr, weight_decay) =
                (self.rule.of_group(options), lr * options.lr_factor, options.weight_decay);
            for update in update_ranges(part, &block.slots, table.updates(), used) {
                let data = table.data().nth(part.block).map(|flat| narrow(flat, &update.range));
                let Some(data) = data.transpose()? else { continue };
                let grad = narrow(table.grad(part.block), &update.range)?;
                let moment = |(_, held): (_, &[Tensor])| part.view(&held[index], &update.range);
                let moments: Vec<Tensor> = table.moments().map(moment).collect::<Result<_, _>>()?;
                let _ = tch::no_grad(|| self.number.f_fill_((update.updates + 1) as f64))?;
                let number = (update.updates + 1) as f64;
                let figures = UpdateFigures { lr, weight_decay, is_first: update.updates == 0, number };
                if let Some(limit) = self.clip_value {
                    retry_on_oom(device, || clip(&grad, limit, scale_and_skip))?;
                }
                match rule {
                    Rule::Adam { amsgrad: false, .. } | Rule::Sgd { .. } => retry_on_oom(device, || {
                        self.update(rule, [&data, &grad], &moments, figures, scale_and_skip)
                    })?,
                    Rule::Adam { .. } | Rule::Lion { .. } | Rule::RmsProp { .. } => {
                        for (begin, length) in elementwise::pieces(update.range.end - update.range.start) {
                            let piece = |of: &Tensor| of.f_narrow(0, begin, length);
                            let (data, grad) = (piece(&data)?, piece(&grad)?);
                            let moments = moments.iter().map(piece).collect::<Result<Vec<_>, _>>()?;
                            retry_on_oom(device, || {
                                elementwise::update(rule, [&data, &grad], &moments, figures, scale_and_skip)
                            })?;
                        }
                    }
                }
            }
        }
        table.count_updates(used, 1);
        Ok(())
    }

    fn update(
        &self,
        rule: Rule,
        [data, grad]: [&Tensor; 2],
        moments: &[Tensor],
        UpdateFigures { lr, weight_decay, is_first, .. }: UpdateFigures,
        scale_and_skip: Option<ScaleAndSkip<'_>>,
    ) -> Result<(), StateError> {
        match (rule, moments) {
            (Rule::Adam { betas, eps, decay, .. }, [exp_avg, exp_avg_sq]) => {
                let figures = fused::Adam { lr, betas: betas.into(), weight_decay, decay, eps };
                fused::adam(data, grad, exp_avg, exp_avg_sq, &self.number, scale_and_skip, figures)?;
            }
            (Rule::Sgd { momentum, nesterov }, moments) => {
                let figures = fused::Sgd { lr, momentum, nesterov, weight_decay, first_step: is_first };
                fused::sgd(data, grad, moments.first(), scale_and_skip, figures)?;
            }
            (Rule::Adam { .. } | Rule::Lion { .. } | Rule::RmsProp { .. }, _) => {
                return Err(TchError::Convert("Adam without its moments".into()).into());
            }
        }
        Ok(())
    }
}

/// The settings of one update of a range.
#[derive(Clone, Copy)]
struct UpdateFigures {
    lr: f64,
    weight_decay: f64,
    is_first: bool,
    /// The number of the update, from 1.
    number: f64,
}

/// Cuts a gradient to an absolute value. The update divides it by the scale afterwards.
fn clip(grad: &Tensor, limit: f64, scale_and_skip: Option<ScaleAndSkip<'_>>) -> Result<(), TchError> {
    let mut grad = grad.shallow_clone();
    match scale_and_skip {
        None => grad.f_clamp_(-limit, limit).map(drop),
        Some(ScaleAndSkip { scale, .. }) => {
            let limit = scale.f_to_kind(grad.kind())?.f_mul_scalar(limit)?;
            grad.f_clamp_tensor_(Some(&limit.f_neg()?), Some(&limit)).map(drop)
        }
    }
}

/// A range of a block, over neighbouring rows with the same number of updates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UpdateRange {
    pub(super) range: Range<i64>,
    pub(super) updates: u64,
}

/// Returns the ranges of `part`, a range of the block with these `slots`, over the rows that `used` marks: one
/// run if a step uses every row, as in most models. A gap for alignment belongs to the row before it.
pub(super) fn update_ranges(part: &Part, slots: &[Slot], updates: &[u64], used: &[bool]) -> Vec<UpdateRange> {
    let mut ranges: Vec<UpdateRange> = Vec::new();
    let first = slots.partition_point(|slot| slot.range().end <= part.range.start);
    for (index, slot) in slots.iter().enumerate().skip(first) {
        if slot.offset >= part.range.end {
            break;
        }
        let next = slots.get(index + 1).map_or(part.range.end, |next| next.offset);
        let range = slot.offset.max(part.range.start)..next.min(part.range.end);
        if !used[slot.row] {
            continue;
        }
        let updates = updates[slot.row];
        match ranges.last_mut() {
            Some(update) if update.range.end == range.start && update.updates == updates => {
                update.range.end = range.end
            }
            _ => ranges.push(UpdateRange { range, updates }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Vec<Slot> {
        // Lengths 10, 16, 5, 20 on multiples of 16.
        [(0, 10), (16, 16), (32, 5), (48, 20)]
            .iter()
            .enumerate()
            .map(|(row, &(offset, len))| Slot {
                row,
                name: String::new(),
                offset,
                shape: vec![len],
                strides: vec![1],
            })
            .collect()
    }

    fn part(range: Range<i64>) -> Part {
        Part { block: 0, range }
    }

    #[test]
    fn equal_update_counts_give_one_range() {
        let all = update_ranges(&part(0..80), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(all, [UpdateRange { range: 0..80, updates: 3 }]);
        // A part that begins and ends within parameters, a part within a gap, and a part after the last row.
        let some = update_ranges(&part(20..50), &slots(), &[3; 4], &[true; 4]);
        assert_eq!(some, [UpdateRange { range: 20..50, updates: 3 }]);
        assert!(update_ranges(&part(12..16), &slots(), &[3; 4], &[true; 4]).is_empty());
        assert!(update_ranges(&part(70..80), &slots(), &[3; 4], &[true; 4]).is_empty());
    }

    #[test]
    fn unused_rows_and_other_counts_split_ranges() {
        let divided = update_ranges(&part(0..80), &slots(), &[3, 3, 3, 2], &[true, false, true, true]);
        assert_eq!(
            divided,
            [
                UpdateRange { range: 0..16, updates: 3 },
                UpdateRange { range: 32..48, updates: 3 },
                UpdateRange { range: 48..80, updates: 2 }
            ]
        );
        assert!(update_ranges(&part(0..80), &slots(), &[3; 4], &[false; 4]).is_empty());
    }
}
