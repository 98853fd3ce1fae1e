//! What a run came to: the exit code, the words for the user and `result.json`.

mod culprit;
mod told;

pub(super) use told::{cannot_start, evicted, notice, restarting};

use super::Attempt;
use super::plan::{Kind, Plan};
use super::supervise::Run;
use culprit::Culprit;
use dtrain_agent::clock::Begun;
use dtrain_agent::local::{Cause, Outcome, Restarts, Verdict};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::{Failure, RunResult};
use dtrain_common::run_dir::RunDir;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The outcome of a run of which every worker was started.
pub(super) struct Report {
    status: ExitStatus,
    /// The status in words, for this run.
    reason: String,
    failure: Option<Failure>,
    nproc: usize,
    restarts: u32,
    wall: Duration,
    resumed_from: Option<PathBuf>,
    text: Option<String>,
    is_refusal: bool,
}

impl Report {
    pub(super) fn new(plan: &Plan, run: &Run, attempt: &Attempt, restarts: &Restarts, begun: Begun) -> Self {
        let wall = begun.elapsed();
        let status = exit_status(&run.verdict, plan.kind);
        let meaning = meaning(status, run.verdict.cause);
        let culprit = Culprit::find(plan, run, attempt);
        let reason = match (&culprit, &run.not_started) {
            (None, Some((rank, error))) if matches!(run.verdict.cause, Cause::NotStarted { .. }) => {
                cannot_start(plan, *rank, error)
            }
            (None, _) => meaning.clone(),
            (Some(culprit), _) if matches!(run.verdict.cause, Cause::Hung { .. }) => {
                format!(
                    "no progress, rank {} was among the first to be silent; {meaning}",
                    culprit.end.rank
                )
            }
            (Some(culprit), _) => {
                format!("rank {} failed: {}; {meaning}", culprit.end.rank, culprit.ended())
            }
        };
        let failure = culprit.as_ref().map(|culprit| culprit.failure(begun));
        // A worker that refuses the recipe or the data has not failed: it says what the launcher says of a wrong recipe.
        let refusal = culprit
            .as_ref()
            .filter(|_| (status, plan.kind) == (ExitStatus::Usage, Kind::Recipe))
            .and_then(|culprit| culprit.reported.as_ref());
        let mut lines = match (refusal, &culprit) {
            (Some(message), _) => vec![format!("dtrain: error: {message}")],
            (None, Some(culprit)) => culprit.banner(plan.nproc, run, &attempt.files),
            (None, None) => Vec::new(),
        };
        let results = plan
            .run_dir
            .as_ref()
            .map(|run_dir| run_dir.root().display().to_string());
        match (status, plan.kind, results) {
            (ExitStatus::Success, Kind::Recipe, Some(folder)) => {
                lines.push(format!(
                    "dtrain: done in {:.1} s; the results are in {folder}",
                    wall.as_secs_f64()
                ));
            }
            (ExitStatus::Success, ..) => {}
            _ if refusal.is_some() => {}
            (ExitStatus::Requeue, Kind::Recipe, Some(folder)) => lines.push(format!(
                "dtrain: exit code {}: {meaning} with --run-dir {folder}",
                status.code()
            )),
            _ => lines.push(format!("dtrain: exit code {}: {meaning}", status.code())),
        }
        let text = (!lines.is_empty()).then(|| lines.join("\n"));
        let is_refusal = refusal.is_some();
        Self {
            status,
            is_refusal,
            reason,
            failure,
            nproc: plan.nproc,
            restarts: restarts.used(),
            wall,
            resumed_from: plan.resumed_from(),
            text,
        }
    }

    /// What the command returns.
    pub(super) fn status(&self) -> ExitStatus {
        self.status
    }

    /// Whether a worker has refused the recipe or the data, which is said in one sentence.
    pub(super) fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// What the user is told last, if there is anything to say.
    pub(super) fn text(&self) -> Option<String> {
        self.text.clone()
    }

    /// Completes the training figures that the worker has written with the outcome, and notes a good end for the next `--resume`.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        let figures = RunResult::read(&run_dir.result())?.unwrap_or_default();
        let result = RunResult {
            exit_code: Some(self.status.code()),
            reason: Some(self.reason.clone()),
            failure: self.failure.clone(),
            restarts: self.restarts,
            wall_s: Some(self.wall.as_secs_f64()),
            nproc: Some(self.nproc),
            resumed_from: self.resumed_from.clone(),
            ..figures
        };
        result.write(&run_dir.result())?;
        match (self.status, &self.resumed_from) {
            (ExitStatus::Success, Some(_)) => run_dir.note_ended().map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

/// Says why nothing was started, and answers the exit status. `plan`: as far as the command has been checked.
pub(super) fn not_begun(plan: Option<&Plan>, cause: Cause) -> ExitStatus {
    let (status, resume) = match cause {
        Cause::Requeue => (ExitStatus::Requeue, plan.and_then(|plan| plan.run_dir.as_ref())),
        Cause::Stopped { signal } => (ExitStatus::Signal(signal), None),
        _ => (ExitStatus::WorkerFailed, None),
    };
    let resume = resume.map_or(String::new(), |run_dir| {
        format!(" with --run-dir {}", run_dir.root().display())
    });
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
fn exit_status(verdict: &Verdict, kind: Kind) -> ExitStatus {
    match verdict.cause {
        Cause::Success => ExitStatus::Success,
        Cause::Requeue => ExitStatus::Requeue,
        Cause::Stopped { signal } => ExitStatus::Signal(signal),
        Cause::TimeIsUp => ExitStatus::Signal(signals::TERM),
        Cause::NotStarted { passing: false, .. } => ExitStatus::Usage,
        Cause::NotStarted { passing: true, .. } => ExitStatus::WorkerFailed,
        Cause::Hung { .. } | Cause::Evicted => ExitStatus::WorkerFailed,
        Cause::Failed { rank } => match (verdict.end_of(rank).map(|end| end.outcome), kind) {
            (Some(Outcome::Exited(code)), Kind::Recipe) => ExitStatus::from_worker_code(code),
            (Some(Outcome::Exited(code)), Kind::Program) => ExitStatus::Program(code),
            (Some(Outcome::Signaled(signal)), Kind::Program) => ExitStatus::Signal(signal),
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

/// How a process ended, in words.
fn ended(outcome: Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exit code {code}"),
        Outcome::Signaled(signal) => format!("killed by {}", signals::name(signal)),
        Outcome::Lost => "its exit code is lost".to_owned(),
    }
}
