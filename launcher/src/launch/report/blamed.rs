//! The worker named by a failure's message: its rank, its end and the cause.

use crate::launch::attempt::{Attempt, Run};
use crate::launch::files::Files;
use crate::launch::messages::ended;
use crate::plan::{LaunchPlan, Route, Sinks};
use dtrain_agent::cause::{self, Evidence, MemoryKill, Suspect};
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::message::Blame;
use dtrain_agent::io::output::Stream;
use dtrain_agent::local::{Cause, End, Outcome, Verdict};
use dtrain_agent::signals;
use dtrain_common::result::{self, Failure};

const SHOWN_AND_KEPT: Route = Route { shown: true, kept: true };

/// Lines of standard error that are shown and kept in `result.json`.
const LAST_LINES: usize = 20;

/// The worker of the failure message: the first that failed, or the cause of that failure.
pub(super) struct BlamedWorker<'a> {
    end: &'a End,
    seen_first: &'a End,
    cause: Option<cause::Cause>,
    /// The signal by which the launcher asked the worker to stop, if the worker ended because of it and did not fail.
    stopped_by: Option<i32>,
    host: String,
    /// The message in its error file.
    reported: Option<String>,
    /// The last lines of its standard error, or of both streams if they are together.
    tail: Vec<String>,
    tail_of: &'static str,
}

impl<'a> BlamedWorker<'a> {
    pub(super) fn find(plan: &LaunchPlan, run: &'a Run, attempt: &Attempt) -> Option<Self> {
        let (Cause::Failed { rank: first } | Cause::Hung { rank: first }) = run.verdict.cause else {
            return None;
        };
        let hung = matches!(run.verdict.cause, Cause::Hung { .. });
        let (files, pids) = (&attempt.files, run.pids.iter().flatten().copied());
        let kills = attempt.memory_kills.since(&pids.collect::<Vec<_>>());
        let well = |end: &&End| end.outcome.is_well(plan.requeue_code());
        let failed: Vec<_> = run.verdict.ends.iter().filter(|end| !well(end)).collect();
        let mut suspects: Vec<_> = failed.iter().map(|end| suspect(end, run, files, &kills)).collect();
        let judged = failed.iter().position(|end| end.rank == first);
        // The ends of workers stopped because of a hang do not show its cause.
        let (blamed, hang) = match (hung, judged) {
            (true, _) => (judged.unwrap_or(0), Some(cause::Cause::hang())),
            (false, judged) => (cause::to_blame(judged?, &suspects), None),
        };
        // A worker that only lost its peer may have failed before the peer.
        let seen_first = match failed.first()? {
            end if end.lost_peer && !hung => 0,
            _ => judged.unwrap_or(0),
        };
        let end = failed[blamed];
        let mut cause = hang.or_else(|| suspects[blamed].cause.take());
        let lost_peer = cause.as_ref().is_some_and(|cause| cause.peer_lost);
        let early = ended_early(run, end);
        if lost_peer && !early.is_empty() {
            let early: Vec<_> = early.iter().map(|rank| plan.rank(*rank)).collect();
            cause = cause.map(|cause| cause.left_by(plan.rank(end.rank), &early));
        }
        // A trainer says by code 0 or 75 that it has stopped. A program may end with any code, or lose a peer that has stopped.
        let is_asked = run.verdict.stop_source.is_some() && plan.training().is_none();
        let has_stopped = matches!(end.outcome, Outcome::Exited(_)) && (lost_peer || cause.is_none());
        let stopped_by = end.sent.first().copied().filter(|_| is_asked && has_stopped);
        let mut tail = cause::shortened(&run.tails[end.rank].lines());
        tail.drain(..tail.len().saturating_sub(LAST_LINES));
        Some(Self {
            end,
            seen_first: failed[seen_first],
            cause: match stopped_by {
                Some(_) => cause.map(cause::Cause::after_a_stop),
                None => cause,
            },
            stopped_by,
            host: dtrain_common::host::name(),
            reported: files.reported_error(end.rank),
            tail,
            tail_of: match plan.routing.is_together(end.rank, Sinks::now()) {
                true => "standard output and standard error",
                false => "standard error",
            },
        })
    }

    /// Returns what became of the worker: the verb for its rank, and how it ended.
    fn fate(&self, plan: &LaunchPlan) -> (&'static str, String) {
        let mut how = ended(self.end.outcome);
        if let Some(signal) = self.stopped_by {
            return ("was stopped", format!("{how} after {} from the launcher", signals::name(signal)));
        }
        let is_hang = |cause: &cause::Cause| cause.kind == cause::Kind::Hang;
        if self.cause.as_ref().is_some_and(is_hang) {
            how = format!("no progress, then {how}");
        }
        if self.blames_other() {
            let sender = if self.end.stopped_by_agent() { " from the launcher" } else { "" };
            let first = plan.rank(self.seen_first.rank);
            how = format!("{how}{sender} (the cause; rank {first} failed because of it, but ended first)");
        }
        ("failed", how)
    }

    /// Returns whether another worker was seen first.
    fn blames_other(&self) -> bool {
        self.end.rank != self.seen_first.rank
    }

    /// Describes the worker for the user and for `result.json`.
    pub(super) fn blame(&self, plan: &LaunchPlan, run: &Run, files: &Files, start_time: StartTime) -> Blame {
        let (verb, how) = self.fate(plan);
        Blame {
            failure: self.failure(plan, start_time),
            ended: format!("{verb}: {how}"),
            reported: self.reported.clone(),
            banner: self.banner(plan, run, files),
        }
    }

