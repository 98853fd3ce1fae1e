//! What an attempt came to: the cause, judged from how every worker ended.

use super::times::{SAME_MOMENT, TimeLimit};
use crate::signals;
use std::time::Duration;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(i32),
    Signaled(i32),
    /// Something else took its exit status. Counts as failed.
    Lost,
}

impl Outcome {
    /// Whether that is no failure: code 0, or `requeue`, that of a stop on request.
    pub fn is_well(self, requeue: Option<i32>) -> bool {
        matches!(self, Self::Exited(code) if code == 0 || requeue == Some(code))
    }
}

/// How one worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub rank: usize,
    pub outcome: Outcome,
    pub at: Duration,
    /// The stop signals it had been sent before, oldest first.
    pub sent: Vec<i32>,
    /// Whether its last words are that another worker is gone.
    pub lost_peer: bool,
}

impl End {
    /// Whether the worker died of a signal that the agent had sent it.
    pub fn stopped_by_agent(&self) -> bool {
        matches!(self.outcome, Outcome::Signaled(signal) if self.sent.contains(&signal))
    }
}

/// Why the group is being stopped. `Requeue`: a worker stopped with a checkpoint, and nobody had asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Failure,
    NotStarted { rank: usize, passing: bool },
    Signal { signal: i32 },
    TimeLimit(TimeLimit),
    Hang { rank: usize },
    Requeue,
    Evicted,
}

impl Why {
    /// The first signal to a worker.
    pub(super) fn signal(self) -> i32 {
        match self {
            Self::Signal { signal } => signal,
            Self::TimeLimit(limit) => limit.signal,
            Self::Evicted => signals::KILL,
            _ => signals::TERM,
        }
    }

    /// Whether a checkpoint write is worth waiting for: others cannot complete it where a worker has failed.
    pub(super) fn may_write(self) -> bool {
        matches!(self, Self::Signal { .. } | Self::Requeue)
    }
}

/// Why a run ended as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// All workers ended with code 0.
    Success,
    /// The workers stopped on request with a checkpoint written.
    Requeue,
    /// The launcher was asked to stop by this signal, and the workers died of it or had to be killed.
    Stopped { signal: i32 },
    /// The time limit was over before the workers had stopped.
    TimeIsUp,
    /// This worker failed first.
    Failed { rank: usize },
    /// This worker was the first to be silent.
    Hung { rank: usize },
    /// Another run has taken over the run directory.
    Evicted,
    /// `passing`: for want of something that may be there again.
    NotStarted { rank: usize, passing: bool },
}

/// What asked the workers to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The last signal to the launcher.
    Request { signal: i32 },
    /// The time limit came near.
    TimeLimit,
}

/// The cause of an attempt's end, and every worker's own end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub cause: Cause,
    /// Earliest first. Workers that never ran are not in it.
    pub ends: Vec<End>,
    /// Whether the workers were to stop, even if that came after the cause.
    pub asked: Option<Asked>,
    /// Signals that these workers did not handle, for those of another attempt.
    pub notices: Vec<i32>,
}

impl Verdict {
    /// Judges a finished group of `workers`, which was stopped because of `why`, if it was.
    pub(super) fn of(mut ends: Vec<End>, workers: usize, why: Option<Why>, requeue: Option<i32>) -> Self {
        ends.sort_by_key(|end| (end.at, end.rank));
        let requeued = |end: &End| matches!(end.outcome, Outcome::Exited(code) if requeue == Some(code));
        let clean = |end: &End| end.outcome.is_well(requeue);
        let (asked, stopped) = match why {
            Some(Why::Signal { signal }) => (Some(signal), Cause::Stopped { signal }),
            Some(Why::TimeLimit(limit)) => (Some(limit.signal), Cause::TimeIsUp),
            _ => (None, Cause::TimeIsUp),
        };
        // The same signal may have come from elsewhere a moment earlier: from a batch system, or from the terminal.
        let obeyed = |end: &End| {
            asked.is_some_and(|signal| end.stopped_by_agent() || end.outcome == Outcome::Signaled(signal))
        };
        // A worker that the agent stopped is not the cause, except of the failures that follow a request to stop.
        let first_bad = ends.iter().find(|end| !clean(end) && (asked.is_some() || !end.stopped_by_agent()));
        let cause = match (why, first_bad) {
            (Some(Why::NotStarted { rank, passing }), _) => Cause::NotStarted { rank, passing },
            (Some(Why::Evicted), _) => Cause::Evicted,
            (Some(Why::Hang { rank }), _) if !ends.iter().all(clean) => Cause::Hung { rank },
            (_, Some(end)) if obeyed(end) => stopped,
            (_, Some(end)) => Cause::Failed { rank: to_blame(end, &ends, clean) },
            (_, None) if ends.iter().any(requeued) => Cause::Requeue,
            (_, None) if ends.len() < workers => stopped,
            (_, None) => Cause::Success,
        };
        Self { cause, ends, asked: None, notices: Vec::new() }
    }

    /// How this rank ended, if it ran.
    pub fn end_of(&self, rank: usize) -> Option<&End> {
        self.ends.iter().find(|end| end.rank == rank)
    }
}

/// The rank because of which `first` failed: where that lost another, one that failed in the same moment by itself.
fn to_blame(first: &End, ends: &[End], clean: impl Fn(&End) -> bool) -> usize {
    let own = |end: &&End| {
        !clean(end) && !end.lost_peer && end.sent.is_empty() && end.at.saturating_sub(first.at) <= SAME_MOMENT
    };
    let blamed = first.lost_peer.then(|| ends.iter().find(own)).flatten();
    blamed.unwrap_or(first).rank
}
