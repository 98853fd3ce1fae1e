//! The agent: decides about the workers of one node, but does not act.
//!
//! `Agent::on(event, now)` is a pure state machine. The driver passes events with their times, carries out
//! the returned actions, and calls it again at [`Agent::deadline`], and at least once per [`TICK`]. Times are
//! durations since the start of the launch, on the monotonic clock. An agent is one attempt; [`Restarts`]
//! decides about the next.
//!
//! - Workers start in turn. After the last end, process groups are killed and the verdict follows.
//! - The first failure sends SIGTERM to the others, later SIGKILL. A lost peer gets time to fail first.
//! - A stop signal is forwarded, later SIGKILL; a second request ([`Requests`]) kills. A checkpoint write gets more
//!   time.
//! - USR1 and USR2 are passed on. Hung workers are stopped if they do not beat during the inspection.
//! - Before the time limit, workers are asked to stop. After a freeze, all other times restart.

mod agent;
mod event;
mod hang;
mod request;
mod restart;
mod state;
mod stop;
mod times;
mod verdict;

#[cfg(test)]
mod tests;

pub use event::{Action, Event, KillReason, Notice, Policy};
pub use hang::HangPolicy;
pub use request::{Requests, Way};
pub(crate) use restart::{FailedAttempt, LASTING};
pub use restart::{Next, RestartPolicy, Restarts, Resumption};
pub use state::Agent;
pub use times::{INSPECTION, KILLED, SAME_MOMENT, SAME_REQUEST, TICK, TimeLimit};
pub use verdict::{Cause, End, Outcome, StopSource, Verdict};
