//! Tries a cut in a separate process, which may run out of memory or be killed.

use std::process::{Command, Stdio};

use crate::planning::{Cut, Measured};
use dtrain_common::exit::ExitStatus;
use serde::{Deserialize, Serialize};
use tch::Device;

use super::{Subject, print_answer};
use crate::planning::rehearsal::measure;
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::tasks::BuildTask;

/// Stands for no memory limit.
pub(super) const NO_LIMIT: u64 = u64::MAX >> 1;

/// The question of the separate process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CutTrial {
    #[serde(rename = "try")]
    pub(crate) cut: Cut,
    pub(crate) stage: usize,
    pub(crate) steps: usize,
    pub(crate) limit: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProcessOutcome {
    Ran(Box<Measured>),
    OutOfMemory,
    Died(String),
}

/// Runs the steps in the separate process, and prints the measurement as one line of JSON.
pub(super) fn run<T: BuildTask + 'static>(
    subject: Subject<'_>,
    CutTrial { cut, stage, steps, limit }: CutTrial,
    device: Device,
) -> Result<ExitStatus> {
    let measured = measure::<T>(subject.recipe.clone(), subject.survey, stage, cut, steps, limit, device)?;
    print_answer(&(serde_json::to_string(&measured)? + "\n"));
    Ok(ExitStatus::Success)
}

/// Starts the process for the same recipe with `overrides` on top, and waits for its end.
pub(super) fn start(request: &Request, overrides: &[String], trial: &CutTrial) -> Result<ProcessOutcome> {
    let failed = |error: std::io::Error| WorkerError::Trial(error.to_string());
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg(&request.recipe);
    for set in request.overrides.iter().chain(overrides) {
        command.args(["--set", set]);
    }
    command.args(["--job", &serde_json::to_string(trial)?]).stdin(Stdio::null());
    let output = command.output().map_err(failed)?;
    match output.status.code() {
        Some(0) => Ok(ProcessOutcome::Ran(serde_json::from_slice(&output.stdout)?)),
        Some(code) if code == i32::from(ExitStatus::OutOfMemory.code()) => Ok(ProcessOutcome::OutOfMemory),
        Some(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().trim_start_matches("error: ");
            Err(WorkerError::Trial(said.to_owned()))
        }
        // The kernel kills a process that takes too much memory.
        None => Ok(ProcessOutcome::Died(output.status.to_string())),
    }
}