    fn banner(&self, plan: &LaunchPlan, run: &Run, files: &Files) -> Vec<String> {
        let local_rank = self.end.rank;
        let rank = plan.rank(local_rank);
        let pid = run.pids[local_rank].map_or(String::new(), |pid| format!(" (pid {pid})"));
        let (verb, how) = self.fate(plan);
        let seconds = self.end.at.as_secs_f64();
        let mut lines =
            vec![format!("dtrain: rank {rank}{pid} {verb} after {seconds:.1} s on {}: {how}", self.host)];
        if let Some(cause) = &self.cause {
            lines.push(format!("  cause: {}", cause.text));
        }
        let mut indented = |text: &str| lines.extend(text.lines().map(|line| format!("    {line}")));
        match &self.reported {
            Some(message) => indented(message),
            None if self.tail.is_empty() && self.stopped_by.is_some() => {}
            // The user has seen the trainer's lines, and the log keeps them.
            None if plan.training().is_some()
                && plan.routing.route(local_rank, Stream::Stderr) == SHOWN_AND_KEPT => {}
            None if self.tail.is_empty() => indented(&format!("nothing on {}", self.tail_of)),
            None => {
                indented(&format!("last lines of {}:", self.tail_of));
                self.tail.iter().for_each(|line| indented(&format!("  {line}")));
            }
        }
        if let Some(log) = files.log_path(local_rank, Stream::Stderr) {
            let on = if plan.placement.group_world_size > 1 {
                format!(" on {}", self.host)
            } else {
                String::new()
            };
            lines.push(format!("  log{on}: {}", log.display()));
        }
        if plan.nproc > 1 {
            lines.extend(self.peers(plan, &run.verdict, files));
        }
        lines
    }

    /// Returns a line for workers that failed too, a line for stopped workers, and their messages.
    fn peers(&self, plan: &LaunchPlan, verdict: &Verdict, files: &Files) -> Vec<String> {
        let is_other = |end: &&End| end.rank != self.end.rank && end.outcome != Outcome::Exited(0);
        let others = verdict.ends.iter().filter(is_other);
        let (mut stopped, failed): (Vec<_>, Vec<_>) = others.partition(|end| !end.sent.is_empty());
        stopped.sort_by_key(|end| end.rank);
        let failed_how = if self.blames_other() { "failed as a consequence" } else { "failed later" };
        let first_line = |message: &str| message.lines().next().unwrap_or_default().to_owned();
        let mut messages: Vec<String> = self.reported.iter().map(|message| first_line(message)).collect();
        let mut words = Vec::new();
        for end in failed.iter().chain(&stopped) {
            let first = files.reported_error(end.rank).map(|message| first_line(&message));
            if let Some(first) = first.filter(|first| !messages.contains(first)) {
                words.push(format!("    rank {}: {first}", plan.rank(end.rank)));
                messages.push(first);
            }
        }
        let how = |end: &&End| format!("rank {} ({})", plan.rank(end.rank), ended(end.outcome));
        let mut lines = Vec::new();
        let stopped_how = if self.stopped_by.is_some() { "stopped too" } else { "stopped as a consequence" };
        for (what, ends) in [(failed_how, failed), (stopped_how, stopped)] {
            if !ends.is_empty() {
                let ends: Vec<_> = ends.iter().map(how).collect();
                lines.push(format!("  {what}: {}", ends.join(", ")));
            }
        }
        lines.extend(words);
        lines
    }

    fn failure(&self, plan: &LaunchPlan, start_time: StartTime) -> Failure {
        let (exit_code, signal) = match self.end.outcome {
            Outcome::Exited(code) => (Some(code), None),
            Outcome::Signaled(signal) => (None, Some(signals::name(signal))),
            Outcome::Lost => (None, None),
        };
        let tail = || (!self.tail.is_empty()).then(|| self.tail.join("\n"));
        let cause =
            |cause: &cause::Cause| result::Cause { kind: cause.kind.name(), text: cause.text.clone() };
        Failure {
            rank: plan.rank(self.end.rank),
            host: self.host.clone(),
            exit_code,
            signal,
            message: self.reported.clone().or_else(tail),
            cause: self.cause.as_ref().map(cause),
            at_ms: start_time.unix_ms(self.end.at),
        }
    }
}

/// Returns the workers that ended with code 0 before this end.
fn ended_early(run: &Run, before: &End) -> Vec<usize> {
    let ends = run.verdict.ends.iter();
    let early = ends.filter(|end| end.outcome == Outcome::Exited(0) && end.at <= before.at);
    let mut ranks: Vec<_> = early.map(|end| end.rank).collect();
    ranks.sort_unstable();
    ranks
}

fn suspect(
    end: &End,
    run: &Run,
    files: &Files,
    memory_kill: impl Fn(Option<u32>) -> Option<MemoryKill>,
) -> Suspect {
    let error_file = files.error_text(end.rank);
    if let Outcome::Signaled(signal) = end.outcome
        && let Some(sender) = run.passed_on.get(&signal)
    {
        let cause = Some(cause::Cause::passed_on(signal, sender.as_deref()));
        return Suspect { rank: end.rank, at: end.at, cause };
    }
    let cause = cause::cause(&Evidence {
        outcome: end.outcome,
        sent: &end.sent,
        stderr: &run.tails[end.rank].lines(),
        error_file: error_file.as_deref(),
        memory_kill: memory_kill(run.pids[end.rank]),
    });
    Suspect { rank: end.rank, at: end.at, cause }
}
