//! What the agent is told and what it answers.
#![expect(missing_docs, reason = "the names of fields say what they are")]

use super::{HangPolicy, Verdict};
use std::time::Duration;

/// What the agent is told about the run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Number of workers on this node, at least 1.
    pub workers: usize,
    /// Time between asking workers to stop and killing them.
    pub shutdown_timeout: Duration,
    /// The exit code by which a worker says that it stopped on request with a checkpoint written, if its program
    /// knows one. It is no failure.
    pub requeue_code: Option<i32>,
    /// When silence counts as a hang; none where it is not looked for.
    pub hang: Option<HangPolicy>,
    /// When the run must be over; none where it may take any time.
    pub limit: Option<TimeLimit>,
    /// Signals for the workers that came before this attempt and reached none that could heed them.
    pub notices: Vec<i32>,
}

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

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The worker's program is running (answer to [`Action::Start`]).
    Started { rank: usize },
    /// The worker's program could not be started (answer to [`Action::Start`]). `passing`: the system lacked something that it
    /// may have again, such as room for one more process.
    NotStarted { rank: usize, passing: bool },
    /// The worker ended; `at` is when its end was seen, which decides which failure came first. `lost_peer`: its last words are
    /// that another worker is gone.
    Ended {
        rank: usize,
        outcome: Outcome,
        at: Duration,
        lost_peer: bool,
    },
    /// The worker gave a sign of life at `at`. `writing`: it writes a checkpoint.
    Beat {
        rank: usize,
        at: Duration,
        writing: bool,
    },
    /// It is written down where the workers are that hang (answer to the [`Action::Inspect`] of this number).
    Inspected { number: u32 },
    /// The launcher was asked to stop by this signal (INT, TERM, HUP or QUIT).
    Stop { signal: i32 },
    /// A worker that has had the terminal died of Ctrl-C, which may have come to it instead of the launcher.
    Interrupted,
    /// Whoever stands behind the launcher has died: nobody is there to be asked or told anything.
    Abandoned,
    /// Another run has taken over the run directory, in which these workers must write no more.
    Evicted,
    /// The launcher received a signal that is for the workers (USR1 or USR2).
    Forward { signal: i32 },
    /// [`Agent::deadline`](super::Agent::deadline) has passed, or [`TICK`](super::TICK) since the last event.
    Timer,
}

/// What is to be done, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start this worker and answer with [`Event::Started`] or [`Event::NotStarted`].
    Start { rank: usize },
    /// Send this signal to the worker's process group.
    Signal { rank: usize, signal: i32 },
    /// The same as soon as the worker has a handler for it: before that it would die of it.
    Notify { rank: usize, signal: i32 },
    /// Write down where these workers are, which hang, and answer with [`Event::Inspected`] and this number. Takes a while.
    Inspect { ranks: Vec<usize>, number: u32 },
    /// Tell the user now.
    Tell(Notice),
    /// All workers have ended: kill what is left of their process groups.
    Sweep,
    /// The run is over.
    Finish(Verdict),
}

/// What the user is told while the run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A worker failed, and this many others are being stopped.
    Failed {
        rank: usize,
        outcome: Outcome,
        stopping: usize,
    },
    /// The launcher was asked to stop, and this many workers were told.
    Stopping { signal: i32, workers: usize },
    /// The time limit is near, and this many workers were asked to stop.
    TimeLimit { workers: usize, left: Duration },
    /// No progress; the ranks and how long they have been silent, the longest first.
    Hanging { silent: Vec<(usize, Duration)> },
    /// The workers that were taken for hanging make progress, or have ended well.
    Recovered,
    /// Nothing ran for this long, the launcher neither. `taken_back`: workers that were taken for hanging are not any more.
    Thawed { frozen: Duration, taken_back: bool },
    /// Their time is up, but these workers write a checkpoint, which is waited for; `left`: until the time limit, if there is one.
    Writing {
        ranks: Vec<usize>,
        left: Option<Duration>,
    },
    /// These workers are being killed: because their time, this long, is up, or because of a second request.
    Killing {
        ranks: Vec<usize>,
        timed_out: Option<Duration>,
    },
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
