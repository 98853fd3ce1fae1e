//! `[[stage]]`: parts of a run with their own settings, and the recipe of one stage.

use super::kinds::{AUTO_OR_COUNT, COUNT, GLOB_OR_GLOBS, GLOBS, Kind, NAME, RATE, Range, choice};
use super::optim::{one, one_or_many, some};
use super::{AtStageStart, General, MicroBatch, OptimGroup, Recompute};
use crate::entry;
use toml::Value;

/// The trainer knows more.
const A_LOSS: Kind = Kind::Other(
    "a loss such as \"focal\", or a table of losses such as { focal = { gamma = 1.5 } }",
    &["string", "object", "array"],
    |value| Ok(value.is_str() || value.is_table() || value.is_array()),
);

entry! {
    /// `[[stage]]`; the rest of the recipe has the defaults.
    Stage {
        /// The name, different for each stage.
        name: String, NAME;
        /// Passes over the training set. Exactly one of `epochs` and `steps` is set.
        epochs: Option<u64>, COUNT;
        /// Optimizer steps.
        steps: Option<u64>, COUNT;
        /// Globs of parameters that are not trained, besides `model.freeze`. The default is the state of the stage
        /// before for a stage that unfreezes, else none.
        #[serde(default, deserialize_with = "some")]
        freeze: Option<Vec<String>>, GLOBS;
        /// Parameters that are trained from a part of the stage on; in rising order of `at`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unfreeze: Vec<Unfreeze>, Kind::Sections(Unfreeze::KEYS, 2);
        /// In place of `train.effective_batch`.
        effective_batch: Option<usize>, COUNT;
        /// In place of `memory.micro_batch`.
        micro_batch: Option<MicroBatch>, AUTO_OR_COUNT;
        /// In place of `optim.lr`; with Muon, AdamW's learning rate changes in proportion.
        lr: Option<f64>, RATE;
        /// Multiplies the learning rate.
        #[serde(default = "one")]
        lr_factor: f64, RATE;
        /// Groups that come before those of `optim.group`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        group: Vec<OptimGroup>, Kind::Sections(OptimGroup::KEYS, 1);
        /// In place of `memory.recompute`.
        recompute: Option<Recompute>, choice(Recompute::NAMES);
        /// In place of `model.loss`; the trainer knows what it may be.
        loss: Option<Value>, A_LOSS;
        /// Whether the schedule covers this stage alone or the run.
        #[serde(default = "restart")]
        schedule: AtStageStart, choice(AtStageStart::NAMES);
        /// Whether the moving average continues or restarts from the current weights.
        #[serde(default = "continues")]
        ema: AtStageStart, choice(AtStageStart::NAMES);
        /// Whether `checkpoint.best` compares with earlier stages.
        #[serde(default = "continues")]
        best: AtStageStart, choice(AtStageStart::NAMES);
    }
}

entry! {
    /// `unfreeze = [{ at = 0.5, match = [...] }]`
    Unfreeze {
        /// Start, as a part of the stage's steps; at least 0 and below 1.
        at: f64, Kind::Number(Range::BELOW_ONE);
        /// Globs on the names of parameters, at least one. In a recipe `match`, where a single glob needs no list.
        #[serde(deserialize_with = "one_or_many")]
        patterns as "match": Vec<String>, GLOB_OR_GLOBS;
    }
}

fn restart() -> AtStageStart {
    AtStageStart::Restart
}

fn continues() -> AtStageStart {
    AtStageStart::Continue
}

impl General {
    /// Returns the number of stages of the run, at least one.
    pub fn stages(&self) -> usize {
        self.stage.len().max(1)
    }

    /// Returns the settings of one stage, counted from 0, as a separate run; beyond the last stage a copy of
    /// these. Frozen parameters are not included: they depend on the stages before.
    pub fn of_stage(&self, number: usize) -> Self {
        let mut recipe = self.clone();
        let Some(stage) = self.stage.get(number) else { return recipe };
        fn replace<T: Copy>(setting: &mut T, own: Option<T>) {
            *setting = own.unwrap_or(*setting);
        }
        recipe.stage = Vec::new();
        (recipe.train.epochs, recipe.train.steps) = (stage.epochs, stage.steps);
        replace(&mut recipe.train.effective_batch, stage.effective_batch);
        replace(&mut recipe.memory.micro_batch, stage.micro_batch);
        replace(&mut recipe.memory.recompute, stage.recompute);
        let lr = stage.lr.unwrap_or(recipe.optim.lr) * stage.lr_factor;
        recipe.optim.set_lr(lr);
        recipe.optim.group.splice(0..0, stage.group.iter().cloned());
        recipe
    }
}
