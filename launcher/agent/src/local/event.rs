//! What the agent is told and what it answers.
#![expect(missing_docs, reason = "the names of fields say what they are")]

use super::end::Outcome;
use super::hang::HangPolicy;
use super::times::TimeLimit;
use super::verdict::Verdict;
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
