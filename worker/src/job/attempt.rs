//! Tries a cut in a separate process, which may run out of memory or be killed.

use std::process::{Command, Stdio};

use crate::plan::{Cut, Measured};
use dtrain_common::exit::ExitStatus;
use serde::{Deserialize, Serialize};
use tch::Device;

use super::{Subject, answer};
use crate::error::{Result, WorkerError};
use crate::memory::rehearsal::measure;
use crate::request::Request;
use crate::tasks::BuildTask;

/// Stands for no memory limit.
pub(super) const LIMITLESS: u64 = u64::MAX >> 1;

/// The job of the separate process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attempt {
    #[serde(rename = "try")]
    pub(crate) cut: Cut,
    pub(crate) stage: usize,
    pub(crate) steps: usize,
    pub(crate) limit: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Came {
    Ran(Box<Measured>),
    OutOfMemory,
    Died(String),
}

/// Runs the steps in the separate process, and prints the measurement as one line of JSON.
pub(super) fn run<T: BuildTask + 'static>(
    subject: Subject<'_>,
    Attempt { cut, stage, steps, limit }: Attempt,
    device: Device,
) -> Result<ExitStatus> {
    let measured = measure::<T>(subject.recipe.clone(), subject.survey, stage, cut, steps, limit, device)?;
    answer(&(serde_json::to_string(&measured)? + "\n"));
    Ok(ExitStatus::Success)
}

/// Starts the process for the same recipe with `overrides` on top, and waits for its end.
pub(super) fn start(request: &Request, overrides: &[String], attempt: &Attempt) -> Result<Came> {
    let failed = |error: &std::io::Error| WorkerError::Attempt(error.to_string());
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.arg(&request.recipe);
    for set in request.overrides.iter().chain(overrides) {
        command.args(["--set", set]);
    }
    command.args(["--job", &serde_json::to_string(attempt)?]).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&error))?;
    match output.status.code() {
        Some(0) => Ok(Came::Ran(serde_json::from_slice(&output.stdout)?)),
        Some(code) if code == i32::from(ExitStatus::OutOfMemory.code()) => Ok(Came::OutOfMemory),
        Some(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().trim_start_matches("error: ");
            Err(WorkerError::Attempt(said.to_owned()))
        }
        // The kernel kills a process that takes too much memory.
        None => Ok(Came::Died(output.status.to_string())),
    }
}
