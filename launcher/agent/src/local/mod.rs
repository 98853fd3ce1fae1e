//! The agent: what to do about the workers of one node, and nothing of how it is done.
//!
//! `Agent::on(event, now)` is a pure state machine. The driver tells it what happened and when, carries out the actions it
//! answers with, and calls it again at [`Agent::deadline`], and at least once in a [`TICK`]. Times are durations since the launch
//! began, on the monotonic clock.
//!
//! The rules: workers are started one after the other; the first failure sends SIGTERM to every other worker at once and SIGKILL
//! after the shutdown timeout, but where a worker only lost a peer that peer has a moment to end by itself; a stop signal to the
//! launcher is forwarded, with the same timeout, beyond which a checkpoint that is being written is waited for; a second INT or
//! TERM kills at once; USR1 and USR2 are passed on; workers that make no progress are stopped, unless they make some while their
//! stacks are collected; shortly before the time limit workers are asked to stop; where the launcher itself did not run for a
//! while, all times begin anew but that limit's; when the last worker has ended, what is left of the process groups is killed and
//! a verdict is given, once. An agent is one attempt; [`Restarts`] decides whether there is another.

mod agent;
mod event;
mod hang;
mod restart;
mod state;
mod stop;
mod times;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use event::{Action, Event, Notice, Policy};
pub use hang::HangPolicy;
pub use restart::{Next, RestartPolicy, Restarts, Resumption};
pub use state::Agent;
pub use times::{INSPECTION, SAME_MOMENT, SAME_REQUEST, TICK, TimeLimit};
pub use verdict::{Asked, Cause, End, Outcome, Verdict};
