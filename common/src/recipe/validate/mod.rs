//! Conditions between the settings of a recipe.

mod data;
mod model;
mod optim;
mod stage;

use toml::Value;

use super::origin::{Problem, is_stated};
use super::{DataKind, LastBatch, Recipe, TestWeights};

/// Returns all conflicts between settings. `stated` is the recipe as written, without defaults.
pub(super) fn check(recipe: &Recipe, stated: &Value) -> Vec<Problem> {
    let mut checks = Checks { recipe, stated, problems: Vec::new() };
    // The user's trainer decides the meaning of `[data]` and `[model]`.
    let own = recipe.task.facts().is_own;
    if !own {
        checks.data_pairing();
        checks.model_pairing();
    }
    if !checks.problems.is_empty() {
        // With a wrong pairing, checks of other settings make no sense.
        return checks.problems;
    }
    for (key, reason) in recipe.settings_without_effect() {
        if is_stated(stated, key) {
            checks.add(key, format!("this setting has no effect: {reason}; remove it"));
        }
    }
    if !own {
        checks.data();
        checks.model();
    }
    checks.train();
    checks.optim();
    checks.stages();
    checks.problems
}

struct Checks<'a> {
    recipe: &'a Recipe,
    stated: &'a Value,
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
        if let Some(samples) = generated_samples(recipe)
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
    }
}

/// Returns the number of training samples, if the recipe alone determines it.
fn generated_samples(recipe: &Recipe) -> Option<usize> {
    (recipe.data.kind == DataKind::Generated && !recipe.task.facts().is_own)
        .then_some(recipe.data.train_samples)
}
