//! What a run came to: the exit code, the words for the user and `result.json`.

use super::Begun;
use super::files::Files;
use super::plan::{Kind, Plan};
use super::size::plural;
use super::supervise::Run;
use crate::agent::{Cause, End, Notice, Outcome, Restarts, Verdict};
use crate::output::Stream;
use crate::process::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::{Failure, RunResult};
use dtrain_common::run_dir::RunDir;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

/// The outcome of a run of which every worker was started.
pub(super) struct Report {
    status: ExitStatus,
    /// The status in words, for this run.
    reason: String,
    failure: Option<Failure>,
    nproc: usize,
    restarts: u32,
    wall: Duration,
    text: Option<String>,
}

impl Report {
    pub(super) fn new(plan: &Plan, run: &Run, files: &Files, restarts: &Restarts, begun: Begun) -> Self {
        let wall = begun.elapsed();
        let status = exit_status(&run.verdict, plan.kind);
        let first = match run.verdict.cause {
            Cause::Failed { rank } | Cause::Hung { rank } => run.verdict.end_of(rank),
            _ => None,
        };
        let meaning = meaning(status, run.verdict.cause);
        let reason = match first {
            None => meaning.clone(),
            Some(end) if matches!(run.verdict.cause, Cause::Hung { .. }) => {
                format!(
                    "no progress, rank {} was the first to be silent; {meaning}",
                    end.rank
                )
            }
            Some(end) => format!("rank {} failed: {}; {meaning}", end.rank, ended(end.outcome)),
        };
        let reported = first.and_then(|end| files.reported_error(end.rank));
        let tail = first.map(|end| run.tails[end.rank].lines()).unwrap_or_default();
        let mut lines = Vec::new();
        if let Some(end) = first {
            lines.extend(banner(end, plan.nproc, run, files, reported.as_deref(), &tail));
        }
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
            (ExitStatus::Requeue, Kind::Recipe, Some(folder)) => lines.push(format!(
                "dtrain: exit code {}: {meaning} with --run-dir {folder}",
                status.code()
            )),
            _ => lines.push(format!("dtrain: exit code {}: {meaning}", status.code())),
        }
        let message = reported.or_else(|| (!tail.is_empty()).then(|| tail.join("\n")));
        let failure = first.map(|end| Failure {
            rank: end.rank,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            exit_code: match end.outcome {
                Outcome::Exited(code) => Some(code),
                Outcome::Signaled(_) | Outcome::Lost => None,
            },
            signal: match end.outcome {
                Outcome::Signaled(signal) => Some(signals::name(signal)),
                Outcome::Exited(_) | Outcome::Lost => None,
            },
            message,
            at_ms: unix_ms(begun, end.at),
        });
        let text = (!lines.is_empty()).then(|| lines.join("\n"));
        Self {
            status,
            reason,
            failure,
            nproc: plan.nproc,
            restarts: restarts.used(),
            wall,
            text,
        }
    }

    /// What the command returns.
    pub(super) fn status(&self) -> ExitStatus {
        self.status
    }

    /// What the user is told last, if there is anything to say.
    pub(super) fn text(&self) -> Option<String> {
        self.text.clone()
    }

    /// Completes the training figures that the worker has written with the outcome.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        let figures = RunResult::read(&run_dir.result())?.unwrap_or_default();
        let result = RunResult {
            exit_code: Some(self.status.code()),
            reason: Some(self.reason.clone()),
            failure: self.failure.clone(),
            restarts: self.restarts,
            wall_s: Some(self.wall.as_secs_f64()),
            nproc: Some(self.nproc),
            ..figures
        };
        result.write(&run_dir.result())
    }
}

/// The banner of an attempt that failed and is followed by another.
pub(super) fn failure(plan: &Plan, run: &Run, files: &Files) -> Vec<String> {
    let (Cause::Failed { rank } | Cause::Hung { rank }) = run.verdict.cause else {
        return Vec::new();
    };
    let Some(first) = run.verdict.end_of(rank) else {
        return Vec::new();
    };
    let reported = files.reported_error(rank);
    banner(
        first,
        plan.nproc,
        run,
        files,
        reported.as_deref(),
        &run.tails[rank].lines(),
    )
}

/// That it goes on.
pub(super) fn restarting(restart: u32, allowed: u32, workers: usize, pause: Duration) -> String {
    let all = if workers == 1 {
        "the worker".to_owned()
    } else {
        format!("all {workers} workers")
    };
    let when = if pause.is_zero() {
        String::new()
    } else {
        format!(" in {} s", pause.as_secs())
    };
    format!("dtrain: restarting {all}{when} (restart {restart} of {allowed})")
}

