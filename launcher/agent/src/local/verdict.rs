//! The verdict of an attempt: the cause, judged from every worker's end.

use super::times::{SAME_MOMENT, TimeLimit};
use crate::signals;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Exited(i32),
    Signaled(i32),
    /// Another process took the exit status. Counts as failed.
    Lost,
}

impl Outcome {
    /// Returns whether the outcome is no failure: code 0, or `requeue`, the code of a stop on request.
    pub fn is_well(self, requeue: Option<i32>) -> bool {
        matches!(self, Self::Exited(code) if code == 0 || requeue == Some(code))
    }
}

/// The end of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub rank: usize,
    pub outcome: Outcome,
    pub at: Duration,
    /// Stop signals sent before the end, oldest first.
    pub sent: Vec<i32>,
    /// Whether the worker's last messages report another worker as gone.
    pub lost_peer: bool,
}

impl End {
    /// Returns whether the worker died of a signal that the agent had sent.
    pub fn stopped_by_agent(&self) -> bool {
        matches!(self.outcome, Outcome::Signaled(signal) if self.sent.contains(&signal))
    }
}

/// Why the group is being stopped. `Requeue`: a worker stopped with a checkpoint, without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    Failure,
    NotStarted {
        rank: usize,
        temporary: bool,
    },
    Signal {
        signal: i32,
    },
    TimeLimit(TimeLimit),
    Hang {
        rank: usize,
    },
    Requeue,
    /// `writing`: whether a worker wrote a checkpoint at that time.
    OthersFailed {
        writing: bool,
    },
    Evicted,
}

impl StopReason {
    /// Returns the first signal to a worker.
    pub(super) fn signal(self) -> i32 {
        match self {
            Self::Signal { signal } => signal,
            Self::TimeLimit(limit) => limit.signal,
            Self::Evicted => signals::KILL,
            _ => signals::TERM,
        }
    }

    /// Returns whether to wait for a checkpoint write: after a failure, the others cannot complete it.
    pub(super) fn waits_for_write(self) -> bool {
        matches!(self, Self::Signal { .. } | Self::Requeue)
    }
}

/// The cause of an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// All workers ended with code 0, and no program was asked to stop.
    Success,
    /// The workers stopped on request with a checkpoint written, or a program ended with code 0 at its time limit.
    Requeue,
    /// The launcher was asked to stop by this signal, and the workers died of it, were killed, or ended with code 0.
    Stopped { signal: i32 },
    /// The time limit passed before the workers had stopped.
    TimeIsUp,
    /// This worker failed first.
    Failed { rank: usize },
    /// This worker was the first to be silent.
    Hung { rank: usize },
    /// Workers of another node failed or were lost.
    OthersFailed,
    /// Another run has taken over the run directory.
    Evicted,
    /// `temporary`: a resource was missing, so a retry may succeed.
    NotStarted { rank: usize, temporary: bool },
}

/// The source of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSource {
    /// The last signal to the launcher.
    Request { signal: i32 },
    /// The time limit came near.
    TimeLimit,
}

/// The cause of an attempt's end, and every worker's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub cause: Cause,
    /// Earliest first, without workers that never ran.
    pub ends: Vec<End>,
    /// Whether the workers were asked to stop, also after the cause.
    pub stop_source: Option<StopSource>,
    /// For [`Cause::Hung`]: the last heartbeat of that rank.
    pub silent_since: Option<Duration>,
    /// Signals that these workers did not handle, for the next attempt.
    pub notices: Vec<i32>,
}

impl Cause {
    /// Returns whether INT or TERM stopped the workers.
    pub fn is_stopped(self) -> bool {
        matches!(self, Self::Stopped { signal } if signals::URGENT.contains(&signal))
    }

    /// Returns the worker that the cause names.
    pub(crate) fn rank(self) -> Option<usize> {
        match self {
            Self::Failed { rank } | Self::Hung { rank } | Self::NotStarted { rank, .. } => Some(rank),
            _ => None,
        }
    }
}

impl Verdict {
    /// Judges a finished group of `workers`; `reason` is the reason of its stop.
    pub(super) fn of(
        mut ends: Vec<End>,
        workers: usize,
        reason: Option<StopReason>,
        requeue: Option<i32>,
    ) -> Self {
        ends.sort_by_key(|end| (end.at, end.rank));
        let requeued = |end: &End| matches!(end.outcome, Outcome::Exited(code) if requeue == Some(code));
        let clean = |end: &End| end.outcome.is_well(requeue);
        let (request, stopped) = match reason {
            Some(StopReason::Signal { signal }) => (Some(signal), Cause::Stopped { signal }),
            Some(StopReason::TimeLimit(limit)) => (Some(limit.signal), Cause::TimeIsUp),
            Some(StopReason::OthersFailed { .. }) => (None, Cause::OthersFailed),
            _ => (None, Cause::TimeIsUp),
        };
        let all_done = ends.len() == workers && ends.iter().all(|end| end.outcome == Outcome::Exited(0));
        // The same signal may have come a moment earlier from a batch system or the terminal.
        let obeyed = |end: &End| {
            request.is_some_and(|signal| end.stopped_by_agent() || end.outcome == Outcome::Signaled(signal))
        };
        let is_for_others = matches!(reason, Some(StopReason::OthersFailed { .. }));
        // Other nodes may have caused the loss of a peer, and caused the stop signal.
        let by_others = |end: &End| is_for_others && (end.lost_peer || !end.sent.is_empty());
        // A worker stopped by the agent is not the cause, except of failures after a request to stop.
        let is_cause = |end: &End| (request.is_some() || !end.stopped_by_agent()) && !by_others(end);
        let first_bad = ends.iter().find(|end| !clean(end) && is_cause(end));
        let cause = match (reason, first_bad) {
            (Some(StopReason::NotStarted { rank, temporary }), _) => Cause::NotStarted { rank, temporary },
            (Some(StopReason::Evicted), _) => Cause::Evicted,
            (Some(StopReason::Hang { rank }), _) if !ends.iter().all(clean) => Cause::Hung { rank },
            (_, Some(end)) if obeyed(end) => stopped,
            (_, Some(end)) => Cause::Failed { rank: to_blame(end, &ends, clean) },
            (_, None) if is_for_others && !ends.iter().all(clean) => stopped,
            (_, None) if ends.iter().any(requeued) => Cause::Requeue,
            // Other nodes' workers stopped with a checkpoint, and these were killed before they did.
            (Some(StopReason::Requeue), None) if !all_done => Cause::Requeue,
            (_, None) if ends.len() < workers => stopped,
            // A program that ends softly on request has not finished its work. A training says by its code what it has done.
            (Some(StopReason::Signal { .. }), None) if requeue.is_none() => stopped,
            (Some(StopReason::TimeLimit(_)), None) if requeue.is_none() => Cause::Requeue,
            (_, None) => Cause::Success,
        };
        Self { cause, ends, stop_source: None, silent_since: None, notices: Vec::new() }
    }

    /// Returns the end of this rank, if it ran.
    pub fn end_of(&self, rank: usize) -> Option<&End> {
        self.ends.iter().find(|end| end.rank == rank)
    }
}

/// Returns the rank to blame for `first`: if it lost a peer, a worker that failed by itself at that time.
fn to_blame(first: &End, ends: &[End], clean: impl Fn(&End) -> bool) -> usize {
    let own = |end: &&End| {
        !clean(end) && !end.lost_peer && end.sent.is_empty() && end.at.saturating_sub(first.at) <= SAME_MOMENT
    };
    let blamed = first.lost_peer.then(|| ends.iter().find(own)).flatten();
    blamed.unwrap_or(first).rank
}
