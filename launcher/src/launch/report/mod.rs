//! The result of a run: exit code, messages and `result.json`.

mod blamed;
mod summary;

use super::attempt::{Attempt, Run};
use super::messages::{GUARDIAN_DIED, cannot_start};
use crate::plan::LaunchPlan;
use blamed::BlamedWorker;
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::message::Blame;
use dtrain_agent::io::output::Message;
use dtrain_agent::local::{Cause, Outcome};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::log_line::LogFormat;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;
use std::io;
use summary::Summary;

/// The outcome of a run that started every worker.
pub(super) struct Report {
    pub(super) status: ExitStatus,
    /// The message of a worker that has rejected the recipe or the data.
    usage_error: Option<String>,
    /// The lines about the worker to blame.
    banner: Vec<String>,
    /// The last line of a launch that has failed or stopped.
    reason: Option<String>,
    /// Of a training.
    summary: Option<Summary>,
    /// A sentence about warnings that came several times.
    repeated: Option<String>,
    /// For `result.json`, in addition to the training's figures.
    result: RunResult,
}

/// The end of a run, on one node or several.
#[derive(Debug)]
pub(super) struct Conclusion {
    pub(super) cause: Cause,
    /// The end of the worker to blame.
    pub(super) outcome: Option<Outcome>,
    pub(super) blame: Option<Blame>,
    /// The reason for the user, if the cause alone does not say it.
    pub(super) reason: Option<String>,
    pub(super) restarts: u32,
    /// The exit status, if the cause does not decide it.
    pub(super) status: Option<ExitStatus>,
}

impl Conclusion {
    /// Returns the end of a run on this node alone.
    pub(super) fn of(
        plan: &LaunchPlan,
        run: &Run,
        attempt: &Attempt,
        restarts: u32,
        start_time: StartTime,
    ) -> Self {
        let cause = run.verdict.cause;
        let (Cause::Failed { rank } | Cause::Hung { rank }) = cause else {
            let not_started = run.not_started.as_ref().filter(|_| matches!(cause, Cause::NotStarted { .. }));
            let reason = not_started.map(|(rank, error)| cannot_start(plan, *rank, error));
            return Self { cause, outcome: None, blame: None, reason, restarts, status: None };
        };
        Self {
            cause,
            outcome: run.verdict.end_of(rank).map(|end| end.outcome),
            blame: blame(plan, run, attempt, start_time),
            reason: None,
            restarts,
            status: None,
        }
    }
}

/// Returns the worker to blame for the attempt, if a worker is.
pub(super) fn blame(plan: &LaunchPlan, run: &Run, attempt: &Attempt, start_time: StartTime) -> Option<Blame> {
    let blamed = BlamedWorker::find(plan, run, attempt)?;
    Some(blamed.blame(plan, run, &attempt.files, start_time))
}

impl Report {
    pub(super) fn new(plan: &LaunchPlan, conclusion: Conclusion, start_time: StartTime) -> Self {
        let wall = start_time.elapsed();
        let is_training = plan.training().is_some();
        let Conclusion { cause, outcome, blame, reason, restarts, status } = conclusion;
        // A training that was killed at its time limit continues from its newest checkpoint.
        let cause = if cause == Cause::TimeIsUp && plan.has_checkpoint() { Cause::Requeue } else { cause };
        let status = status.unwrap_or_else(|| exit_status(cause, outcome, is_training));
        let code = status.code();
        let plain = match cause {
            Cause::Requeue if !is_training => {
                "stopped at the time limit; to continue, start it again".to_owned()
            }
            _ => meaning(status, cause),
        };
        let meaning = reason.unwrap_or_else(|| plain.clone());
        // A worker that rejects the recipe or the data has not failed: its message is the usage error.
        let is_usage_error = code == ExitStatus::Usage.code() && plan.is_of_dtrain();
        let usage_error = blame.as_ref().filter(|_| is_usage_error).and_then(|blame| blame.reported.as_ref());
        let banner = match (usage_error, &blame) {
            (Some(message), _) => vec![format!("dtrain: error: {message}")],
            (None, Some(blame)) => blame.banner.clone(),
            (None, None) => Vec::new(),
        };
        let last = match status {
            ExitStatus::Success => None,
            _ if usage_error.is_some() => None,
            // The reason was printed when it happened.
            _ if matches!(cause, Cause::NotStarted { .. }) => Some(&plain),
            _ => Some(&meaning),
        };
        Self {
            status,
            usage_error: usage_error.cloned(),
            banner,
            reason: last.map(|meaning| format!("dtrain: exit code {code}: {meaning}")),
            summary: Summary::of(plan, wall).filter(|_| usage_error.is_none() && cause != Cause::Evicted),
            repeated: plan.routing.repeated_warnings(),
            result: RunResult {
                exit_code: Some(code),
                reason: Some(explain(cause, blame.as_ref(), meaning)),
                failure: blame.map(|blame| blame.failure),
                restarts,
                wall_s: Some(wall.as_secs_f64()),
                nproc: Some(plan.placement.world_size),
                nodes: Some(plan.placement.group_world_size),
                resumed_from: plan.resumed_from().map(Into::into),
                ..RunResult::default()
            },
        }
    }

