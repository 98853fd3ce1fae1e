//! What a worker answers other than by training: plan, profile, evaluation, the check of an import, what a recipe means, or
//! whether a cut fits, in a separate process.

mod check;
mod data;
mod look;
mod lr_range;
mod merge;
mod names;
mod plan;
mod profile;
mod resolve;
mod trial;

use std::io::Write;

use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::kinds::Key;
use dtrain_common::units::ByteSize;
use dtrain_recipe::Recipe;
use serde_json::Value;

use crate::data::packed::Packed;
use crate::device;
use crate::memory::budget;
use crate::metrics::lines;
use crate::planning::Question;
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::setup::survey::Surveyed;
use crate::tasks::BuildTask;
use crate::train::{evaluation, prediction};

struct Subject<'a> {
    request: &'a Request,
    recipe: &'a Recipe,
    survey: Value,
    /// The lists to which the survey refers.
    _lists: Vec<Packed<u8>>,
}

/// Answers the question `text` for the task `T`, and prints the answer to standard output.
pub(crate) fn run<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
    text: &str,
) -> Result<ExitStatus> {
    let subject = || {
        let Surveyed { facts: survey, lists } = Surveyed::of::<T>(recipe)?;
        Ok::<_, WorkerError>(Subject { request, recipe, survey, _lists: lists })
    };
    if let Ok(trial) = serde_json::from_str::<trial::CutTrial>(text) {
        let subject = subject()?;
        let limit = Some(trial.limit).filter(|&limit| limit < trial::NO_LIMIT).map(ByteSize);
        budget::configure(limit, env)?;
        return trial::run::<T>(subject, trial, device::choose(env)?);
    }
    match serde_json::from_str(text).map_err(WorkerError::Question)? {
        Question::Plan(question) => plan::run::<T>(subject()?, &question),
        Question::Profile(question) => {
            let subject = subject()?;
            budget::configure(None, env)?;
            profile::run::<T>(subject, &question, device::choose(env)?)
        }
        Question::Data(question) => data::run::<T>(request, recipe, &question),
        Question::Range(question) => lr_range::run::<T>(recipe, request, env, &question),
        Question::Eval(question) => evaluation::run::<T>(recipe, env, &question),
        Question::Predict(question) => prediction::run::<T>(recipe, env, &question),
        Question::Merge(question) => merge::run::<T>(recipe, &question),
        Question::Names(question) => names::run::<T>(subject()?, &question),
        Question::Check(question) => check::run(&question),
        Question::Resolve(question) => resolve::run(&question, T::SETTINGS),
        Question::Schema => resolve::schema(T::SETTINGS),
        Question::Look(question) => look::run(&question),
    }
}

/// Answers the question `text` if it needs no recipe. `custom`: the keys of `[custom]`, if they are known.
pub(crate) fn run_without_recipe(text: &str, custom: Option<&'static [Key]>) -> Option<Result<ExitStatus>> {
    match serde_json::from_str(text) {
        Ok(Question::Check(question)) => Some(check::run(&question)),
        Ok(Question::Resolve(question)) => Some(resolve::run(&question, custom)),
        Ok(Question::Schema) => Some(resolve::schema(custom)),
        Ok(Question::Look(question)) => Some(look::run(&question)),
        _ => None,
    }
}

/// Returns the stages of a question, counted from 0: the named stage, all stages, or the first by default.
fn select_stages(recipe: &Recipe, name: Option<&str>) -> Result<Vec<usize>> {
    let named = |name: &str| recipe.stage.iter().position(|stage| stage.name == name);
    match name {
        None => Ok(vec![0]),
        Some("all") => Ok((0..recipe.stages()).collect()),
        Some(name) => named(name).map(|stage| vec![stage]).ok_or_else(|| {
            let names = recipe.stage.iter().map(|stage| stage.name.clone()).collect();
            WorkerError::NoStage { name: name.to_owned(), names }
        }),
    }
}

/// Prints an answer; a closed pipe is not an error. Warnings in it have colours on a terminal.
pub(super) fn print_answer(text: &str) {
    let mut out = anstream::AutoStream::auto(std::io::stdout().lock());
    let text = lines::labelled(text);
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
