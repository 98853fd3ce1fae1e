//! Conditions between the settings of `[data]`, `[model]` and the task.

mod changes;
mod data;
mod masks;
mod mix;
mod model;

use dtrain_common::recipe::{Draft, Problem, WithoutEffect, check_general, without_effect};

use super::{DataKind, Recipe};

/// Returns all conflicts between settings. `draft` is the recipe as written, without defaults.
pub(super) fn check(recipe: &Recipe, draft: &Draft<'_>) -> Vec<Problem> {
    let mut checks = Checks { recipe, draft, problems: Vec::new() };
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
    let list = WithoutEffect(recipe.settings_without_effect());
    checks.problems.extend(without_effect(&list, draft.stated()));
    checks.losses_without_effect();
    checks.adapters();
    if !own {
        checks.data();
        checks.model();
    }
    checks.problems.extend(check_general(recipe, draft.stated(), generated_samples(recipe)));
    checks.problems
}

struct Checks<'a> {
    recipe: &'a Recipe,
    draft: &'a Draft<'a>,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::at(key, message));
    }
}

/// Returns the number of training samples, if the recipe alone determines it.
fn generated_samples(recipe: &Recipe) -> Option<usize> {
    (recipe.data.kind == DataKind::Generated && !recipe.task.facts().is_own)
        .then_some(recipe.data.train_samples)
}
