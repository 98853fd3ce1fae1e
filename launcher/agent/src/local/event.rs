//! Events for the agent, and its actions.

use super::hang::HangPolicy;
use super::times::TimeLimit;
use super::verdict::{Outcome, Verdict};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Number of workers on this node, at least 1.
    pub workers: usize,
    /// Time between asking workers to stop and killing them.
    pub shutdown_timeout: Duration,
    /// The exit code of a worker that stopped on request with a checkpoint; no failure. `None` for programs.
    pub requeue_code: Option<i32>,
    pub hang: Option<HangPolicy>,
    pub limit: Option<TimeLimit>,
    /// Signals for the workers that came before this attempt and are not handled yet.
    pub notices: Vec<i32>,
}

/// An event of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The answer to [`Action::Start`].
    Started { rank: usize },
    /// The answer to [`Action::Start`]. `temporary`: a retry may succeed, because a resource was missing.
    NotStarted { rank: usize, temporary: bool },
    /// `at` is when the end was seen. `lost_peer`: its last messages report another worker as gone.
    Ended { rank: usize, outcome: Outcome, at: Duration, lost_peer: bool },
    /// A heartbeat. `writing`: the worker writes a checkpoint.
    Beat { rank: usize, at: Duration, writing: bool },
    /// The answer to the [`Action::Inspect`] of this number.
    Inspected { number: u32 },
    /// This launcher, or that of another node, was asked to stop by this signal (INT, TERM, HUP or QUIT). `again`: for a
    /// second time, see [`Requests`](super::Requests).
    Stop { signal: i32, again: bool },
    /// A worker that has had the terminal died of Ctrl-C, perhaps instead of the launcher.
    Interrupted,
    /// The guardian has died.
    Abandoned,
    /// Another run has taken over the run directory: these workers must not write there any more.
    Evicted,
    /// Workers of another node failed or were lost: these workers cannot continue.
    OthersFailed,
    /// Workers of another node stopped with a checkpoint, so these workers are about to.
    OthersRequeue,
    /// The node's lease has ended: another epoch may begin, so no worker may run.
    LeaseEnded,
    /// A node has joined or leaves: workers of a training stop with a checkpoint.
    Admit,
    /// A signal for the workers (USR1 or USR2).
    Forward { signal: i32 },
    /// [`Agent::deadline`](super::Agent::deadline) has passed, or [`TICK`](super::TICK) since the last event.
    Timer,
}

/// An action for the driver, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start this worker and answer with [`Event::Started`] or [`Event::NotStarted`].
    Start { rank: usize },
    /// Send this signal to the worker's process group.
    Signal { rank: usize, signal: i32 },
    /// Send this signal when the worker has a handler for it: without one, the worker would die.
    Notify { rank: usize, signal: i32 },
    /// Collect the stacks of these workers, which takes time, and answer with [`Event::Inspected`].
    Inspect { ranks: Vec<usize>, number: u32 },
    /// Show this to the user.
    Tell(Notice),
    /// All workers have ended: kill the rest of their process groups.
    Sweep,
    /// The attempt is over.
    Finish(Verdict),
}

/// Messages for the user during the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A worker failed, and this number of others are being stopped.
    Failed { rank: usize, outcome: Outcome, stopping: usize },
    /// The launcher was asked to stop, and asked this number of workers.
    Stopping { signal: i32, workers: usize },
    /// The time limit is near, and this number of workers were asked to stop.
    TimeLimit { workers: usize, left: Duration },
    /// The ranks with the time since their last heartbeat, the longest first.
    Hanging { silent: Vec<(usize, Duration)> },
    /// The workers that seemed to hang make progress, or have ended well.
    Recovered,
    /// No process ran for this long, not even the launcher. `hang_dropped`: a suspected hang is dropped.
    Resumed { frozen: Duration, hang_dropped: bool },
    /// The shutdown timeout is over, but these workers write a checkpoint; `left`: until the time limit.
    Writing { ranks: Vec<usize>, left: Option<Duration> },
    /// These workers were killed, but do not end: the launcher does not wait for them any more.
    Stuck { ranks: Vec<usize> },
    /// These workers are killed.
    Killing { ranks: Vec<usize>, why: KillReason },
}

/// Why workers are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// They still ran after this time.
    TimedOut(Duration),
    /// A second request to stop.
    Requested,
    /// The guardian has died, the process that the user has started.
    Abandoned,
    /// The node's lease has ended.
    LeaseEnded,
}
