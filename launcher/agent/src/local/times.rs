//! The times by which the agent decides.

use std::time::Duration;

/// Two INT or TERM signals closer together than this are one request: `timeout` signals its child and then its
/// whole process group, and a terminal's Ctrl-C can reach the launcher directly and through a wrapper. Taking the
/// echo for a second request would kill workers in the middle of their checkpoint.
pub const SAME_REQUEST: Duration = Duration::from_millis(250);

/// The driver sends [`Event::Timer`](super::Event::Timer) at least so often.
pub const TICK: Duration = Duration::from_millis(500);

/// Where the launcher heard nothing for longer, not even a tick, it was stopped (SIGSTOP, a container that is paused, a job
/// that is suspended), and the workers most likely too.
pub(super) const FROZEN: Duration = Duration::from_secs(2);

/// Workers that hang have so long to say where, after SIGABRT.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);
/// A worker that was heard of writing a checkpoint so long ago may still do it; its signs come every half second.
pub(super) const STILL_WRITING: Duration = Duration::from_secs(10);

/// An inspection that takes longer is not waited for.
pub const INSPECTION: Duration = Duration::from_secs(30);

/// A worker that failed this much later may still be why another one lost it: a process that dies of an exception closes its
/// connections first and is gone a moment later, and its peers may be faster to fail.
pub const SAME_MOMENT: Duration = Duration::from_secs(1);

/// A time limit, on the agent's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// When workers are asked to stop.
    pub ask: Duration,
    /// When those are killed that still run; later than `ask`.
    pub end: Duration,
    /// The signal that asks.
    pub signal: i32,
}
