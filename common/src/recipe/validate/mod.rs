//! Conditions between the general settings of a recipe.

mod optim;
mod stage;

use toml::Value;

use super::origin::{Problem, is_stated};
use super::{General, LastBatch, TestWeights, WithoutEffect};

/// Returns all conflicts between general settings. `stated` is the recipe as written, without defaults; `samples` is the
/// number of training samples, if the recipe alone determines it.
pub fn check(recipe: &General, stated: &Value, samples: Option<usize>) -> Vec<Problem> {
    let mut checks = Checks { recipe, stated, samples, problems: Vec::new() };
    checks.train();
    checks.optim();
    checks.stages();
    checks.problems
}

/// Returns a problem for each setting without effect that is stated.
pub fn without_effect(list: &WithoutEffect, stated: &Value) -> Vec<Problem> {
    let found = list.0.iter().filter(|(key, _)| is_stated(stated, key));
    found.map(|(key, reason)| Problem::at(key, no_effect(reason))).collect()
}

/// Formats that a setting has no effect.
pub fn no_effect(reason: &str) -> String {
    format!("this setting has no effect: {reason}; remove it")
}

struct Checks<'a> {
    recipe: &'a General,
    stated: &'a Value,
    samples: Option<usize>,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::at(key, message));
    }

    fn is_stated(&self, key: &str) -> bool {
        is_stated(self.stated, key)
    }

    fn train(&mut self) {
        let recipe = self.recipe;
        let train = &recipe.train;
        if recipe.stage.is_empty() && train.epochs.is_none() && train.steps.is_none() {
            self.add("train.epochs", "missing; set train.epochs or train.steps to the length of the run");
        }
        let batches = recipe.stage.iter().filter_map(|stage| stage.effective_batch);
        let largest = batches.chain([train.effective_batch]).max().unwrap_or(0);
        if let Some(samples) = self.samples
            && train.last_batch == LastBatch::Drop
            && samples < largest
        {
            let message = format!(
                "\"drop\" leaves no step: the effective batch of {largest} is larger than the {samples} training samples; \
                 use \"keep\" or a smaller train.effective_batch"
            );
            self.add("train.last_batch", message);
        }
        let best = recipe.test.is_some_and(|test| test.weights == TestWeights::Best);
        if best && recipe.checkpoint.best.is_none() {
            self.add(
                "test.weights",
                "\"best\" needs checkpoint.best, such as best = \"max accuracy\"; set it, or use \"last\"",
            );
        }
        if train.stop_early.is_some() && !recipe.stage.is_empty() {
            let message = "each [[stage]] states its length, and the learning rates depend on it; remove one of the two settings";
            self.add("train.stop_early", message);
        }
        self.evaluations();
        self.figures();
    }

    /// Checks that settings of evaluations during the training have some.
    fn evaluations(&mut self) {
        let General { train, checkpoint, evaluate, stage, .. } = self.recipe;
        if checkpoint.every.span().is_some() || evaluate.every.is_some() || stage.len() > 1 {
            return;
        }
        let settings =
            [("train.stop_early", train.stop_early.is_some()), ("evaluate.share", evaluate.share.is_some())];
        for (key, _) in settings.into_iter().filter(|(_, is_stated)| *is_stated) {
            let message = "this setting has no effect: checkpoint.every is a time, so the model is evaluated only at the end; set \
                           evaluate.every, such as \"1 epoch\", or remove the setting";
            self.add(key, message);
        }
    }

    /// Checks that figures that decide are computed.
    fn figures(&mut self) {
        let General { train, checkpoint, evaluate, .. } = self.recipe;
        let Some(computed) = &evaluate.figures else { return };
        let stops = train.stop_early.as_ref().and_then(|stop| stop.figure.as_ref());
        for (key, by) in [("checkpoint.best", checkpoint.best.as_ref()), ("train.stop_early.figure", stops)] {
            if let Some(by) = by
                && by.figure != "loss"
                && !computed.contains(&by.figure)
            {
                let message =
                    format!("evaluate.figures lacks {:?}, so it is not computed; add it there", by.figure);
                self.add(key, message);
            }
        }
    }
}
