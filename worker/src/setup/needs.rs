//! What a task and its recipe need of each other.

use std::collections::HashSet;

use dtrain_recipe::{Recipe, check_test_name};

use crate::course::{BatchNorms, Needs};
use crate::models::Registry;
use crate::run::share_rows::names;
use crate::setup::error::{Result, WorkerError};
use crate::tasks::{Task, Totals};

/// Returns an error if the recipe names a figure that no evaluation of the task has.
pub(crate) fn check_figures(task: &dyn Task, recipe: &Recipe) -> Result<()> {
    let best = recipe.checkpoint.best.iter().map(|best| ("checkpoint.best", best.figure.clone()));
    let stop = recipe.train.stop_early.iter().map(|stop| ("train.stop_early.figure", stop.figure().figure));
    let named = recipe.evaluate.figures.iter().flatten().map(|name| ("evaluate.figures", name.clone()));
    best.chain(stop).chain(named).try_for_each(|(key, wanted)| check_figure(task, key, wanted))
}

fn check_figure(task: &dyn Task, key: &'static str, wanted: String) -> Result<()> {
    let known = known_figures(task);
    match known.contains(&wanted) {
        true => Ok(()),
        false => Err(WorkerError::NoFigure { key, wanted, known }),
    }
}

/// Returns the names of the loss and the figures that evaluations of a task have.
pub(crate) fn known_figures(task: &dyn Task) -> Vec<String> {
    let samples = task.facts().watched().samples.len();
    let nothing = Totals { loss_sum: 0.0, weight: 1.0, sums: vec![0.0; task.facts().sums] };
    let figures = task.figures(&nothing).into_iter().map(|(name, _)| name.to_owned());
    let of_rows = names(task, samples);
    let mut known = vec!["loss".to_owned()];
    for name in figures.chain(of_rows) {
        // One of the recipe takes the place of its name.
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known
}

/// Returns an error if the task's order of samples gives them other members than they take.
pub(crate) fn check_members(task: &dyn Task) -> Result<()> {
    let facts = task.facts();
    let taken = facts.train.groups().map_or(1, |groups| groups.width());
    match facts.sampling().width() {
        // A group whose number alone is given has its own members.
        1 => Ok(()),
        given if given == taken => Ok(()),
        given => Err(WorkerError::Members { given, taken }),
    }
}

/// Returns an error if two test sets of the task have one name, or one has a name that lines of metrics.jsonl cannot have.
pub(crate) fn check_test_names(task: &dyn Task) -> Result<()> {
    let mut names = HashSet::new();
    for (name, _) in &task.facts().more_tests {
        let twice = || format!("two sets have the name `{name}`; choose another name");
        let checked = check_test_name(name).and_then(|()| match names.insert(name) {
            true => Ok(()),
            false => Err(twice()),
        });
        checked.map_err(WorkerError::TestName)?;
    }
    Ok(())
}

/// Returns the requirements of a task's model.
pub(crate) fn needs(task: &dyn Task, registry: &Registry, recipe: &Recipe) -> Needs {
    let (facts, joins) = (task.facts(), &recipe.model.state);
    // A built-in network's minimum is that of BatchNorm.
    let is_free = registry.is_batch_frozen && recipe.program().is_none();
    let min_micro_batch = if is_free { 1 } else { facts.batches.least };
    // The minimum of a program may have another reason.
    let least = match recipe.program() {
        Some(_) => 1 + usize::from(registry.has_small_norms),
        None => min_micro_batch,
    };
    Needs {
        min_micro_batch,
        is_program_min: least < min_micro_batch,
        max_micro_batch: facts.batches.most,
        batch_norms: batch_norms(registry),
        depends: facts.micro_batch_warning.clone(),
        has_partners: facts.sampling().has_partners,
        undivided: facts
            .undivided_buffers
            .iter()
            .filter(|name| !joins.contains_key(*name))
            .cloned()
            .collect(),
        group: recipe.model.batchnorm.group().map(|group| (group, least)),
    }
}

/// Returns which samples share the model's BatchNorm statistics.
pub(crate) fn batch_norms(registry: &Registry) -> BatchNorms {
    match (registry.is_batch_grouped, registry.is_batch_synced()) {
        _ if !registry.has_batch_norms() || registry.is_batch_frozen => BatchNorms::None,
        (true, _) => BatchNorms::Grouped,
        (false, true) => BatchNorms::Synced,
        (false, false) => BatchNorms::Local,
    }
}
