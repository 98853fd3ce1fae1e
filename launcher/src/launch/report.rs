//! What a run came to: the exit code, the words for the user and `result.json`.

use super::cause::{self, Evidence, Suspect};
use super::files::Files;
use super::group::is_passing;
use super::plan::{Kind, Plan};
use super::size::plural;
use super::supervise::Run;
use super::{Attempt, Begun};
use crate::agent::{Cause, End, Notice, Outcome, Restarts, Verdict};
use crate::output::Stream;
use crate::process::memory_kill::SinceThen;
use crate::process::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::{self, Failure, RunResult};
use dtrain_common::run_dir::RunDir;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Lines of standard error that are shown and kept in `result.json`.
const LAST_LINES: usize = 20;

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
            resumed_from: self.resumed_from.clone(),
            ..figures
        };
        result.write(&run_dir.result())
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

/// The worker that is told about: the first that failed, or the one because of which it did.
struct Culprit<'a> {
    end: &'a End,
    seen_first: &'a End,
    cause: Option<cause::Cause>,
    host: String,
    /// What it said itself in its error file.
    reported: Option<String>,
    /// The last lines of its standard error.
    tail: Vec<String>,
}

impl<'a> Culprit<'a> {
    fn find(plan: &Plan, run: &'a Run, attempt: &Attempt) -> Option<Self> {
        let (Cause::Failed { rank: first } | Cause::Hung { rank: first }) = run.verdict.cause else {
            return None;
        };
        let hung = matches!(run.verdict.cause, Cause::Hung { .. });
        let (files, memory_kills) = (&attempt.files, &attempt.memory_kills);
        let pids: Vec<_> = run.pids.iter().flatten().copied().collect();
        let kills = memory_kills.since(&pids);
        let well = |end: &End| match end.outcome {
            Outcome::Exited(code) => code == 0 || plan.requeue_code() == Some(code),
            Outcome::Signaled(_) | Outcome::Lost => false,
        };
        let failed: Vec<_> = run.verdict.ends.iter().filter(|end| !well(end)).collect();
        let mut suspects: Vec<_> = failed
            .iter()
            .map(|end| suspect(end, run, files, &kills))
            .collect();
        let judged = failed.iter().position(|end| end.rank == first);
        // How workers end that were stopped because of a hang says nothing about it.
        let (blamed, hang) = match (hung, judged) {
            (true, _) => (judged.unwrap_or(0), Some(cause::Cause::hang())),
            (false, judged) => (cause::to_blame(judged?, &suspects), None),
        };
        // One that only lost the other may have been faster to fail.
        let seen_first = match failed.first()? {
            end if end.lost_peer && !hung => 0,
            _ => judged.unwrap_or(0),
        };
        let end = failed[blamed];
        let mut tail = cause::shortened(&run.tails[end.rank].lines());
        tail.drain(..tail.len().saturating_sub(LAST_LINES));
        Some(Self {
            end,
            seen_first: failed[seen_first],
            cause: hang.or_else(|| suspects[blamed].cause.take()),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            reported: files.reported_error(end.rank),
            tail,
        })
    }

    /// How it ended, in words.
    fn ended(&self) -> String {
        let mut ended = ended(self.end.outcome);
        if self
            .cause
            .as_ref()
            .is_some_and(|cause| cause.kind == cause::Kind::Hang)
        {
            ended = format!("no progress, then {ended}");
        }
        if self.yielded() {
            let sender = if self.end.stopped_by_agent() {
                " from the launcher"
            } else {
                ""
            };
            format!(
                "{ended}{sender}, after rank {} had failed because of it",
                self.seen_first.rank
            )
        } else {
            ended
        }
    }

    /// Whether the worker that was seen first is not the one that is told about.
    fn yielded(&self) -> bool {
        self.end.rank != self.seen_first.rank
    }

    fn banner(&self, nproc: usize, run: &Run, files: &Files) -> Vec<String> {
        let rank = self.end.rank;
        let pid = run.pids[rank]
            .map(|pid| format!(" (pid {pid})"))
            .unwrap_or_default();
        let mut lines = vec![format!(
            "dtrain: rank {rank}{pid} failed after {:.1} s on {}: {}",
            self.end.at.as_secs_f64(),
            self.host,
            self.ended()
        )];
        if let Some(cause) = &self.cause {
            lines.push(format!("  cause: {}", cause.text));
        }
        let mut indented = |text: &str| lines.extend(text.lines().map(|line| format!("    {line}")));
        match &self.reported {
            Some(message) => indented(message),
            None if self.tail.is_empty() => indented("it wrote nothing to standard error"),
            None => {
                indented("the last lines of its standard error:");
                self.tail.iter().for_each(|line| indented(&format!("  {line}")));
            }
        }
        if let Some(log) = files.log_path(rank, Stream::Stderr) {
            lines.push(format!("  its log: {}", log.display()));
        }
        if nproc > 1 {
            lines.extend(self.peers(&run.verdict));
        }
        lines
    }

