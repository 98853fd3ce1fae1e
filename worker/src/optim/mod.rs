//! The optimizers: one fused update per range of the table; and the model of a rank with its optimizer.

use dtrain_recipe::{OptimName, Recipe};
use dtrain_torch_shim::fused;
pub use dtrain_torch_shim::fused::{ScaleAndSkip, WeightDecay};
pub(crate) use groups::{
    BesideMuon, GroupError, Inherited, ParameterInfo, assign_groups, match_names, match_rules,
};
pub(crate) use layers::layer_factors;
pub(crate) use matrices::{describe, matrices};
pub(crate) use model::Model;
pub use muon::Muon;
use ranges::{update_ranges, whole_rows};
use tch::{Kind, TchError, Tensor};

use crate::out_of_memory::retry_on_oom;
pub use crate::state::GroupOptions;
use crate::state::{ColumnSpec, Role, Rows, StateError, Table, narrow};

mod adaptive;
mod elementwise;
mod groups;
mod layers;
mod matrices;
mod model;
mod muon;
mod ranges;

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

/// Returns the rule of a recipe, with Muon that of the rest. A loaded recipe has its defaults; the values here are torch's.
pub(crate) fn rule_of_recipe(recipe: &Recipe) -> Rule {
    let optim = &recipe.optim;
    let eps = optim.eps.unwrap_or(1e-8);
    let momentum = optim.momentum.unwrap_or(0.0);
    let adam = |decay| {
        let betas = optim.betas.unwrap_or([0.9, 0.999]).into();
        Rule::Adam { betas, eps, decay, amsgrad: optim.amsgrad }
    };
    match optim.name {
        OptimName::AdamW | OptimName::Muon => adam(WeightDecay::Decoupled),
        OptimName::Adam => adam(WeightDecay::L2),
        OptimName::Sgd => Rule::Sgd { momentum, nesterov: optim.nesterov.unwrap_or(false) },
        OptimName::Lion => Rule::Lion { betas: optim.betas.unwrap_or([0.9, 0.99]).into() },
        OptimName::RmsProp => {
            Rule::RmsProp { alpha: optim.alpha.unwrap_or(0.99), eps, momentum, centered: optim.centered }
        }
    }
}

/// Returns the rule of a recipe for whole matrices, if it has one.
pub(crate) fn muon_of_recipe(recipe: &Recipe) -> Option<Muon> {
    let optim = &recipe.optim;
    (optim.name == OptimName::Muon).then(|| Muon {
        momentum: optim.momentum.unwrap_or(0.95),
        nesterov: optim.nesterov.unwrap_or(true),
        adjust_lr: optim.adjust_lr,
        newton_schulz: optim.newton_schulz,
    })
}

/// An optimizer for the rows of a table that this rank updates. Columns of the table hold its state.
#[derive(Debug)]
pub struct Optimizer {
    rule: Rule,
    /// The rule of whole matrices.
    muon: Option<Muon>,
    /// By optimizer group.
    groups: Vec<GroupOptions>,
    /// The largest absolute value of an element of the gradient.
    clip_value: Option<f64>,
    /// The largest norm of the gradient of a unit, as a part of the norm of its weights.
    clip_adaptive: Option<f64>,
    /// The number of the update on the device, for the kernel; allocated in advance.
    number: Tensor,
}

impl Optimizer {
    /// Creates an optimizer with the state in `table`; adds missing state as zeros.
    pub fn new(rule: Rule, groups: Vec<GroupOptions>, table: &mut Table) -> Result<Self, TchError> {
        for name in rule.moments() {
            if table.column(name).is_none() {
                table.add_column(ColumnSpec { name, role: Role::Moment(Rows::Elements) })?;
            }
        }
        let number = Tensor::f_scalar_tensor(0.0, (Kind::Float, table.device()))?;
        Ok(Self { rule, muon: None, groups, clip_value: None, clip_adaptive: None, number })
    }

    /// Updates whole matrices by Muon, which the table's groups say; adds missing state as zeros.
    pub fn with_muon(self, muon: Option<Muon>, table: &mut Table) -> Result<Self, TchError> {
        if muon.is_some() && table.column(Muon::MOMENT).is_none() {
            table.add_column(ColumnSpec { name: Muon::MOMENT, role: Role::Moment(Rows::Matrices) })?;
        }
        Ok(Self { muon, ..self })
    }

    /// Cuts larger elements of the gradient to this absolute value: torch's `clip_grad_value_`.
    #[must_use]
    pub fn with_clip_value(self, clip_value: Option<f64>) -> Self {
        Self { clip_value, ..self }
    }

