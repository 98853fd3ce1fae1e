//! A recipe as this trainer understands it, for the launcher.

use std::io;

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::{ResolveAnswer, ResolveQuestion, Unresolved};
use dtrain_common::recipe::kinds::Key;
use dtrain_recipe::Recipe;

use super::print_answer;
use crate::setup::error::{Result, WorkerError};

/// Reads a recipe from standard input and prints what it means, or why it is wrong.
pub(super) fn run(question: &ResolveQuestion, custom: Option<&'static [Key]>) -> Result<ExitStatus> {
    let asked: Unresolved = serde_json::from_reader(io::stdin().lock()).map_err(WorkerError::Question)?;
    let answer: ResolveAnswer = Recipe::answer(&asked, question, custom);
    print_answer(&serde_json::to_string(&answer).map_err(WorkerError::Question)?);
    Ok(ExitStatus::Success)
}

/// Prints the JSON Schema of recipes.
pub(super) fn schema(custom: Option<&'static [Key]>) -> Result<ExitStatus> {
    let text = Recipe::schema(custom).and_then(|schema| serde_json::to_string_pretty(&schema));
    print_answer(&format!("{}\n", text.map_err(WorkerError::Question)?));
    Ok(ExitStatus::Success)
}
