//! What other programs get of a run: TensorBoard's events, and the lines for `log.command`.

use std::fs;

use dtrain_common::run_dir::RunDir;
use dtrain_recipe::Recipe;
use dtrain_telemetry::{Experiment, Rates, Telemetry, remove_event_files};

use crate::setup::Setup;
use crate::setup::needs::known_figures;

/// Starts the telemetry of a run on rank 0, when metrics.jsonl has the lines of earlier attempts.
pub(super) fn start(recipe: &Recipe, setup: &Setup, run_dir: &RunDir) -> Telemetry {
    let mut telemetry = Telemetry::default();
    if recipe.log.tensorboard {
        let length = fs::metadata(run_dir.metrics()).map_or(0, |of| of.len());
        telemetry = telemetry.with_tensorboard(run_dir, length, experiment(recipe, setup, run_dir));
    } else if let Err(error) = remove_event_files(run_dir) {
        tracing::warn!("cannot remove the event files of an earlier attempt: {error}");
    }
    if let Some(command) = &recipe.log.command {
        telemetry = telemetry.with_command(command, run_dir.root());
    }
    telemetry
}

fn experiment(recipe: &Recipe, setup: &Setup, run_dir: &RunDir) -> Experiment {
    let task = setup.replica.model.task.as_ref();
    let set = task.facts().watched().name;
    let mut figures = known_figures(task);
    if let Some(wanted) = &recipe.evaluate.figures {
        figures.retain(|name| name == "loss" || wanted.contains(name));
    }
    let of_set = figures.into_iter().map(|name| format!("{set}/{name}"));
    let stages = recipe.stage.iter().enumerate();
    let rates: Vec<Rates> = match recipe.stage.is_empty() {
        true => vec![rates(recipe, None)],
        false => stages.map(|(at, stage)| rates(&recipe.of_stage(at), Some(&stage.name))).collect(),
    };
    Experiment {
        recipe: fs::read_to_string(run_dir.recipe()).unwrap_or_default(),
        figures: std::iter::once("train/loss".to_owned()).chain(of_set).collect(),
        rates,
    }
}

/// Returns the groups of a stage whose learning rates differ from the recipe's.
fn rates(recipe: &Recipe, stage: Option<&String>) -> Rates {
    let groups = recipe.optim.group.iter().filter(|group| group.lr_factor != 1.0);
    let factors = groups.map(|group| (group.patterns.join(" "), group.lr_factor)).collect();
    Rates { stage: stage.cloned(), factors }
}
