//! The names of changed samples, from the trainer: only it knows the data.

use super::run::Run;
use crate::trainer::{find_worker, question_command};
use dtrain_agent::io::process::output;
use dtrain_common::question::{NamesQuestion, Question};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// How long the trainer may take to list the data.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most samples that are named: longer lists are not read.
pub(super) const MOST: usize = 5;

/// Returns the names of the first of these training samples. Empty if the trainer does not answer for either run, as without their data.
pub(super) fn of_samples(runs: [&Run; 2], samples: &BTreeSet<u32>) -> Vec<String> {
    let samples: Vec<u32> = samples.iter().take(MOST).copied().collect();
    if samples.is_empty() {
        return Vec::new();
    }
    runs.into_iter().find_map(|run| ask(&run.dir.recipe(), &samples)).unwrap_or_default()
}

fn ask(recipe: &Path, samples: &[u32]) -> Option<Vec<String>> {
    let question = Question::Names(NamesQuestion { samples: samples.to_vec() });
    let worker = find_worker().ok()?;
    let mut command = question_command(&worker, recipe.to_str()?, &[], &question).ok()?;
    let answer = output(&mut command, PATIENCE)?;
    let line = answer.lines().rfind(|line| line.starts_with('['))?;
    serde_json::from_str::<Vec<Option<String>>>(line).ok()?.into_iter().collect()
}
