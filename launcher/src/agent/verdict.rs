//! What a run came to: the cause, judged from how every worker ended.

use super::{End, Outcome};

/// Why a run ended as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Every worker exited with 0.
    Success,
    /// The workers stopped on request with a checkpoint written.
    Requeue,
    /// The launcher was asked to stop by this signal, and the workers died of it or had to be killed.
    Stopped { signal: i32 },
    /// The time limit was over before the workers had stopped.
    TimeIsUp,
    /// This worker failed first.
    Failed { rank: usize },
    /// The workers made no progress any more; this one was the first to be silent.
    Hung { rank: usize },
    /// This worker's program could not be started.
    NotStarted { rank: usize },
}

/// The cause of a run's end, and every worker's own end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) cause: Cause,
    /// By time, earliest first. Workers that never ran are not in it.
    pub(crate) ends: Vec<End>,
    /// Whether the launcher was asked to stop, even if that came after the cause.
    pub(crate) asked_to_stop: bool,
}

impl Verdict {
    /// Judges a finished group. `signal` is the stop signal by which the launcher was asked, if the stop began
    /// with one.
    pub(super) fn of(
        mut ends: Vec<End>,
        not_started: Option<usize>,
        signal: Option<i32>,
        requeue_code: Option<i32>,
    ) -> Self {
        ends.sort_by_key(|end| (end.at, end.rank));
        let requeue = |end: &End| matches!(end.outcome, Outcome::Exited(code) if requeue_code == Some(code));
        let clean = |end: &End| end.outcome == Outcome::Exited(0) || requeue(end);
        let cause = if let Some(rank) = not_started {
            Cause::NotStarted { rank }
        } else {
            // A worker that the agent stopped is never the cause; but where the agent stopped it because the
            // launcher was asked to, its death may come before the failures that follow from it.
            let first_bad = ends
                .iter()
                .find(|e| !clean(e) && (signal.is_some() || !e.stopped_by_agent()));
            match (first_bad, signal) {
                (Some(end), Some(signal)) if end.stopped_by_agent() => Cause::Stopped { signal },
                (Some(end), _) => Cause::Failed { rank: end.rank },
                (None, _) if ends.iter().any(requeue) => Cause::Requeue,
                (None, _) => Cause::Success,
            }
        };
        Self {
            cause,
            ends,
            asked_to_stop: signal.is_some(),
        }
    }

    /// How this rank ended, if it ran.
    pub(crate) fn end_of(&self, rank: usize) -> Option<&End> {
        self.ends.iter().find(|end| end.rank == rank)
    }
}
