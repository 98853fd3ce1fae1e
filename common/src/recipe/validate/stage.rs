//! Conditions within and between stages. Globs are matched later, against the model.

use toml::Value;

use super::{Checks, no_effect};
use crate::recipe::AtStageStart;

impl Checks<'_> {
    pub(super) fn stages(&mut self) {
        let stated = self.stated.get("stage").and_then(Value::as_array);
        for (number, stage) in self.recipe.stage.iter().enumerate() {
            let name = &stage.name;
            let earlier = &self.recipe.stage[..number];
            if earlier.iter().any(|earlier| earlier.name == *name) {
                let message = format!("{name:?} is the name of an earlier stage; give each a different name");
                self.of_stage(number, "name", message);
            }
            match (stage.epochs, stage.steps) {
                (None, None) => {
                    let message = "missing; state the length of the stage as epochs or as steps";
                    self.of_stage(number, "epochs", message);
                }
                (Some(_), Some(_)) => {
                    self.of_stage(number, "steps", "the stage has epochs and steps; remove one of the two")
                }
                _ => {}
            }
            self.stage_effect(number);
            self.stage_rates(number);
            self.freezing(number);
            let groups = stated.and_then(|list| list.get(number)?.get("group"));
            self.groups(groups, &format!("stage[{number}].group"));
        }
    }

    fn of_stage(&mut self, number: usize, key: &str, message: impl Into<String>) {
        self.add(&format!("stage[{number}].{key}"), message);
    }

    fn stage_effect(&mut self, number: usize) {
        let (recipe, stage) = (self.recipe, &self.recipe.stage[number]);
        let (ema, best) = (stage.ema == AtStageStart::Restart, stage.best == AtStageStart::Restart);
        let (has_ema, has_best) = (recipe.ema.is_some(), recipe.checkpoint.best.is_some());
        for (has_no_effect, key, reason) in [
            (ema && !has_ema, "ema", "the recipe has no [ema]"),
            (ema && has_ema && number == 0, "ema", "the moving average begins with the run"),
            (best && !has_best, "best", "checkpoint.best is not set"),
            (best && has_best && number == 0, "best", "checkpoint.best begins with the run"),
        ] {
            if has_no_effect {
                self.of_stage(number, key, no_effect(reason));
            }
        }
    }

    fn stage_rates(&mut self, number: usize) {
        let (stage, alone) = (&self.recipe.stage[number], self.recipe.of_stage(number));
        let rate = alone.learning_rate();
        let key = match (stage.lr, stage.lr_factor) {
            (Some(_), _) => "lr",
            (None, factor) if factor != 1.0 => "lr_factor",
            _ => "effective_batch",
        };
        if !rate.is_finite() {
            let message =
                "the learning rate of this stage becomes infinite when it is scaled to the batch; lower it";
            self.of_stage(number, key, message);
        } else if let Some(min_lr) = alone.optim.schedule.min_lr.filter(|min_lr| *min_lr > rate)
            && self.recipe.learning_rate() >= min_lr
        {
            let message = format!(
                "the learning rate of this stage is {rate}, below optim.schedule.min_lr = {min_lr}; raise it, or lower min_lr"
            );
            self.of_stage(number, key, message);
        }
    }

    /// Finds contradictions that do not depend on the model.
    fn freezing(&mut self, number: usize) {
        let stage = &self.recipe.stage[number];
        for (index, entry) in stage.unfreeze.iter().enumerate() {
            let earlier = &stage.unfreeze[..index];
            if let Some(before) = earlier.last().filter(|before| before.at >= entry.at) {
                let (at, before) = (entry.at, before.at);
                let message = format!(
                    "{at} comes after {before} in the list; put the parts in rising order, each once"
                );
                self.of_stage(number, &format!("unfreeze[{index}].at"), message);
            }
            let key = format!("unfreeze[{index}].match");
            for glob in &entry.patterns {
                if earlier.iter().any(|entry| entry.patterns.contains(glob)) {
                    let message =
                        format!("an earlier entry already unfreezes {glob:?}; remove one of the two");
                    self.of_stage(number, &key, message);
                }
                let frozen = stage.freeze.as_ref().is_some_and(|globs| globs.contains(glob));
                if frozen && entry.at == 0.0 {
                    let message = format!(
                        "this stage freezes {glob:?} and unfreezes it at its start; remove it from freeze, or raise `at`"
                    );
                    self.of_stage(number, &key, message);
                }
            }
        }
    }
}
