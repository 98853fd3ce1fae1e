//! What only recipes have: their names, how their steps are cut up, and the trainer's command line.

use anyhow::{Context, anyhow};
use dtrain_common::batch::Partition;
use dtrain_common::recipe::{Recipe, RecipeError};
use dtrain_common::run_dir::{Resume, RunDir, Start};
use std::ffi::OsString;
use std::path::Path;

/// A name that is no recipe's may be a program's.
pub(super) fn no_recipe(name: &str, error: RecipeError) -> anyhow::Error {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return error.into();
    }
    let told = error.to_string();
    let told = told.trim_end_matches('.');
    if path.is_file() {
        anyhow!(
            "{told}. A Python script starts by `dtrain launch -- python3 {name}`, another program by `dtrain launch -- {name}`"
        )
    } else {
        anyhow!("{told}. A program stands after two dashes: `dtrain launch -- {name}`")
    }
}

/// How the steps of a run, or of its stages one after another, are cut up, in words.
pub(super) fn partition(recipe: &Recipe, nproc: usize) -> anyhow::Result<String> {
    let of_stage = |number| {
        let alone = recipe.of_stage(number);
        let cut = Partition::new(
            alone.train.effective_batch,
            nproc,
            alone.memory.micro_batch.limit(),
        );
        match recipe.stage.get(number) {
            Some(stage) => cut.with_context(|| format!("stage {:?}", stage.name)),
            None => Ok(cut?),
        }
    };
    let cuts = (0..recipe.stages()).map(of_stage);
    let mut words = cuts
        .map(|cut| Ok(cut?.to_string()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    words.dedup();
    Ok(words.join(", then "))
}

/// The trainer's command line. Which of the run's checkpoints is the newest whole one, to the last byte, is for the trainer to find.
pub(super) fn trainer_args(run_dir: &RunDir, start: Start, resume: &Resume) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![run_dir.recipe().into(), "--run-dir".into(), run_dir.root().into()];
    words.extend(["--prepared".into(), "--resume".into()]);
    words.push(match start {
        Start::Fresh => "never".into(),
        Start::Resume(_) if *resume == Resume::Auto => "auto".into(),
        Start::Resume(checkpoint) => checkpoint.into(),
    });
    words
}
