//! Trainings of small networks by the engine itself: one start of the ranks for many trainings.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::output_text;
use crate::programs::program;
use crate::ranks::run_on_nodes;
use crate::runs::Sandbox;

/// The limit for one start of the ranks on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A training in the list that the program `training-rank` gets.
#[derive(Debug, Serialize, Deserialize)]
pub struct Training {
    /// Path of the recipe.
    pub recipe: PathBuf,
    /// Overrides, `key=value`.
    pub sets: Vec<String>,
    /// The run directory.
    pub run_dir: PathBuf,
}

/// A name and the settings of each training.
pub type TrainingList = Vec<(String, Vec<String>)>;

/// Starts `world_size` ranks of the program `training-rank` once for all trainings in `list`. Each entry has a name,
/// which is its run directory in `sandbox`, and the values that it sets.
///
/// # Panics
/// If a training fails, or if all together exceed the limit.
pub fn train(sandbox: &Sandbox, world_size: usize, vars: &[(&str, &str)], list: &TrainingList) {
    let trainings: Vec<Training> = list
        .iter()
        .map(|(name, sets)| Training {
            recipe: sandbox.path("recipe.toml"),
            sets: sets.clone(),
            run_dir: sandbox.path(name),
        })
        .collect();
    let path = sandbox.path(&format!("list-{world_size}.json"));
    let text = serde_json::to_string(&trainings).expect("a list is JSON");
    fs::write(&path, text).expect("cannot write the list");
    // The tests compare CPU arithmetic.
    let mut vars = vars.to_vec();
    vars.push(("CUDA_VISIBLE_DEVICES", ""));
    let args = [path.to_str().expect("a path in UTF-8")];
    let outputs = run_on_nodes(&program("training-rank"), &args, &vars, &[world_size], LIMIT);
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank} of {world_size}: {}", output_text(output));
    }
}

/// Copies the `key=value` settings.
pub fn sets(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}
