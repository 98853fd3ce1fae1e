//! What a run came to: the exit code, the words for the user and `result.json`.

mod culprit;

use super::attempt::{Attempt, Run};
use super::told::cannot_start;
use crate::plan::Plan;
use culprit::Culprit;
use dtrain_agent::clock::Begun;
use dtrain_agent::local::{Cause, Outcome, Verdict};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use std::io::{self, Write};

/// The outcome of a run of which every worker was started.
pub(super) struct Report {
    pub(super) status: ExitStatus,
    /// A worker has refused the recipe or the data, in one sentence.
    pub(super) is_refusal: bool,
    /// The last message.
    pub(super) text: Option<String>,
    /// For `result.json`, beside the training's own figures.
    result: RunResult,
}

impl Report {
    pub(super) fn new(plan: &Plan, run: &Run, attempt: &Attempt, restarts: u32, begun: Begun) -> Self {
        let wall = begun.elapsed();
        let is_training = plan.training().is_some();
        let status = exit_status(&run.verdict, is_training);
        let meaning = meaning(status, run.verdict.cause);
        // A worker that refuses the recipe or the data has not failed: its message is that of a wrong recipe.
        let culprit = Culprit::find(plan, run, attempt);
        let refusal = culprit.as_ref().filter(|_| status == ExitStatus::Usage && is_training);
        let refusal = refusal.and_then(|culprit| culprit.reported.as_ref());
        let mut lines = match (refusal, &culprit) {
            (Some(message), _) => vec![format!("dtrain: error: {message}")],
            (None, Some(culprit)) => culprit.banner(plan.nproc, run, &attempt.files),
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
            _ if refusal.is_some() => None,
            (ExitStatus::Requeue, Some(folder)) => {
                Some(format!("dtrain: exit code {code}: {meaning} with --run-dir {folder}"))
            }
            _ => Some(format!("dtrain: exit code {code}: {meaning}")),
        });
        Self {
            status,
            is_refusal: refusal.is_some(),
            text: (!lines.is_empty()).then(|| lines.join("\n")),
            result: RunResult {
                exit_code: Some(code),
                reason: Some(reason(plan, run, culprit.as_ref(), meaning)),
                failure: culprit.as_ref().map(|culprit| culprit.failure(begun)),
                restarts,
                wall_s: Some(wall.as_secs_f64()),
                nproc: Some(plan.nproc),
                resumed_from: plan.resumed_from().map(Into::into),
                ..RunResult::default()
            },
        }
    }

    /// Completes the training figures that the worker has written with the outcome, and notes a good end for the next `--resume`.
    pub(super) fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        let figures = RunResult::read(&run_dir.result())?.unwrap_or_default();
        let RunResult { exit_code, reason, failure, restarts, wall_s, nproc, resumed_from, .. } =
            self.result.clone();
        let result =
            RunResult { exit_code, reason, failure, restarts, wall_s, nproc, resumed_from, ..figures };
        result.write(&run_dir.result())?;
        match (self.status, &result.resumed_from) {
            (ExitStatus::Success, Some(_)) => run_dir.note_ended().map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

/// The status in words, for this run.
fn reason(plan: &Plan, run: &Run, culprit: Option<&Culprit<'_>>, meaning: String) -> String {
    match (culprit, &run.not_started, run.verdict.cause) {
        (None, Some((rank, error)), Cause::NotStarted { .. }) => cannot_start(plan, *rank, error),
        (None, ..) => meaning,
        (Some(culprit), _, Cause::Hung { .. }) => {
            let rank = culprit.end.rank;
            format!("no progress, rank {rank} was among the first to be silent; {meaning}")
        }
        (Some(culprit), ..) => format!("rank {} failed: {}; {meaning}", culprit.end.rank, culprit.ended()),
    }
}

/// Says why nothing was started. `plan`: as far as the command has been checked.
pub(super) fn not_begun(plan: Option<&Plan>, cause: Cause) -> ExitStatus {
    let (status, resume) = match cause {
        Cause::Requeue => (ExitStatus::Requeue, plan.and_then(|plan| plan.run_dir.as_ref())),
        Cause::Stopped { signal } => (ExitStatus::Signal(signal), None),
        _ => (ExitStatus::WorkerFailed, None),
    };
    let resume =
        resume.map_or(String::new(), |run_dir| format!(" with --run-dir {}", run_dir.root().display()));
    // If standard error is closed there is nobody left to tell, and the exit code still says it.
    let _ = writeln!(
        io::stderr(),
        "dtrain: exit code {}: {}{resume} (no worker was started)",
        status.code(),
        meaning(status, cause)
    );
    status
}

/// The banner of an attempt that failed and is followed by another.
pub(super) fn failure(plan: &Plan, run: &Run, attempt: &Attempt) -> Vec<String> {
    Culprit::find(plan, run, attempt)
        .map(|culprit| culprit.banner(plan.nproc, run, &attempt.files))
        .unwrap_or_default()
}

/// The one mapping from a verdict to the command's exit status.
fn exit_status(verdict: &Verdict, is_training: bool) -> ExitStatus {
    match verdict.cause {
        Cause::Success => ExitStatus::Success,
        Cause::Requeue => ExitStatus::Requeue,
        Cause::Stopped { signal } => ExitStatus::Signal(signal),
        Cause::TimeIsUp => ExitStatus::Signal(signals::TERM),
        Cause::NotStarted { passing: false, .. } => ExitStatus::Usage,
        Cause::NotStarted { passing: true, .. } => ExitStatus::WorkerFailed,
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
        (_, Cause::TimeIsUp) => "stopped at the end of its time limit".to_owned(),
        (ExitStatus::Signal(signal), _) => format!("the program was killed by {}", signals::name(signal)),
        _ => status.describe(),
    }
}
