//! The recipe of a try: two steps of each stage, with all other settings.

use crate::changed_recipe::{change, set_steps, table_of};
use dtrain_common::recipe::AnyRecipe;
use toml::{Table, Value};

/// Steps of each stage.
pub(super) const STEPS: i64 = 2;
/// The fewest samples of an evaluation.
const LEAST_EVALUATED: usize = 16;

/// Returns the recipe of a try. `with_test`: also the final test, if the recipe has it.
pub(super) fn shortened(recipe: &AnyRecipe, with_test: bool) -> Table {
    let mut table = table_of(recipe);
    let samples = Value::Integer(evaluated(recipe) as i64);
    set_steps(&mut table, STEPS, |_| {});
    change(&mut table, "optim", |optim| {
        // The schedule is that of a longer run.
        let schedule = [("name", "constant".to_owned()), ("warmup", format!("{STEPS} steps"))];
        let schedule = schedule.map(|(key, value)| (key.to_owned(), Value::from(value)));
        optim.insert("schedule".into(), Table::from_iter(schedule).into());
    });
    change(&mut table, "checkpoint", |checkpoint| {
        checkpoint.remove("keep_every");
        checkpoint.insert("every".into(), "1 step".into());
        // The last one, and the one that the resume starts from.
        checkpoint.insert("keep".into(), 2.into());
    });
    change(&mut table, "evaluate", |evaluate| {
        evaluate.remove("share");
        evaluate.insert("every".into(), format!("{STEPS} steps").into());
        evaluate.insert("samples".into(), samples.clone());
    });
    match table.get_mut("test").and_then(Value::as_table_mut).filter(|_| with_test) {
        Some(test) => drop(test.insert("samples".into(), samples)),
        None => drop(table.remove("test")),
    }
    change(&mut table, "log", |log| {
        // The user's commands are for whole runs: they send mails, or begin the next job.
        log.remove("command");
        log.remove("on_end");
        log.insert("every_steps".into(), 1.into());
    });
    table
}

/// Returns the samples of an evaluation of a try: about two batches of each rank.
fn evaluated(recipe: &AnyRecipe) -> usize {
    let largest = (0..recipe.stages()).map(|stage| recipe.of_stage(stage).train.effective_batch).max();
    (2 * largest.unwrap_or_default()).max(LEAST_EVALUATED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use dtrain_common::recipe::Source;

    fn tried(text: &str, with_test: bool) -> AnyRecipe {
        let parse = |text: String| AnyRecipe::parse(&Source { name: "a".into(), text }, &[]).unwrap();
        let recipe = parse(text.to_owned());
        parse(toml::to_string(&shortened(&recipe, with_test)).unwrap())
    }

    #[test]
    fn a_try_has_two_steps_and_all_other_settings() {
        let text = "task = \"classify\"\n[data]\nclasses = 3\n[train]\nepochs = 90\neffective_batch = 4\n\
                    [optim]\nlr = 0.5\nschedule = { name = \"cosine\", warmup = \"5 epochs\" }\n\
                    [checkpoint]\nbest = \"max accuracy\"\nkeep_every = \"9 epochs\"\n[ema]\ndecay = 0.9\n[test]\nweights = \"best\"\n\
                    [log]\ncommand = \"cat\"\non_end = \"mail me\"\npictures = 2\n";
        let recipe = tried(text, true);
        assert_eq!((recipe.train.epochs, recipe.train.steps), (None, Some(2)));
        assert_eq!((recipe.optim.lr, recipe.train.effective_batch, recipe.checkpoint.keep), (0.5, 4, 2));
        assert!(recipe.checkpoint.best.is_some() && recipe.ema.is_some());
        assert_eq!((recipe.evaluate.samples, recipe.test.unwrap().samples), (Some(16), Some(16)));
        assert!(tried(text, false).test.is_none());
        let log = &recipe.log;
        assert_eq!((&log.command, &log.on_end, log.every_steps, log.pictures), (&None, &None, 1, 2));
    }

    #[test]
    fn each_stage_has_two_steps() {
        let text = "task = \"classify\"\n[train]\neffective_batch = 64\n[[stage]]\nname = \"a\"\nepochs = 3\n\
                    [[stage]]\nname = \"b\"\nsteps = 70\nschedule = \"continue\"\neffective_batch = 32\n";
        let recipe = tried(text, true);
        let steps: Vec<_> = recipe.stage.iter().map(|stage| (stage.epochs, stage.steps)).collect();
        assert_eq!(steps, [(None, Some(2)), (None, Some(2))]);
        assert_eq!(recipe.evaluate.samples, Some(128));
    }
}
