//! Conditions between `data.mix` and other settings.

use super::Checks;
use crate::{Target, mixes};

impl Checks<'_> {
    /// Checks that the recipe's data can be mixed.
    pub(super) fn mix(&mut self) {
        let (data, target) = (&self.recipe.data, self.recipe.target());
        if data.mix.is_empty() {
            return;
        }
        if let Some((at, message)) = mixes::problem(&data.mix) {
            self.add(&format!("data.mix[{at}]"), message);
        }
        let has_own_loss = self.recipe.program().is_some() && !self.recipe.model.losses.is_empty();
        let losses: Vec<_> =
            (0..self.recipe.stages()).map(|stage| self.recipe.of_stage(stage).model.loss).collect();
        let has_program = data.changes.iter().any(|change| change.file().is_some());
        let is_map = target == Some(Target::Map) && !self.recipe.task.facts().returns_loss;
        let problem = if data.pairs {
            "data.pairs gives each sample a partner too; remove one of the two settings"
        } else if data.episodes.is_some() {
            "data.episodes decides the images of a sample; remove one of the two settings"
        } else if self.recipe.has_texts() {
            "texts cannot be mixed; remove it, or the texts in data.fields"
        } else if has_own_loss {
            "a loss over all samples of a step cannot be mixed; remove it, or model.losses"
        } else if losses.iter().any(|loss| loss.program().is_some()) {
            "a loss of your own cannot be mixed; remove it, or `program` in model.loss"
        } else if has_program {
            "a change of your own comes after the mixing; remove it, or `program` in data.changes"
        } else if losses.iter().any(|loss| !loss.is_plain()) {
            "losses of several outputs cannot be mixed; remove it, or the output and target in model.loss"
        } else if is_map {
            "a number of each pixel cannot be mixed; remove it"
        } else if self.recipe.stage.is_empty() && self.recipe.train.effective_batch == 1 {
            "a step of one sample has no other to mix with it; raise train.effective_batch"
        } else {
            return;
        };
        self.add("data.mix", problem);
    }
}