    /// Writes `result.json` into `run_dir`, gives the lines for the user to `say`, and returns the result. `not_restarted`: why an
    /// allowed restart is not made.
    pub(super) fn publish(
        &self,
        run_dir: Option<&RunDir>,
        not_restarted: Option<&str>,
        say: impl Fn(Message),
    ) -> RunResult {
        if let Some(reason) = not_restarted.filter(|_| self.usage_error.is_none()) {
            say(Message::warning(format!("dtrain: not restarted: {reason}")));
        }
        let result = match run_dir.map(|run_dir| (self.write(run_dir), run_dir)) {
            Some((Ok(result), _)) => result,
            Some((Err(error), run_dir)) => {
                say(Message::error(format!("dtrain: cannot write {}: {error}", run_dir.result().display())));
                self.result.clone()
            }
            None => self.result.clone(),
        };
        self.repeated.iter().for_each(|text| say(format!("dtrain: {text}").into()));
        self.last(&result).into_iter().for_each(say);
        result
    }

    /// Returns the last message. A program that ends well needs none.
    fn last(&self, result: &RunResult) -> Option<Message> {
        let mut lines = self.banner.clone();
        match (&self.reason, &self.summary) {
            (Some(reason), Some(summary)) => lines.push(format!("{reason}{}", summary.progress(result))),
            (Some(reason), None) => lines.push(reason.clone()),
            (None, Some(summary)) => lines.push(summary.success(result)),
            (None, None) => {}
        }
        lines.extend(self.summary.iter().flat_map(|summary| summary.rest(self.status, result)));
        let text = (!lines.is_empty()).then(|| lines.join("\n"))?;
        let notice = match self.status {
            ExitStatus::Success => Message::good(text),
            ExitStatus::Requeue => Message::warning(text),
            _ => Message::error(text),
        };
        let fields = match serde_json::to_value(result) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        Some(notice.with_fields(fields))
    }

    /// Returns the reason for the other nodes.
    pub(super) fn reason(&self) -> &str {
        self.usage_error.as_ref().or(self.result.reason.as_ref()).map_or("", String::as_str)
    }

    /// Adds the outcome to the training figures of the worker, and records a success for the next `--resume`.
    fn write(&self, run_dir: &RunDir) -> io::Result<RunResult> {
        let figures = RunResult::read(&run_dir.result())?.unwrap_or_default();
        let RunResult { exit_code, reason, failure, restarts, wall_s, nproc, nodes, resumed_from, .. } =
            self.result.clone();
        let result =
            RunResult { exit_code, reason, failure, restarts, wall_s, nproc, nodes, resumed_from, ..figures };
        result.write(&run_dir.result())?;
        if self.status == ExitStatus::Success && result.resumed_from.is_some() {
            run_dir.record_end().map_err(io::Error::other)?;
        }
        Ok(result)
    }
}

/// Explains the status of this run.
fn explain(cause: Cause, blame: Option<&Blame>, meaning: String) -> String {
    match (blame, cause) {
        (None, _) => meaning,
        (Some(blame), Cause::Hung { .. }) => {
            let rank = blame.failure.rank;
            format!("no progress, rank {rank} was among the first without heartbeats; {meaning}")
        }
        (Some(blame), _) => format!("rank {} {}; {meaning}", blame.failure.rank, blame.ended),
    }
}

/// A launch that ended before its workers started, and the user knows it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{meaning}")]
pub(super) struct NotBegun {
    pub(super) status: ExitStatus,
    meaning: String,
}

/// Reports why no worker was started. `plan`: the plan, as far as it was checked.
pub(super) fn not_begun(plan: Option<&LaunchPlan>, cause: Cause, format: LogFormat) -> NotBegun {
    let (status, training) = match cause {
        Cause::Requeue => (ExitStatus::Requeue, plan.and_then(LaunchPlan::training)),
        Cause::Stopped { signal } => (ExitStatus::Signal(signal), None),
        _ => (ExitStatus::WorkerFailed, None),
    };
    let next = training.map_or(String::new(), |training| format!("\n  next: {}", training.again));
    let meaning = meaning(status, cause);
    let text = format!("dtrain: exit code {}: {meaning} (no worker was started){next}", status.code());
    Message::error(text).print(format);
    NotBegun { status, meaning }
}

/// Maps the verdict to the command's exit status; the only place.
fn exit_status(cause: Cause, outcome: Option<Outcome>, is_training: bool) -> ExitStatus {
    match cause {
        Cause::Success => ExitStatus::Success,
        Cause::Requeue => ExitStatus::Requeue,
        Cause::Stopped { signal } => ExitStatus::Signal(signal),
        Cause::TimeIsUp => ExitStatus::Signal(signals::TERM),
        Cause::NotStarted { temporary: false, .. } => ExitStatus::Usage,
        Cause::NotStarted { temporary: true, .. } => ExitStatus::WorkerFailed,
        Cause::Hung { .. } | Cause::Evicted | Cause::OthersFailed => ExitStatus::WorkerFailed,
        Cause::Failed { .. } => match (outcome, is_training) {
            (Some(Outcome::Exited(code)), true) => ExitStatus::from_worker_code(code),
            (Some(Outcome::Exited(code)), false) => ExitStatus::Program(code),
            (Some(Outcome::Signaled(signal)), false) => ExitStatus::Signal(signal),
            _ => ExitStatus::WorkerFailed,
        },
    }
}

fn meaning(status: ExitStatus, cause: Cause) -> String {
    match (status, cause) {
        // No process can receive this signal: the guardian died of it.
        (_, Cause::Stopped { signal: signals::KILL }) => GUARDIAN_DIED.to_owned(),
        (ExitStatus::Signal(signal), Cause::Stopped { .. }) => {
            format!("stopped by {}", signals::name(signal))
        }
        (_, Cause::Evicted) => "another run has taken the run directory".to_owned(),
        (_, Cause::TimeIsUp) => "stopped at the end of the time limit".to_owned(),
        (ExitStatus::Signal(signal), _) => format!("the program was killed by {}", signals::name(signal)),
        _ => status.describe(),
    }
}
