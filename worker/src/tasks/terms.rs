//! `model.loss` of each stage, bound to the classes of the data.

use dtrain_parts::losses::of_samples::Term;
use dtrain_recipe::{Loss, LossTerm, Recipe, SampleLoss};
use tch::{Device, Tensor};

use super::TaskError;
use super::samples::Sets;

/// The losses of a run.
pub(super) struct Terms {
    /// By stage.
    stages: Vec<Stage>,
    current: usize,
}

/// The losses of a stage, as stated and bound.
pub(super) struct Stage {
    pub(super) stated: Loss,
    pub(super) terms: Vec<Term>,
}

impl Terms {
    /// Binds the losses of all stages.
    ///
    /// # Errors
    /// Weights that do not fit the classes.
    pub(super) fn bind(recipe: &Recipe, sets: &Sets, device: Device) -> Result<Self, TaskError> {
        let stage = |number| {
            let (stated, key) = (recipe.of_stage(number).model.loss, recipe.loss_key(number));
            let classes = (sets.classes, &sets.class_names[..]);
            let bind = |of: &LossTerm| term(&of.settings, classes, &key, device);
            // `OutputLosses` binds those of other outputs and fields.
            let plain = stated.terms().iter().filter(|_| stated.is_plain());
            let terms = plain.map(bind).collect::<Result<_, _>>()?;
            Ok(Stage { stated, terms })
        };
        // For later stages see `begin`.
        let stages = (0..recipe.stages()).map(stage).collect::<Result<_, TaskError>>()?;
        Ok(Self { stages, current: 0 })
    }

    /// Begins a stage.
    pub(super) fn begin(&mut self, stage: usize) {
        self.current = stage.min(self.stages.len() - 1);
    }

    /// Returns the losses of the current stage.
    pub(super) fn current(&self) -> &Stage {
        &self.stages[self.current]
    }

    /// Returns whether this is true of the losses of every stage.
    pub(super) fn all(&self, is_true: impl Fn(&Loss) -> bool) -> bool {
        self.stages.iter().all(|stage| is_true(&stage.stated))
    }
}

/// Binds a loss to classes, their number and names, some of which may have none. `key`: that of the losses.
pub(super) fn term(
    settings: &SampleLoss,
    (classes, names): (usize, &[String]),
    key: &str,
    device: Device,
) -> Result<Term, TaskError> {
    let weights = settings.class_weights(classes, names, key)?;
    let weights = weights.map(|all| all.into_iter().map(|weight| weight as f32).collect::<Vec<_>>());
    let ranks = match settings {
        SampleLoss::Ordinal(ordinal) => ordinal.ranks(classes, names, key)?,
        _ => None,
    };
    Ok(Term {
        settings: settings.clone(),
        class_weights: weights.map(|all| Tensor::f_from_slice(&all)?.f_to_device(device)).transpose()?,
        ranks: ranks.map(|all| Tensor::f_from_slice(&all)?.f_to_device(device)).transpose()?,
    })
}

#[cfg(test)]
mod tests;
