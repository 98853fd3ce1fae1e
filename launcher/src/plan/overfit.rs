//! `dtrain launch --overfit N`: the recipe of a check that a model can learn N samples by heart.

use crate::changed_recipe::{change, set_steps, table_of};
use dtrain_common::recipe::AnyRecipe;
use std::path::Path;
use toml::{Table, Value};

/// Steps of the check, or of each stage, if the user sets none.
const STEPS: i64 = 200;
/// Steps of the warm-up, if the recipe has one.
const WARMUP: i64 = 20;
/// Evaluations in the course of the check.
const EVALUATIONS: i64 = 4;

/// Returns the recipe of the check. `set`: the user's overrides, which the recipe has.
pub(super) fn recipe(recipe: &AnyRecipe, samples: u32, set: &[String]) -> Table {
    let mut table = table_of(recipe);
    let states = |begin: &str| set.iter().any(|set| set.trim_start().starts_with(begin));
    let states_length = ["train.steps", "train.epochs", "stage."].iter().any(|key| states(key));
    if !states_length {
        set_steps(&mut table, STEPS, |_| {});
    } else if !states("train.epochs") {
        // An epoch of a few samples is short.
        change(&mut table, "train", |train| drop(train.remove("epochs")));
    }
    for stage in table.get_mut("stage").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(stage) = stage.as_table_mut() {
            remove(stage, ["ema", "best"]);
        }
    }
    remove(&mut table, ["ema", "test"]);
    let every =
        format!("{} steps", (recipe.train.steps.map_or(STEPS, |steps| steps as i64) / EVALUATIONS).max(1));
    change(&mut table, "train", |train| {
        train.remove("stop_early");
        train.insert("overfit".into(), i64::from(samples).into());
        train.insert("last_batch".into(), "keep".into());
    });
    let schedule = &recipe.optim.schedule;
    let rises = schedule.warmup.is_some() || schedule.rise.is_some();
    change(&mut table, "optim", |optim| {
        let mut constant = Table::from_iter([("name".to_owned(), Value::from("constant"))]);
        if rises && !states_length {
            constant.insert("warmup".into(), format!("{WARMUP} steps").into());
        }
        optim.insert("schedule".into(), constant.into());
    });
    change(&mut table, "checkpoint", |checkpoint| {
        remove(checkpoint, ["best", "keep_every"]);
        checkpoint.insert("every".into(), every.clone().into());
        checkpoint.insert("keep".into(), 1.into());
    });
    change(&mut table, "evaluate", |evaluate| {
        remove(evaluate, ["share", "samples"]);
        evaluate.insert("every".into(), every.into());
    });
    table
}

fn remove(table: &mut Table, keys: [&str; 2]) {
    table.retain(|key, _| !keys.contains(&key));
}

/// Returns the name of a check of this recipe, by which its run directory is named.
pub(super) fn name(recipe: &str) -> String {
    let stem = Path::new(recipe).file_stem().unwrap_or_default().to_string_lossy();
    format!("{stem}-overfit.toml")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use dtrain_common::recipe::Source;

    fn checked(text: &str, set: &[&str]) -> AnyRecipe {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let parse =
            |text: String, set: &[String]| AnyRecipe::parse(&Source { name: "a".into(), text }, set).unwrap();
        let stated = parse(text.to_owned(), &set);
        parse(toml::to_string(&recipe(&stated, 8, &set)).unwrap(), &[])
    }

    const TEXT: &str = "task = \"classify\"\n[train]\nepochs = 90\nlast_batch = \"drop\"\nstop_early = { patience = 2 }\n\
                        [optim]\nlr = 0.5\nschedule = { name = \"cosine\", warmup = \"5 epochs\" }\n\
                        [checkpoint]\nbest = \"max accuracy\"\n[ema]\ndecay = 0.9\n[test]\nweights = \"best\"\n";

    #[test]
    fn a_check_has_a_length_of_its_own_and_the_learning_rate_of_the_recipe() {
        let recipe = checked(TEXT, &[]);
        assert_eq!(
            (recipe.train.overfit, recipe.train.epochs, recipe.train.steps),
            (Some(8), None, Some(200))
        );
        assert_eq!((recipe.optim.lr, recipe.optim.schedule.warmup.is_some()), (0.5, true));
        assert!(recipe.ema.is_none() && recipe.test.is_none() && recipe.checkpoint.best.is_none());
        let shorter = checked(TEXT, &["train.steps=40"]);
        let train = &shorter.train;
        assert_eq!((train.epochs, train.steps), (None, Some(40)));
    }

    #[test]
    fn each_stage_is_checked() {
        let text = "task = \"classify\"\n[ema]\ndecay = 0.9\n[[stage]]\nname = \"a\"\nepochs = 3\n[[stage]]\nname = \"b\"\n\
                    steps = 70\nema = \"restart\"\n";
        let recipe = checked(text, &[]);
        assert_eq!(recipe.stage.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [Some(200), Some(200)]);
    }
}
