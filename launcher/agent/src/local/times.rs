//! Times for the agent's decisions.

use std::time::Duration;

/// Two INT or TERM signals within this time are one request: `timeout` signals its child and then its process
/// group, and a terminal's Ctrl-C can reach the launcher directly and through a wrapper. See [`Requests`](super::Requests).
pub const SAME_REQUEST: Duration = Duration::from_millis(250);

/// The longest time between two [`Event::Timer`](super::Event::Timer) of the driver.
pub const TICK: Duration = Duration::from_millis(500);

/// After a longer time without events, not even ticks, the launcher and probably the workers were frozen.
pub(super) const FROZEN: Duration = Duration::from_secs(2);

/// Time for hung workers to print their stacks after SIGABRT.
pub(super) const STACK_DUMP_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker whose last report of a write is younger may still write; it reports every half second.
pub(super) const STILL_WRITING: Duration = Duration::from_secs(10);

/// The longest wait for an inspection.
pub const INSPECTION: Duration = Duration::from_secs(30);

/// A worker that failed this much later may still be the cause: a process that ends by an exception closes
/// its connections first, and its peers may fail faster.
pub const SAME_MOMENT: Duration = Duration::from_secs(1);

/// Time for a training to end if workers of other nodes have failed. It cannot finish a step without them, and a
/// connection to a machine that is gone stays open: without this time the workers would wait for it.
pub(super) const ALONE: Duration = Duration::from_secs(2);

/// The longest wait for the end of a killed worker. A process that waits in the kernel for a device or a file server may
/// never end.
pub const KILLED: Duration = Duration::from_secs(10);

/// A time limit, on the agent's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// The time when workers are asked to stop, by `signal`.
    pub ask: Duration,
    /// The time when running workers are killed; later than `ask`.
    pub end: Duration,
    pub signal: i32,
}
