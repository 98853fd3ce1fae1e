//! The times by which the agent decides.

use std::time::Duration;

/// Two INT or TERM signals closer together than this are one request: `timeout` signals its child and then its process group,
/// and a terminal's Ctrl-C can reach the launcher directly and through a wrapper.
pub const SAME_REQUEST: Duration = Duration::from_millis(250);

/// The driver sends [`Event::Timer`](super::Event::Timer) at least so often.
pub const TICK: Duration = Duration::from_millis(500);

/// If the launcher heard nothing for longer, not even a tick, it was stopped, and the workers most likely too.
pub(super) const FROZEN: Duration = Duration::from_secs(2);

/// Time for workers that hang to print their stacks, after SIGABRT.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);

/// A worker that reported a checkpoint write so long ago may still be writing; it reports every half second.
pub(super) const STILL_WRITING: Duration = Duration::from_secs(10);

/// An inspection that takes longer is not waited for.
pub const INSPECTION: Duration = Duration::from_secs(30);

/// A worker that failed this much later may still be why another one lost it: a process that dies of an exception closes its
/// connections first, and its peers may be faster to fail.
pub const SAME_MOMENT: Duration = Duration::from_secs(1);

/// A time limit, on the agent's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// When workers are asked to stop, by `signal`.
    pub ask: Duration,
    /// When those are killed that still run; later than `ask`.
    pub end: Duration,
    pub signal: i32,
}
