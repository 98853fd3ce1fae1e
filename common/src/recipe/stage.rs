//! `[[stage]]`: parts of a run with settings of their own, and the recipe of one of them.

use serde::{Deserialize, Serialize};

use super::{Loss, MicroBatch, OptimGroup, Passage, Recipe, Recompute};

/// `[[stage]]`: what is not stated is as the rest of the recipe says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name; no other stage has the same.
    pub name: String,
    /// Passes over the training set. Exactly one of `epochs` and `steps` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Optimizer steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Globs of the parameters that are not trained, beside those of `model.freeze`. Without it a stage that unfreezes begins
    /// with what was frozen at the end of the stage before, and any other with `model.freeze` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<Vec<String>>,
    /// What is trained after all, and from when on; in rising order of `at`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfreeze: Vec<Unfreeze>,
    /// In place of `train.effective_batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_batch: Option<usize>,
    /// In place of `memory.micro_batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<MicroBatch>,
    /// In place of `optim.lr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Multiplies the learning rate.
    #[serde(default = "one")]
    pub lr_factor: f64,
    /// Groups that come before those of `optim.group`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<OptimGroup>,
    /// In place of `memory.recompute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
    /// In place of `model.loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Whether the schedule runs over this stage alone or is the run's.
    #[serde(default = "restart")]
    pub schedule: Passage,
    /// Whether the moving average goes on or begins again with the weights as they are.
    #[serde(default = "goes_on")]
    pub ema: Passage,
    /// Whether `checkpoint.best` goes on comparing with the stage before.
    #[serde(default = "goes_on")]
    pub best: Passage,
}

/// `unfreeze = [{ at = 0.5, match = [...] }]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unfreeze {
    /// After which part of the stage's steps; at least 0 and below 1.
    pub at: f64,
    /// Globs on the names of parameters, at least one; `match` in a recipe, where one may stand without a list.
    #[serde(rename = "match", deserialize_with = "super::optim::one_or_many")]
    pub patterns: Vec<String>,
}

fn one() -> f64 {
    1.0
}

fn restart() -> Passage {
    Passage::Restart
}

fn goes_on() -> Passage {
    Passage::Continue
}

impl Unfreeze {
    /// The steps of a stage of `steps` (at least 1) before this one applies: the nearest to `at`, and never all of them.
    pub fn after(&self, steps: u64) -> u64 {
        ((self.at * steps as f64).round() as u64).min(steps.saturating_sub(1))
    }
}

impl Recipe {
    /// How many stages the run has: at least one.
    pub fn stages(&self) -> usize {
        self.stage.len().max(1)
    }

    /// The recipe of one stage as if it were a run of its own, stages counted from 0: the stage's settings in place of those
    /// that they replace. What is frozen depends on the stages before it and is not in it. Without sections `[[stage]]`, or
    /// beyond them, it is the recipe itself.
    pub fn of_stage(&self, number: usize) -> Self {
        let mut recipe = self.clone();
        let Some(stage) = self.stage.get(number) else {
            return recipe;
        };
        recipe.stage = Vec::new();
        (recipe.train.epochs, recipe.train.steps) = (stage.epochs, stage.steps);
        if let Some(batch) = stage.effective_batch {
            recipe.train.effective_batch = batch;
        }
        if let Some(micro_batch) = stage.micro_batch {
            recipe.memory.micro_batch = micro_batch;
        }
        if let Some(recompute) = stage.recompute {
            recipe.memory.recompute = recompute;
        }
        if let Some(loss) = stage.loss {
            recipe.model.loss = loss;
        }
        recipe.optim.lr = stage.lr.unwrap_or(recipe.optim.lr) * stage.lr_factor;
        let mut groups = stage.group.clone();
        groups.append(&mut recipe.optim.group);
        recipe.optim.group = groups;
        recipe
    }
}