    /// Scales the gradients of units to this part of the norm of their weights: timm's `adaptive_clip_grad`. Shards of the table
    /// must be whole rows.
    #[must_use]
    pub fn with_clip_adaptive(self, clip_adaptive: Option<f64>) -> Self {
        Self { clip_adaptive, ..self }
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
        self.clip(table, used, scale_and_skip)?;
        self.step_matrices(table, lr, used, scale_and_skip)?;
        let columns = table.moments_of(Rows::Elements);
        for (index, part) in table.parts(Role::Moment(Rows::Elements)).iter().enumerate() {
            let block = &table.blocks()[part.block];
            let Some(options) = block.group.options().and_then(|group| self.groups.get(group)) else {
                continue;
            };
            let rule = self.rule.of_group(options);
            for update in update_ranges(part, &block.slots, table.updates(), used) {
                let data = table.data().nth(part.block).map(|flat| narrow(flat, &update.range));
                let Some(data) = data.transpose()? else { continue };
                let grad = narrow(table.grad(part.block), &update.range)?;
                let moment = |held: &&[Tensor]| part.view(&held[index], &update.range);
                let moments: Vec<Tensor> = columns.iter().map(moment).collect::<Result<_, _>>()?;
                let figures = UpdateFigures::new(lr, options, update.updates);
                let _ = tch::no_grad(|| self.number.f_fill_(figures.number))?;
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

    /// Clips the gradients that this rank updates, by value or adaptively.
    fn clip(
        &self,
        table: &Table,
        used: &[bool],
        scale_and_skip: Option<ScaleAndSkip<'_>>,
    ) -> Result<(), StateError> {
        if let Some(limit) = self.clip_value {
            let cut = |grad: &Tensor| retry_on_oom(table.device(), || cut(grad, limit, scale_and_skip));
            table.own_grads()?.iter().try_for_each(cut)?;
        }
        let Some(limit) = self.clip_adaptive else { return Ok(()) };
        for part in
            [Rows::Elements, Rows::Matrices].into_iter().flat_map(|rows| table.parts(Role::Moment(rows)))
        {
            let block = &table.blocks()[part.block];
            let options = block.group.options().and_then(|group| self.groups.get(group));
            let Some(data) = table.data().nth(part.block) else { continue };
            if options.is_some_and(|options| options.clip_adaptive) {
                for slot in whole_rows(&part, &block.slots, used) {
                    let (grad, data) = (slot.view(table.grad(part.block))?, slot.view(data)?);
                    retry_on_oom(table.device(), || adaptive::clip(&grad, &data, limit, scale_and_skip))?;
                }
            }
        }
        Ok(())
    }

    /// Updates the matrices of this rank that `used` marks.
    fn step_matrices(
        &self,
        table: &Table,
        lr: f64,
        used: &[bool],
        scale_and_skip: Option<ScaleAndSkip<'_>>,
    ) -> Result<(), StateError> {
        let columns = table.moments_of(Rows::Matrices);
        let (Some(muon), [means]) = (&self.muon, columns.as_slice()) else { return Ok(()) };
        for (part, held) in table.parts(Role::Moment(Rows::Matrices)).iter().zip(*means) {
            let block = &table.blocks()[part.block];
            let options = block.group.options().and_then(|group| self.groups.get(group));
            let (Some(options), Some(data)) = (options, table.data().nth(part.block)) else { continue };
            for slot in whole_rows(part, &block.slots, used) {
                let (grad, data) = (slot.view(table.grad(part.block))?, slot.view(data)?);
                let mean = slot.reshape(&part.view(held, &slot.range())?)?;
                let figures = UpdateFigures::new(lr, options, table.updates()[slot.row]);
                retry_on_oom(table.device(), || {
                    tch::no_grad(|| muon.update([&data, &grad, &mean], figures, scale_and_skip))
                })?;
            }
        }
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

impl UpdateFigures {
    /// Returns the settings of a group's update, after this number of updates.
    fn new(lr: f64, options: &GroupOptions, updates: u64) -> Self {
        Self {
            lr: lr * options.lr_factor,
            weight_decay: options.weight_decay,
            is_first: updates == 0,
            number: (updates + 1) as f64,
        }
    }
}

/// Cuts a gradient to an absolute value. The update divides it by the scale afterwards.
fn cut(grad: &Tensor, limit: f64, scale_and_skip: Option<ScaleAndSkip<'_>>) -> Result<(), TchError> {
    let mut grad = grad.shallow_clone();
    match scale_and_skip {
        None => grad.f_clamp_(-limit, limit).map(drop),
        Some(ScaleAndSkip { scale, .. }) => {
            let limit = scale.f_to_kind(grad.kind())?.f_mul_scalar(limit)?;
            grad.f_clamp_tensor_(Some(&limit.f_neg()?), Some(&limit)).map(drop)
        }
    }
}
