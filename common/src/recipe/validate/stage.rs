//! What must hold within `[[stage]]`, between the stages, and between them and the rest of the recipe. Which parameters their
//! globs match is told when there is a model.

use toml::{Table, Value};

use super::{Problem, Recipe, Task, optim};
use crate::recipe::{Passage, Stage};

pub(super) fn check(recipe: &Recipe, table: &Table, problems: &mut Vec<Problem>) {
    let given = table.get("stage").and_then(Value::as_array);
    for (number, stage) in recipe.stage.iter().enumerate() {
        let mut problem = |key: &str, message: String| {
            problems.push(Problem::at(&format!("stage[{number}].{key}"), message))
        };
        if recipe.stage[..number]
            .iter()
            .any(|earlier| earlier.name == stage.name)
        {
            problem(
                "name",
                format!(
                    "{:?} is the name of an earlier stage; give each its own",
                    stage.name
                ),
            );
        }
        match (stage.epochs, stage.steps) {
            (None, None) => problem(
                "epochs",
                "missing; state the length of the stage as epochs or as steps".into(),
            ),
            (Some(_), Some(_)) => problem(
                "steps",
                "the stage has epochs and steps; state its length in one of them, and remove the other"
                    .into(),
            ),
            _ => {}
        }
        effect(recipe, number, stage, &mut problem);
        rates(recipe, number, &mut problem);
        freezing(stage, &mut problem);
        let groups = given.and_then(|list| list.get(number)?.get("group"));
        optim::groups(
            stage.group.len(),
            groups,
            &format!("stage[{number}].group"),
            problems,
        );
    }
}

/// Settings that mean nothing in their stage.
fn effect(recipe: &Recipe, number: usize, stage: &Stage, problem: &mut dyn FnMut(&str, String)) {
    let mut idle =
        |key: &str, reason: String| problem(key, format!("this setting has no effect: {reason}; remove it"));
    let chooses = matches!(recipe.task, Task::Torchscript | Task::Custom);
    if stage.loss.is_some() && !chooses {
        let task = recipe.task.as_str();
        idle(
            "loss",
            format!("it is for task = \"torchscript\" and this is {task:?}"),
        );
    }
    if stage.ema == Passage::Restart && recipe.ema.is_none() {
        idle(
            "ema",
            "the recipe has no moving average, which [ema] asks for".into(),
        );
    } else if stage.ema == Passage::Restart && number == 0 {
        idle("ema", "the moving average begins with the run".into());
    }
    if stage.best == Passage::Restart && recipe.checkpoint.best.is_none() {
        idle(
            "best",
            "no best checkpoint is kept, which checkpoint.best asks for".into(),
        );
    } else if stage.best == Passage::Restart && number == 0 {
        idle("best", "the best is sought from the beginning of the run".into());
    }
}

fn rates(recipe: &Recipe, number: usize, problem: &mut dyn FnMut(&str, String)) {
    let (stage, alone) = (&recipe.stage[number], recipe.of_stage(number));
    let rate = alone.learning_rate();
    let key = match (stage.lr, stage.lr_factor) {
        (Some(_), _) => "lr",
        (None, factor) if factor != 1.0 => "lr_factor",
        _ => "effective_batch",
    };
    if !rate.is_finite() {
        problem(
            key,
            "the learning rate of this stage becomes infinite when it is scaled to the batch".into(),
        );
    } else if let Some(min_lr) = alone.optim.schedule.min_lr.filter(|min_lr| *min_lr > rate)
        && recipe.learning_rate() >= min_lr
    {
        problem(
            key,
            format!(
                "the learning rate of this stage is {rate}, below optim.schedule.min_lr, which is {min_lr}; raise the one or \
                 lower the other"
            ),
        );
    }
}

/// Contradictions that can be seen without the model.
fn freezing(stage: &Stage, problem: &mut dyn FnMut(&str, String)) {
    for (index, entry) in stage.unfreeze.iter().enumerate() {
        let earlier = &stage.unfreeze[..index];
        if let Some(before) = earlier.last().filter(|before| before.at >= entry.at) {
            let message = format!(
                "{} comes after {} in the list; put the parts in rising order, each once",
                entry.at, before.at
            );
            problem(&format!("unfreeze[{index}].at"), message);
        }
        let key = format!("unfreeze[{index}].match");
        for glob in &entry.patterns {
            if earlier.iter().any(|entry| entry.patterns.contains(glob)) {
                let message =
                    format!("{glob:?} is unfrozen by an earlier entry already; remove it here or there");
                problem(&key, message);
            }
            let frozen = stage.freeze.as_ref().is_some_and(|globs| globs.contains(glob));
            if frozen && entry.at == 0.0 {
                let message = format!(
                    "{glob:?} is frozen by this stage and unfrozen where it begins; remove it from freeze, or unfreeze it at a \
                     later part"
                );
                problem(&key, message);
            }
        }
    }
}
