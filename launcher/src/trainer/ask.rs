//! Asks the trainer what a recipe means: only the trainer knows tasks, `[data]`, `[model]` and `[custom]`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, bail};
use dtrain_agent::io::process;
use dtrain_common::env::{
    GROUP_RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE,
};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::question::{Question, ResolveAnswer, ResolveQuestion, Unresolved};
use dtrain_common::recipe::{AnyRecipe, Resolved, Source};

use super::find_for_recipes;
use crate::executable::why_not_started;
use crate::stdout::print;

/// Whether files and folders of a recipe are on this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths {
    Check,
    Ignore,
}

/// Returns what a recipe means.
///
/// # Errors
/// A recipe that the trainer refuses. Without a trainer, first what is wrong with the general settings.
pub(crate) fn resolve(source: &Source, set: &[String], paths: Paths) -> anyhow::Result<Resolved> {
    match ask(source, set, paths) {
        Ok(answer) => Ok(answer?),
        Err(error) => {
            AnyRecipe::parse(source, set)?;
            Err(error)
        }
    }
}

/// Returns the trainer's answer. The error is the reason for which the trainer gave no answer.
pub(crate) fn ask(source: &Source, set: &[String], paths: Paths) -> anyhow::Result<ResolveAnswer> {
    let worker = find_for_recipes()?;
    let mut command = question_command(
        &worker,
        "recipe",
        &[],
        &Question::Resolve(ResolveQuestion { check_paths: paths == Paths::Check }),
    )?;
    let asked = Unresolved { source: source.clone(), overrides: set.to_vec() };
    let [answer, said] = process::ask(&mut command, &serde_json::to_vec(&asked)?)
        .map_err(|error| anyhow!("cannot start `{}`: {}", worker.display(), why_not_started(&error)))?;
    serde_json::from_slice(&answer).map_err(|_| {
        let said = String::from_utf8_lossy(&said);
        let why = if said.trim().is_empty() { "it ends without an answer" } else { said.trim() };
        anyhow!(
            "the trainer {} does not check the recipe: {why}; `dtrain doctor` says what it lacks",
            worker.display()
        )
    })
}

/// Prints the JSON Schema of the trainer's recipes, or writes it into a file.
pub(crate) fn schema(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let text = schema_text()?;
    match file {
        Some(file) => {
            write_atomic(file, text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?
        }
        None => drop(print(&text)?),
    }
    Ok(ExitStatus::Success.into())
}

/// Returns the JSON Schema of the trainer's recipes.
pub(crate) fn schema_text() -> anyhow::Result<String> {
    let worker = find_for_recipes()?;
    let mut command = question_command(&worker, "schema", &[], &Question::Schema)?;
    let [text, said] = process::ask(&mut command, &[])
        .map_err(|error| anyhow!("cannot start `{}`: {}", worker.display(), why_not_started(&error)))?;
    match String::from_utf8(text) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => {
            bail!("the trainer {} has no schema: {}", worker.display(), String::from_utf8_lossy(&said).trim())
        }
    }
}

/// Returns the trainer with one question. It runs alone, even if the launcher is itself a worker.
pub(crate) fn question_command(
    worker: &Path,
    recipe: &str,
    set: &[String],
    question: &Question,
) -> anyhow::Result<Command> {
    let mut command = Command::new(worker);
    command.arg(recipe).args(set.iter().flat_map(|set| ["--set", set]));
    // A trainer that prints the answer itself follows `--color` too.
    match anstream::ColorChoice::global() {
        anstream::ColorChoice::Never => drop(command.env("NO_COLOR", "1")),
        anstream::ColorChoice::Auto => {}
        _ => drop(command.env("CLICOLOR_FORCE", "1")),
    }
    command.arg("--job").arg(serde_json::to_string(question)?);
    for variable in [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT] {
        command.env_remove(variable);
    }
    Ok(command)
}
