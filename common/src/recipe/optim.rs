//! `[optim]`: the optimizer, its groups and the course of the learning rate.

use serde::{Deserialize, Deserializer, Serialize};

use super::{Decay, OptimName, Per, Scaling, ScheduleName};
use crate::units::Span;

/// `[optim]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optim {
    /// The optimizer.
    pub name: OptimName,
    /// The learning rate as stated; [`Recipe::learning_rate`] is the one to use.
    ///
    /// [`Recipe::learning_rate`]: super::Recipe::learning_rate
    pub lr: f64,
    /// The effective batch for which `lr` was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_batch: Option<usize>,
    /// How the learning rate follows the effective batch.
    pub scaling: Scaling,
    /// Weight decay, decoupled from the gradient for AdamW; filled in by [`Recipe::load`] (0.01 for AdamW, 0 for the
    /// others).
    ///
    /// [`Recipe::load`]: super::Recipe::load
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Which parameters are decayed.
    pub decay: Decay,
    /// AdamW and Adam: decay rates of the two moments; filled in (0.9, 0.999).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// AdamW and Adam: added to the denominator; filled in (1e-8).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// SGD: momentum; filled in (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// SGD: Nesterov's form of momentum; filled in (false).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Largest norm of the gradient over all parameters; without it gradients are used as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// The course of the learning rate.
    pub schedule: Schedule,
    /// Parameters with settings of their own. A parameter belongs to the first group that matches it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<OptimGroup>,
}

/// AdamW's and Adam's learning rate where the recipe states none. SGD has no such value: its recipe must state one.
pub const DEFAULT_ADAM_LR: f64 = 1e-3;

impl Default for Optim {
    fn default() -> Self {
        Self {
            name: OptimName::AdamW,
            lr: DEFAULT_ADAM_LR,
            reference_batch: None,
            scaling: Scaling::None,
            weight_decay: None,
            decay: Decay::All,
            betas: None,
            eps: None,
            momentum: None,
            nesterov: None,
            clip: None,
            schedule: Schedule::default(),
            group: Vec::new(),
        }
    }
}

/// `[[optim.group]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimGroup {
    /// Globs on the names of parameters, at least one; `match` in a recipe, where one may stand without a list.
    #[serde(rename = "match", deserialize_with = "one_or_many")]
    pub patterns: Vec<String>,
    /// The group's learning rate is the recipe's times this.
    #[serde(default = "one")]
    pub lr_factor: f64,
    /// The group's weight decay, for all of its parameters whatever [`Optim::decay`] says; the recipe's where there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

fn one() -> f64 {
    1.0
}

pub(super) fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a glob or a list of globs")]
    enum Form {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(pattern) => vec![pattern],
        Form::Many(patterns) => patterns,
    })
}

/// `optim.schedule`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The course after the warm-up.
    pub name: ScheduleName,
    /// Over this span the learning rate rises to its full value; never with one-cycle, which has a rise of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Span>,
    /// How often the rate moves after the warm-up.
    pub per: Per,
    /// Linear and cosine: where the learning rate ends; filled in (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// Step: the time between two changes; never zero, and whole epochs with `per = "epoch"`. Exactly one of this and
    /// `milestones` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// Step: the times of the changes, counted from the same beginning as `every`, rising where that can be told
    /// without the number of steps in an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub milestones: Option<Vec<Span>>,
    /// Step, exponential: the factor at each change; filled in for step (0.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// One-cycle: the part of the run in which the rate rises, above 0 and below 1; filled in (0.3). PyTorch's pct_start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rise: Option<f64>,
    /// One-cycle: the run begins at the learning rate divided by this; filled in (25). PyTorch's div_factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_factor: Option<f64>,
    /// One-cycle: the run ends at the first rate divided by this; filled in (1e4). PyTorch's final_div_factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_factor: Option<f64>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            name: ScheduleName::Constant,
            warmup: None,
            per: Per::Step,
            min_lr: None,
            every: None,
            milestones: None,
            gamma: None,
            rise: None,
            start_factor: None,
            final_factor: None,
        }
    }
}
