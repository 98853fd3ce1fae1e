//! The result of a run: exit code, messages and `result.json`.

mod blamed;

use super::attempt::{Attempt, Run};
use super::messages::cannot_start;
use crate::plan::Plan;
use blamed::BlamedWorker;
use dtrain_agent::clock::StartTime;
use dtrain_agent::local::{Cause, Outcome, Verdict};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use std::io::{self, Write};

/// The outcome of a run that started every worker.
pub(super) struct Report {
    pub(super) status: ExitStatus,
    /// Whether a worker has rejected the recipe or the data, in one sentence.
    pub(super) is_usage_error: bool,
    /// The last message.
    pub(super) text: Option<String>,
    /// For `result.json`, in addition to the training's figures.
    result: RunResult,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        run: &Run,
        attempt: &Attempt,
        restarts: u32,
        start_time: StartTime,
    ) -> Self {
        let wall = start_time.elapsed();
        let is_training = plan.training().is_some();
        let status = exit_status(&run.verdict, is_training);
        let meaning = meaning(status, run.verdict.cause);
        // A worker that rejects the recipe or the data has not failed: its message is the usage error.
        let blamed = BlamedWorker::find(plan, run, attempt);
        let usage_error = blamed.as_ref().filter(|_| status == ExitStatus::Usage && is_training);
        let usage_error = usage_error.and_then(|blamed| blamed.reported.as_ref());
        let mut lines = match (usage_error, &blamed) {
            (Some(message), _) => vec![format!("dtrain: error: {message}")],
            (None, Some(blamed)) => blamed.banner(plan.nproc, run, &attempt.files),
            (None, None) => Vec::new(),
        };
        let run_dir = plan.run_dir.as_ref().filter(|_| is_training);
        let folder = run_dir.map(|run_dir| run_dir.root().display());
        let code = status.code();
        lines.extend(match (status, folder) {
            (ExitStatus::Success, Some(folder)) => {
                let seconds = wall.as_secs_f64();
                Some(format!("dtrain: done in {seconds:.1} s; the results are in {folder}"))
            }
            (ExitStatus::Success, None) => None,
            _ if usage_error.is_some() => None,
            (ExitStatus::Requeue, Some(folder)) => {
                Some(format!("dtrain: exit code {code}: {meaning} with --run-dir {folder}"))
            }
            _ => Some(format!("dtrain: exit code {code}: {meaning}")),
        });
        Self {
            status,
            is_usage_error: usage_error.is_some(),
            text: (!lines.is_empty()).then(|| lines.join("\n")),
            result: RunResult {
                exit_code: Some(code),
                reason: Some(reason(plan, run, blamed.as_ref(), meaning)),
                failure: blamed.as_ref().map(|blamed| blamed.failure(start_time)),
                restarts,
                wall_s: Some(wall.as_secs_f64()),
                nproc: Some(plan.nproc),
                resumed_from: plan.resumed_from().map(Into::into),
                ..RunResult::default()
            },
        }
    }

    /// Adds the outcome to the training figures of the worker, and records a success for the next `--resume`.
    pub(super) fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        let figures = RunResult::read(&run_dir.result())?.unwrap_or_default();
        let RunResult { exit_code, reason, failure, restarts, wall_s, nproc, resumed_from, .. } =
            self.result.clone();
        let result =
            RunResult { exit_code, reason, failure, restarts, wall_s, nproc, resumed_from, ..figures };
        result.write(&run_dir.result())?;
        match (self.status, &result.resumed_from) {
            (ExitStatus::Success, Some(_)) => run_dir.record_end().map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

/// Explains the status of this run.
fn reason(plan: &Plan, run: &Run, blamed: Option<&BlamedWorker<'_>>, meaning: String) -> String {
    match (blamed, &run.not_started, run.verdict.cause) {
        (None, Some((rank, error)), Cause::NotStarted { .. }) => cannot_start(plan, *rank, error),
        (None, ..) => meaning,
        (Some(blamed), _, Cause::Hung { .. }) => {
            let rank = blamed.end.rank;
            format!("no progress, rank {rank} was among the first without heartbeats; {meaning}")
        }
        (Some(blamed), ..) => format!("rank {} failed: {}; {meaning}", blamed.end.rank, blamed.ended()),
    }
}

/// Reports why no worker was started. `plan`: the plan, as far as it was checked.
pub(super) fn not_begun(plan: Option<&Plan>, cause: Cause) -> ExitStatus {
    let (status, resume) = match cause {
        Cause::Requeue => (ExitStatus::Requeue, plan.and_then(|plan| plan.run_dir.as_ref())),
        Cause::Stopped { signal } => (ExitStatus::Signal(signal), None),
        _ => (ExitStatus::WorkerFailed, None),
    };
    let resume =
        resume.map_or(String::new(), |run_dir| format!(" with --run-dir {}", run_dir.root().display()));
    // If standard error is closed, the exit code still reports the failure.
    let _ = writeln!(
        io::stderr(),
        "dtrain: exit code {}: {}{resume} (no worker was started)",
        status.code(),
        meaning(status, cause)
    );
    status
}

/// Returns the banner of a failed attempt before the next attempt.
pub(super) fn failure(plan: &Plan, run: &Run, attempt: &Attempt) -> Vec<String> {
    BlamedWorker::find(plan, run, attempt)
        .map(|blamed| blamed.banner(plan.nproc, run, &attempt.files))
        .unwrap_or_default()
}

/// Maps the verdict to the command's exit status; the only place.
fn exit_status(verdict: &Verdict, is_training: bool) -> ExitStatus {
    match verdict.cause {
        Cause::Success => ExitStatus::Success,
        Cause::Requeue => ExitStatus::Requeue,
        Cause::Stopped { signal } => ExitStatus::Signal(signal),
        Cause::TimeIsUp => ExitStatus::Signal(signals::TERM),
        Cause::NotStarted { temporary: false, .. } => ExitStatus::Usage,
        Cause::NotStarted { temporary: true, .. } => ExitStatus::WorkerFailed,
        Cause::Hung { .. } | Cause::Evicted => ExitStatus::WorkerFailed,
        Cause::Failed { rank } => match (verdict.end_of(rank).map(|end| end.outcome), is_training) {
            (Some(Outcome::Exited(code)), true) => ExitStatus::from_worker_code(code),
            (Some(Outcome::Exited(code)), false) => ExitStatus::Program(code),
            (Some(Outcome::Signaled(signal)), false) => ExitStatus::Signal(signal),
            _ => ExitStatus::WorkerFailed,
        },
    }
}

fn meaning(status: ExitStatus, cause: Cause) -> String {
    match (status, cause) {
        (ExitStatus::Signal(signal), Cause::Stopped { .. }) => {
            format!("stopped by {}", signals::name(signal))
        }
        (_, Cause::Evicted) => "another run has taken the run directory".to_owned(),
        (_, Cause::TimeIsUp) => "stopped at the end of the time limit".to_owned(),
        (ExitStatus::Signal(signal), _) => format!("the program was killed by {}", signals::name(signal)),
        _ => status.describe(),
    }
}
