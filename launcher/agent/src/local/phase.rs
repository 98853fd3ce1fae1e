//! Why a group is being stopped.

use super::times::TimeLimit;
use crate::signals;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Stopping { why: Why, deadline: Option<Duration> },
    Finished,
}

/// Why the group is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Failure,
    NotStarted {
        rank: usize,
        passing: bool,
    },
    Signal {
        signal: i32,
    },
    /// The time limit is near.
    TimeLimit(TimeLimit),
    /// No progress; this worker stopped first.
    Hang {
        rank: usize,
    },
    /// A worker ended with the requeue code although the launcher had not been asked to stop.
    Requeue,
    /// Another run has taken over the run directory.
    Evicted,
}

impl Why {
    /// What a worker gets first.
    pub(super) fn signal(self) -> i32 {
        match self {
            Self::Signal { signal } => signal,
            Self::TimeLimit(limit) => limit.signal,
            Self::Evicted => signals::KILL,
            _ => signals::TERM,
        }
    }

    /// Whether the workers may still write a checkpoint because of which it is worth to wait: not where one has failed, since
    /// they cannot make it whole any more.
    pub(super) fn may_write(self) -> bool {
        matches!(self, Self::Signal { .. } | Self::Requeue)
    }
}
