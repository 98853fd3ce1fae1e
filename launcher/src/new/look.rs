//! Asks the trainer which layouts some data has.

use crate::tasks::Task;
use crate::trainer::{find_worker, question_command};
use anyhow::{anyhow, bail};
use dtrain_agent::io::process;
use dtrain_common::look::{Look, LookAnswer, LookQuestion};
use dtrain_common::progress::Progress;
use dtrain_common::question::Question;
use std::path::Path;

/// Returns the layouts of the data that fit the task, at least one, and what the model's file states.
pub(super) fn ask(data: &Path, task: &Task, model: Option<&Path>) -> anyhow::Result<Look> {
    if !data.exists() {
        bail!("{} does not exist; name the folder or the file of the data", data.display());
    }
    if data.to_str().is_none() {
        bail!("the path {} is not UTF-8; rename it", data.display());
    }
    let worker = find_worker()?;
    let targets = task.targets.iter().map(|target| (*target).to_owned()).collect();
    let question = LookQuestion { data: data.to_owned(), targets, model: model.map(Path::to_owned) };
    let mut command = question_command(&worker, "look", &[], &Question::Look(question))?;
    let progress = Progress::start(format!("looking at {}", data.display()));
    let asked = process::ask(&mut command, &[]);
    drop(progress);
    let [answer, said] = asked.map_err(|error| anyhow!("cannot start `{}`: {error}", worker.display()))?;
    let answer: LookAnswer = serde_json::from_slice(&answer).map_err(|_| {
        let said = String::from_utf8_lossy(&said);
        anyhow!("the trainer {} does not look at data: {}", worker.display(), said.trim())
    })?;
    answer.map_err(|message| anyhow!(message))
}
