//! `[optim]`: the optimizer and its groups.

use serde::{Deserialize, Deserializer};

use super::kinds::{COUNT, FLAG, GLOB_OR_GLOBS, Kind, RATE, Range, choice};
use super::schedules::Schedule;
use super::{AdjustLr, Decay, NewtonSchulz, OptimName, Scaling};
use crate::{entry, section};

section! {
    /// `[optim]`. A loaded recipe has PyTorch's default for every value that the user does not state.
    Optim "optim" {
        /// The optimizer.
        name: OptimName = OptimName::AdamW, choice(OptimName::NAMES), experiment;
        /// The learning rate before scaling, required for SGD, RMSprop, Lion and Muon.
        lr: f64 = 1e-3, RATE, experiment;
        /// The effective batch that `lr` is meant for.
        reference_batch: Option<usize> = None, COUNT, experiment;
        /// How the learning rate follows the effective batch.
        scaling: Scaling = Scaling::None, choice(Scaling::NAMES), experiment;
        /// Weight decay, decoupled from the gradient for AdamW, Lion and Muon; filled in (0.01 for AdamW, 0.1 for Muon, 0 for the
        /// others).
        weight_decay: Option<f64> = None, RATE, experiment;
        /// The parameters with weight decay.
        decay: Decay = Decay::All, choice(Decay::NAMES), experiment;
        /// AdamW, Adam, Lion, and Muon's AdamW: decay rates of the moments; filled in (0.9, 0.999; for Lion 0.9, 0.99).
        betas: Option<[f64; 2]> = None, Kind::Numbers(2, 2, Range::BELOW_ONE), experiment;
        /// AdamW, Adam, RMSprop, and Muon's AdamW: added to the denominator; filled in (1e-8).
        eps: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// AdamW and Adam: whether the largest mean square so far is the denominator (Reddi et al. 2018).
        amsgrad: bool = false, FLAG, experiment;
        /// RMSprop: decay rate of the mean square; filled in (0.99).
        alpha: Option<f64> = None, Kind::Number(Range::BELOW_ONE), experiment;
        /// RMSprop: whether the denominator is the deviation, not the mean square.
        centered: bool = false, FLAG, experiment;
        /// SGD, RMSprop and Muon: momentum; filled in (0; for Muon 0.95).
        momentum: Option<f64> = None, Kind::Number(Range::BELOW_ONE), experiment;
        /// SGD and Muon: Nesterov's form of momentum; filled in (false; for Muon true).
        nesterov: Option<bool> = None, FLAG, experiment;
        /// Muon: how its learning rate depends on the shape of a matrix.
        adjust_lr: AdjustLr = AdjustLr::Original, choice(AdjustLr::NAMES), experiment;
        /// Muon: the precision of the products that orthogonalize a matrix.
        newton_schulz: NewtonSchulz = NewtonSchulz::Bf16, choice(NewtonSchulz::NAMES), experiment;
        /// Muon: whether the weights of convolutions, of 4 dimensions, are matrices too: of outputs times all else.
        convolutions: bool = false, FLAG, experiment;
        /// Muon: the learning rate of AdamW, which updates the rest; filled in (0.001; `lr` if `adjust_lr` is "match_rms_adamw").
        adamw_lr: Option<f64> = None, RATE, experiment;
        /// Muon: the weight decay of AdamW; filled in (0.01).
        adamw_weight_decay: Option<f64> = None, RATE, experiment;
        /// Largest norm of the gradient over all parameters; no clipping without it.
        clip: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// Largest absolute value of an element of the gradient; larger ones are cut to it. In place of `clip`.
        clip_value: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// Largest norm of the gradient of a unit, as a part of the norm of its weights (Brock et al. 2021, arXiv 2102.06171). In place
        /// of `clip`.
        clip_adaptive: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// The factor of the learning rate from each layer to the one before it; the last layer has the full rate.
        layer_decay: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
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
        /// The weight decay of all its parameters, independent of `optim.decay`; by default the recipe's.
        weight_decay: Option<f64>, RATE;
        /// AdamW, Adam, Lion, and Muon's AdamW: decay rates of the moments; by default the recipe's.
        betas: Option<[f64; 2]>, Kind::Numbers(2, 2, Range::BELOW_ONE);
        /// AdamW, Adam, RMSprop, and Muon's AdamW: added to the denominator; by default the recipe's.
        eps: Option<f64>, Kind::Number(Range::ABOVE_ZERO);
        /// Muon: whether Muon updates its parameters, not AdamW; by default as their shapes and names say.
        muon: Option<bool>, FLAG;
        /// Whether `optim.clip_adaptive` applies; true by default.
        clip_adaptive: Option<bool>, FLAG;
    }
}

impl Optim {
    /// Sets the learning rate, and that of Muon's AdamW in the same proportion.
    pub fn set_lr(&mut self, lr: f64) {
        if let Some(adamw) = self.adamw_lr.as_mut().filter(|_| self.lr != 0.0) {
            *adamw *= lr / self.lr;
        }
        self.lr = lr;
    }
}

pub(super) fn one() -> f64 {
    1.0
}

/// A list of texts, or a single one without a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a glob or a list of globs")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Vec<String> {
    fn from(form: OneOrMany) -> Self {
        match form {
            OneOrMany::One(pattern) => vec![pattern],
            OneOrMany::Many(patterns) => patterns,
        }
    }
}

/// Reads a list of texts, or a single one without a list.
pub fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    OneOrMany::deserialize(deserializer).map(Vec::from)
}

/// As [`one_or_many`], for a setting without a default.
pub(super) fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<OneOrMany>::deserialize(deserializer)?.map(Vec::from))
}
