//! What must hold between the settings of a recipe.

use toml::{Table, Value};

use super::load::Problem;
use super::{DataKind, LastBatch, OptimName, Recipe, Scaling, ScheduleName, Span};

/// Everything that does not fit together. `table` is the recipe as given, to tell what was stated from what is a
/// default.
pub(super) fn check(recipe: &Recipe, table: &Table) -> Vec<Problem> {
    let given = |dotted: &str| given(table, dotted);
    let mut problems = Vec::new();
    data(recipe, &given, &mut problems);
    train(recipe, &mut problems);
    optim(recipe, &given, &mut problems);
    schedule(recipe, &given, &mut problems);
    problems
}

fn given(table: &Table, dotted: &str) -> bool {
    let mut names = dotted.split('.');
    let first = names.next().and_then(|name| table.get(name));
    names
        .fold(first, |value, name| {
            value.and_then(Value::as_table).and_then(|table| table.get(name))
        })
        .is_some()
}

/// A stated setting that would change nothing.
fn without_effect(keys: &[&str], reason: &str, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    for key in keys.iter().filter(|key| given(key)) {
        problems.push(Problem::at(
            key,
            format!("this setting has no effect: {reason}; remove it"),
        ));
    }
}

fn data(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    match recipe.data.kind {
        DataKind::Folder => {
            without_effect(
                &["data.classes", "data.train_samples", "data.test_samples"],
                "a folder's images and class folders are counted (data.kind is \"folder\")",
                given,
                problems,
            );
            if recipe.data.root.is_none() {
                problems.push(Problem::at(
                    "data.root",
                    "missing; name the folder that holds the train and test folders, or set data.kind = \"generated\"",
                ));
            }
        }
        DataKind::Generated => without_effect(
            &["data.root", "data.train", "data.test"],
            "generated data is read from nowhere (data.kind is \"generated\")",
            given,
            problems,
        ),
    }
}

fn train(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let train = &recipe.train;
    if train.epochs.is_none() && train.steps.is_none() {
        problems.push(Problem::at(
            "train.epochs",
            "missing; state the length of the run as train.epochs or train.steps",
        ));
    }
    let samples = recipe.data.train_samples;
    if recipe.data.kind == DataKind::Generated
        && train.last_batch == LastBatch::Drop
        && samples < train.effective_batch
    {
        problems.push(Problem::at(
            "train.last_batch",
            format!(
                "\"drop\" leaves no step at all: the effective batch of {} is larger than the {samples} training \
                 samples",
                train.effective_batch
            ),
        ));
    }
}

fn optim(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let optim = &recipe.optim;
    match optim.name {
        OptimName::AdamW => without_effect(
            &["optim.momentum", "optim.nesterov"],
            "it belongs to optim.name = \"sgd\" and this is \"adamw\"",
            given,
            problems,
        ),
        OptimName::Sgd => {
            without_effect(
                &["optim.betas", "optim.eps"],
                "it belongs to optim.name = \"adamw\" and this is \"sgd\"",
                given,
                problems,
            );
            if !given("optim.lr") {
                problems.push(Problem::at(
                    "optim.lr",
                    "missing; SGD has no usual learning rate, so state one",
                ));
            }
        }
    }
    if optim.nesterov == Some(true) && optim.momentum.is_none_or(|momentum| momentum == 0.0) {
        problems.push(Problem::at(
            "optim.nesterov",
            "Nesterov's method needs optim.momentum above 0",
        ));
    }
    if optim.scaling != Scaling::None && optim.reference_batch.is_none() {
        problems.push(Problem::at(
            "optim.scaling",
            format!(
                "{:?} needs optim.reference_batch, the batch for which optim.lr was stated",
                optim.scaling.to_string()
            ),
        ));
    } else if !recipe.learning_rate().is_finite() {
        problems.push(Problem::at(
            "optim.lr",
            "the learning rate becomes infinite when it is scaled to the batch",
        ));
    }
}

fn schedule(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let schedule = &recipe.optim.schedule;
    if schedule.name == ScheduleName::Constant {
        without_effect(
            &["optim.schedule.min_lr"],
            "the learning rate only falls with optim.schedule.name = \"cosine\"",
            given,
            problems,
        );
    } else if let Some(min_lr) = schedule.min_lr {
        let lr = recipe.learning_rate();
        if min_lr > lr {
            let scaled = if lr == recipe.optim.lr {
                ""
            } else {
                " after scaling"
            };
            problems.push(Problem::at(
                "optim.schedule.min_lr",
                format!("{min_lr} is above the learning rate, which is {lr}{scaled}"),
            ));
        }
    }
    if let Some(warmup) = schedule.warmup
        && let Some(run) = shorter_run(recipe, warmup)
    {
        let message = format!("a warm-up of {warmup} is longer than the run of {run}");
        problems.push(Problem::at("optim.schedule.warmup", message));
    }
}

/// The length of the run in words when `warmup` is longer and that can be told without looking at the data.
fn shorter_run(recipe: &Recipe, warmup: Span) -> Option<String> {
    let train = &recipe.train;
    if recipe.data.kind == DataKind::Generated {
        let per_epoch = train.steps_per_epoch(recipe.data.train_samples as u64);
        let total = train.total_steps(per_epoch);
        return (total > 0 && warmup.steps(per_epoch) > total).then(|| Span::Steps(total).to_string());
    }
    match warmup {
        Span::Steps(warmup) => train
            .steps
            .filter(|steps| warmup > *steps)
            .map(|steps| Span::Steps(steps).to_string()),
        Span::Epochs(warmup) => train
            .epochs
            .filter(|epochs| warmup > *epochs as f64)
            .map(|epochs| Span::Epochs(epochs as f64).to_string()),
    }
}
