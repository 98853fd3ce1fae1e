//! How workers end.
#![expect(missing_docs, reason = "the names of fields say what they are")]

use std::time::Duration;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Signaled(i32),
    /// It is gone and the system does not say how, because something else took its exit status. Counts as failed.
    Lost,
}

/// How one worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub rank: usize,
    pub outcome: Outcome,
    pub at: Duration,
    /// The stop signals it had been sent before it ended, oldest first.
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