    /// One line for the workers that failed by themselves as well, and one for those that were stopped.
    fn peers(&self, verdict: &Verdict) -> Vec<String> {
        let others = verdict
            .ends
            .iter()
            .filter(|end| end.rank != self.end.rank && end.outcome != Outcome::Exited(0));
        let (mut stopped, failed): (Vec<_>, Vec<_>) = others.partition(|end| !end.sent.is_empty());
        stopped.sort_by_key(|end| end.rank);
        let failed_how = if self.yielded() {
            "failed because of it"
        } else {
            "failed after it"
        };
        [(failed_how, failed), ("stopped because of it", stopped)]
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

    fn failure(&self, begun: Begun) -> Failure {
        Failure {
            rank: self.end.rank,
            host: self.host.clone(),
            exit_code: match self.end.outcome {
                Outcome::Exited(code) => Some(code),
                Outcome::Signaled(_) | Outcome::Lost => None,
            },
            signal: match self.end.outcome {
                Outcome::Signaled(signal) => Some(signals::name(signal)),
                Outcome::Exited(_) | Outcome::Lost => None,
            },
            message: self
                .reported
                .clone()
                .or_else(|| (!self.tail.is_empty()).then(|| self.tail.join("\n"))),
            cause: self.cause.as_ref().map(|cause| result::Cause {
                kind: cause.kind.word().to_owned(),
                text: cause.text.clone(),
            }),
            at_ms: unix_ms(begun, self.end.at),
        }
    }
}

/// A failed worker and what is known about why.
fn suspect(end: &End, run: &Run, files: &Files, kills: &SinceThen) -> Suspect {
    let stderr = run.tails[end.rank].lines();
    let error_file = files.error_text(end.rank);
    let cause = cause::cause(&Evidence {
        outcome: end.outcome,
        sent: &end.sent,
        stderr: &stderr,
        error_file: error_file.as_deref(),
        memory_kill: kills.evidence(run.pids[end.rank]),
    });
    Suspect {
        rank: end.rank,
        at: end.at,
        cause,
    }
}

/// What the user is told while the run goes on; nothing where the banner follows at once.
pub(super) fn notice(notice: &Notice, kind: Kind, workers: usize, timeout: Duration) -> Option<String> {
    let refusal = Outcome::Exited(ExitStatus::Usage.code().into());
    let timeout = timeout.as_secs();
    match notice {
        Notice::Failed { stopping: 0, .. } | Notice::Stopping { workers: 0, .. } => None,
        Notice::Failed { outcome, .. } if kind == Kind::Recipe && *outcome == refusal => None,
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
        Notice::TimeLimit { workers, left } => Some(format!(
            "dtrain: the time limit is near: asked {workers} worker{} to stop; what still runs in {} s is killed",
            plural(*workers),
            left.as_secs()
        )),
        Notice::Hanging { silent } => {
            let ranks: Vec<_> = silent
                .iter()
                .map(|(rank, since)| format!("rank {rank} for {} s", since.as_secs()))
                .collect();
            Some(format!(
                "dtrain: no progress: nothing was heard of {}; finding out where the workers are, and stopping them unless \
                 they go on",
                ranks.join(", of ")
            ))
        }
        Notice::Thawed { frozen, taken_back } => {
            let hang = if *taken_back {
                ", also whether the workers hang"
            } else {
                ""
            };
            Some(format!(
                "dtrain: the launcher did not run for {} s: all times but the time limit begin anew{hang}",
                frozen.as_secs()
            ))
        }
        Notice::Recovered => Some("dtrain: the workers make progress again: they are not stopped".to_owned()),
        Notice::Writing { ranks, left } => {
            let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
            let until = left.map_or(String::new(), |left| {
                format!(", until the time limit in {} s", left.as_secs())
            });
            Some(format!(
                "dtrain: rank {} still writes a checkpoint after {timeout} s (--shutdown-timeout): waiting for it{until}; a second \
                 Ctrl-C or SIGTERM kills at once",
                ranks.join(", ")
            ))
        }
        Notice::Killing { ranks, timed_out } => {
            let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
            let why = match timed_out {
                Some(time) => format!("still running after {} s", time.as_secs()),
                None => "on request".to_owned(),
            };
            Some(format!("dtrain: killing rank {}: {why}", ranks.join(", ")))
        }
    }
}

/// That the workers are killed because the run directory is another run's.
pub(super) fn evicted(plan: &Plan) -> String {
    let folder = plan
        .run_dir
        .as_ref()
        .map(|run_dir| run_dir.root().display().to_string());
    format!(
        "dtrain: another run has taken {}, because this launcher was suspended or its file system did not answer: killing the \
         workers, and writing nothing more there",
        folder.unwrap_or_default()
    )
}

/// That a worker could not be started, and why.
pub(super) fn cannot_start(plan: &Plan, rank: usize, error: &io::Error) -> String {
    let of = if plan.nproc == 1 {
        String::new()
    } else {
        format!(" for rank {rank}")
    };
    let why = why_not_started(error);
    format!("cannot start `{}`{of}: {why}", plan.program.display())
}

/// Why the system refused to execute a program that is there and executable.
fn why_not_started(error: &io::Error) -> String {
    match error.kind() {
        _ if is_passing(error) => format!(
            "{error}: the system lacks room for another process; end others, or raise the limit: `ulimit -u`, `ulimit -n`, a \
             container's --pids-limit (pids.max of the control group), memory"
        ),
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
