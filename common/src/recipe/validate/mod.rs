//! What must hold between the settings of a recipe.

mod data;
mod model;
mod optim;
mod stage;

use toml::Table;

use super::load::given;
use super::origin::Problem;
use super::{DataKind, LastBatch, Recipe, Task, TestWeights};

/// Everything that does not fit together. `table` is the recipe as given, to tell what was stated from what is a
/// default.
pub(super) fn check(recipe: &Recipe, table: &Table) -> Vec<Problem> {
    let given = |dotted: &str| given(table, dotted);
    let mut problems = Vec::new();
    // What data and model mean is for the user's own trainer to say.
    let own = recipe.task == Task::Custom;
    if !own {
        data::pairing(recipe, &mut problems);
        model::pairing(recipe, &mut problems);
    }
    if !problems.is_empty() {
        // Which settings mean something follows from a pairing that makes sense.
        return problems;
    }
    for (key, reason) in recipe.idle().iter().filter(|(key, _)| given(key)) {
        let message = format!("this setting has no effect: {reason}; remove it");
        problems.push(Problem::at(key, message));
    }
    if !own {
        data::check(recipe, &given, &mut problems);
        model::check(recipe, &given, &mut problems);
    }
    train(recipe, &mut problems);
    optim::check(recipe, table, &mut problems);
    stage::check(recipe, table, &mut problems);
    test(recipe, &mut problems);
    problems
}

fn train(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let train = &recipe.train;
    if recipe.stage.is_empty() && train.epochs.is_none() && train.steps.is_none() {
        problems.push(Problem::at(
            "train.epochs",
            "missing; state the length of the run as train.epochs or train.steps",
        ));
    }
    let batches = recipe.stage.iter().filter_map(|stage| stage.effective_batch);
    let largest = batches.chain([train.effective_batch]).max().unwrap_or(0);
    if let Some(samples) = generated_samples(recipe)
        && train.last_batch == LastBatch::Drop
        && samples < largest
    {
        problems.push(Problem::at(
            "train.last_batch",
            format!(
                "\"drop\" leaves no step at all: the effective batch of {largest} is larger than the {samples} training \
                 samples"
            ),
        ));
    }
}

fn test(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let best = recipe.test.is_some_and(|test| test.weights == TestWeights::Best);
    if best && recipe.checkpoint.best.is_none() {
        problems.push(Problem::at(
            "test.weights",
            "\"best\" needs checkpoint.best to say by which figure, such as best = \"max accuracy\"; or test those of the last step, \
             \"last\"",
        ));
    }
}

/// The number of training samples where the recipe alone says it.
fn generated_samples(recipe: &Recipe) -> Option<usize> {
    (recipe.data.kind == DataKind::Generated && recipe.task != Task::Custom)
        .then_some(recipe.data.train_samples)
}