/// The one mapping from a verdict to the command's exit status.
fn exit_status(verdict: &Verdict, kind: Kind) -> ExitStatus {
    match verdict.cause {
        Cause::Success => ExitStatus::Success,
        Cause::Requeue => ExitStatus::Requeue,
        Cause::Stopped { signal } => ExitStatus::Signal(signal),
        Cause::NotStarted { .. } => ExitStatus::Usage,
        Cause::Hung { .. } => ExitStatus::WorkerFailed,
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

fn banner(
    first: &End,
    nproc: usize,
    run: &Run,
    files: &Files,
    reported: Option<&str>,
    tail: &[String],
) -> Vec<String> {
    let pid = run.pids[first.rank]
        .map(|pid| format!(" (pid {pid})"))
        .unwrap_or_default();
    let after = first.at.as_secs_f64();
    let mut lines = vec![format!(
        "dtrain: rank {}{pid} failed after {after:.1} s: {}",
        first.rank,
        ended(first.outcome)
    )];
    let mut indented = |text: &str| lines.extend(text.lines().map(|line| format!("    {line}")));
    match reported {
        Some(message) => indented(message),
        None if tail.is_empty() => indented("it wrote nothing to standard error"),
        None => {
            indented("the last lines of its standard error:");
            tail.iter().for_each(|line| indented(&format!("  {line}")));
        }
    }
    if let Some(log) = files.log_path(first.rank, Stream::Stderr) {
        lines.push(format!("  its log: {}", log.display()));
    }
    if nproc > 1 {
        lines.extend(peers(first, &run.verdict));
    }
    lines
}

/// One line for the workers that failed by themselves as well, and one for those that were stopped.
fn peers(first: &End, verdict: &Verdict) -> Vec<String> {
    let others = verdict
        .ends
        .iter()
        .filter(|end| end.rank != first.rank && end.outcome != Outcome::Exited(0));
    let (mut stopped, failed): (Vec<_>, Vec<_>) = others.partition(|end| !end.sent.is_empty());
    stopped.sort_by_key(|end| end.rank);
    [("failed after it", failed), ("stopped because of it", stopped)]
        .into_iter()
        .filter(|(_, ends)| !ends.is_empty())
        .map(|(what, ends)| {
            let ends: Vec<_> = ends
                .iter()
                .map(|end| format!("rank {} ({})", end.rank, ended(end.outcome)))
                .collect();
            format!("  {what}: {}", ends.join(", "))
        })
        .collect()
}

/// What the user is told while the run goes on; nothing where the banner follows at once.
pub(super) fn notice(notice: &Notice, workers: usize, timeout: Duration) -> Option<String> {
    let timeout = timeout.as_secs();
    match notice {
        Notice::Failed { stopping: 0, .. } | Notice::Stopping { workers: 0, .. } => None,
        Notice::Failed {
            rank,
            outcome,
            stopping,
        } => Some(format!(
            "dtrain: rank {rank} failed ({}); stopping the other {stopping} of {workers} workers, which are killed after \
             {timeout} s",
            ended(*outcome)
        )),
        Notice::Stopping { signal, workers } => Some(format!(
            "dtrain: received {}, passed on to {workers} worker{}; they are killed after {timeout} s, or at once by a \
             second Ctrl-C or SIGTERM",
            signals::name(*signal),
            plural(*workers)
        )),
        Notice::Hanging { silent } => {
            let ranks: Vec<_> = silent
                .iter()
                .map(|(rank, since)| format!("rank {rank} for {} s", since.as_secs()))
                .collect();
            Some(format!(
                "dtrain: no progress: nothing was heard of {}; finding out where the workers are, and stopping them",
                ranks.join(", of ")
            ))
        }
        Notice::Killing { ranks, timed_out } => {
            let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
            let why = if *timed_out {
                format!("still running after {timeout} s")
            } else {
                "on request".to_owned()
            };
            Some(format!("dtrain: killing rank {}: {why}", ranks.join(", ")))
        }
    }
}

/// Why the system refused to execute a program that is there and executable.
pub(super) fn why_not_started(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the interpreter named in its first line does not exist".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            "it is neither a program for this machine nor a script whose first line names its interpreter (`#!/bin/sh`)"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

fn unix_ms(begun: Begun, at: Duration) -> u64 {
    let since_epoch = begun
        .wall
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_add(at);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
