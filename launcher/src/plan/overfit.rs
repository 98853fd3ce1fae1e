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
    let keys = || set.iter().filter_map(|set| Some(set.split_once('=')?.0.trim()));
    let states = |wanted: &str| keys().any(|key| key == wanted);
    let states_stages =
        keys().any(|key| key.starts_with("stage.") && (key.ends_with(".steps") || key.ends_with(".epochs")));
    let mut train = recipe.train.clone();
    let steps = if states_stages || states("train.steps") || states("train.epochs") {
        if !states("train.epochs") {
            // An epoch of a few samples is short.
            train.epochs = None;
            change(&mut table, "train", |train| drop(train.remove("epochs")));
        }
        let steps_per_epoch = u64::from(samples).div_ceil((train.effective_batch as u64).max(1));
        train.total_steps(steps_per_epoch) as i64
    } else {
        set_steps(&mut table, STEPS, |_| {});
        STEPS
    };
    for stage in table.get_mut("stage").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(stage) = stage.as_table_mut() {
            remove(stage, ["ema", "best"]);
        }
    }
    remove(&mut table, ["ema", "test"]);
    // The steps of stages are their own.
    let every = if steps == 0 { STEPS } else { steps };
    let every = format!("{} steps", (every / EVALUATIONS).max(1));
    change(&mut table, "train", |train| {
        train.remove("stop_early");
        train.insert("overfit".into(), i64::from(samples).into());
        train.insert("last_batch".into(), "keep".into());
    });
    let schedule = &recipe.optim.schedule;
    let rises = schedule.warmup.is_some() || schedule.rise.is_some();
    change(&mut table, "optim", |optim| {
        let mut constant = Table::from_iter([("name".to_owned(), Value::from("constant"))]);
        if rises && steps >= WARMUP {
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
        parse(toml::to_string(&recipe(&stated, 8, &set)).unwrap(), &set)
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
        assert!(shorter.optim.schedule.warmup.is_some());
        let wanted = checked(TEXT, &["evaluate.every=5 steps", "checkpoint.keep=3", "ema.decay=0.5"]);
        assert_eq!(wanted.evaluate.every.map(|every| every.to_string()).as_deref(), Some("5 steps"));
        assert_eq!((wanted.checkpoint.keep, wanted.ema.is_some()), (3, true));
        let shortest = checked(TEXT, &["train.epochs=9"]);
        assert_eq!((shortest.train.epochs, shortest.optim.schedule.warmup.is_some()), (Some(9), false));
    }

    #[test]
    fn a_check_has_four_evaluations_however_long_the_recipe_trains() {
        let text = "task = \"classify\"\n[train]\nsteps = 100000\n";
        for (set, every) in [(&["train.steps=40"][..], "10 steps"), (&[], "50 steps")] {
            let recipe = checked(text, set);
            assert_eq!(recipe.checkpoint.every.to_string(), every);
            assert_eq!(recipe.evaluate.every.map(|every| every.to_string()).as_deref(), Some(every));
        }
    }

    #[test]
    fn each_stage_is_checked() {
        let text = "task = \"classify\"\n[ema]\ndecay = 0.9\n[[stage]]\nname = \"a\"\nepochs = 3\n[[stage]]\nname = \"b\"\n\
                    steps = 70\nema = \"restart\"\n";
        let recipe = checked(text, &[]);
        assert_eq!(recipe.stage.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [Some(200), Some(200)]);
        // Another key of a stage says nothing about its length.
        let faster = checked(text, &["stage.0.lr=0.5"]);
        assert_eq!(faster.stage.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [Some(200), Some(200)]);
        let longer = checked(text, &["stage.1.steps=300"]);
        assert_eq!(longer.stage.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [None, Some(300)]);
    }
}
