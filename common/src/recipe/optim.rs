//! `[optim]`: the optimizer, its groups and the learning-rate schedule.

use serde::{Deserialize, Deserializer};

use super::keys::{entry, section};
use super::kinds::{
    COUNT, FLAG, GLOB_OR_GLOBS, Kind, PART, PLANNED, RATE, Range, SPAN, SPAN_OR_NONE, SPANS, choice,
};
use super::{Decay, OptimName, Per, Scaling, ScheduleName};
use crate::units::Span;

section! {
    /// `[optim]`. A loaded recipe has PyTorch's default for every value that the user does not state.
    Optim "optim" {
        /// The optimizer.
        name: OptimName = OptimName::AdamW, choice(OptimName::NAMES), experiment;
        /// The learning rate before scaling, required for SGD. [`Recipe::learning_rate`](super::Recipe::learning_rate) scales it.
        lr: f64 = 1e-3, RATE, experiment;
        /// The effective batch that `lr` is meant for.
        reference_batch: Option<usize> = None, COUNT, experiment;
        /// How the learning rate follows the effective batch.
        scaling: Scaling = Scaling::None, choice(Scaling::NAMES), experiment;
        /// Weight decay, decoupled from the gradient for AdamW; filled in (0.01 for AdamW, 0 for the others).
        weight_decay: Option<f64> = None, RATE, experiment;
        /// The parameters with weight decay.
        decay: Decay = Decay::All, choice(Decay::NAMES), experiment;
        /// AdamW and Adam: decay rates of the moments; filled in (0.9, 0.999).
        betas: Option<[f64; 2]> = None, Kind::Numbers(2, 2, Range::BELOW_ONE), experiment;
        /// AdamW and Adam: added to the denominator; filled in (1e-8).
        eps: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// SGD: momentum; filled in (0).
        momentum: Option<f64> = None, Kind::Number(Range::BELOW_ONE), experiment;
        /// SGD: Nesterov's form of momentum; filled in (false).
        nesterov: Option<bool> = None, FLAG, experiment;
        /// Largest norm of the gradient over all parameters; no clipping without it.
        clip: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// The course of the learning rate.
        schedule: Schedule = Schedule::default(), Kind::Section(Schedule::KEYS);
        /// Parameters with separate settings. A parameter belongs to the first group that matches it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        group: Vec<OptimGroup> = Vec::new(), Kind::Sections(OptimGroup::KEYS, 1);
    }
}

entry! {
    /// `[[optim.group]]`
    OptimGroup {
        /// Globs on the names of parameters, at least one. In a recipe `match`, where a single glob needs no list.
        #[serde(deserialize_with = "one_or_many")]
        patterns as "match": Vec<String>, GLOB_OR_GLOBS;
        /// Factor of the learning rate.
        #[serde(default = "one")]
        lr_factor: f64, RATE;
        /// The weight decay of all its parameters, independent of [`Optim::decay`]; by default the recipe's.
        weight_decay: Option<f64>, RATE;
    }
}

pub(super) fn one() -> f64 {
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

section! {
    /// `optim.schedule`
    Schedule "optim.schedule" {
        /// The course after the warm-up.
        name: ScheduleName = ScheduleName::Constant, Kind::Choice(ScheduleName::NAMES, &[("polynomial", PLANNED)]), experiment;
        /// Time in which the learning rate rises to its full value; not with one-cycle, which has `rise`.
        warmup: Option<Span> = None, SPAN_OR_NONE, experiment;
        /// How often the rate changes after the warm-up.
        per: Per = Per::Step, choice(Per::NAMES), experiment;
        /// Linear and cosine: the last learning rate; filled in (0).
        min_lr: Option<f64> = None, RATE, experiment;
        /// Step: the time between two changes; whole epochs with `per = "epoch"`. In place of `milestones`.
        every: Option<Span> = None, SPAN, experiment;
        /// Step: the times of the changes, in rising order; whole epochs with `per = "epoch"`.
        milestones: Option<Vec<Span>> = None, SPANS, experiment;
        /// Step, exponential: the factor at each change; filled in for step (0.1).
        gamma: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// One-cycle: the part of the run in which the rate rises; filled in (0.3). PyTorch's pct_start.
        rise: Option<f64> = None, PART, experiment;
        /// One-cycle: the run begins at the learning rate divided by this; filled in (25). PyTorch's div_factor.
        start_factor: Option<f64> = None, Kind::Number(Range::AT_LEAST_ONE), experiment;
        /// One-cycle: the run ends at the first rate divided by this; filled in (1e4). PyTorch's final_div_factor.
        final_factor: Option<f64> = None, Kind::Number(Range::AT_LEAST_ONE), experiment;
    }
}
