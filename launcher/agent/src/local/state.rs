//! The agent's state of one node's worker group.

use super::event::{Action, Notice, Policy};
use super::hang::Progress;
use super::verdict::{End, Outcome, StopReason, StopSource};
use crate::signals;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Running,
    Stopping(StopReason),
    Finished,
}

#[derive(Clone, Debug, Default)]
pub(super) enum WorkerState {
    #[default]
    Waiting,
    Starting,
    Running,
    NeverStarted,
    Ended(End),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Stop signals sent so far, with their times.
    pub(super) sent: Vec<(i32, Duration)>,
    /// The time of the last report of a checkpoint write, unless a normal heartbeat came since.
    pub(super) writing: Option<Duration>,
}

/// A suspected hang during the inspection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    /// The rank that was silent first.
    pub(super) rank: usize,
    pub(super) since: Duration,
    pub(super) until: Duration,
    /// The inspection's number: an answer to an earlier inspection may come late.
    pub(super) number: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub(super) policy: Policy,
    pub(super) workers: Vec<Worker>,
    pub(super) phase: Phase,
    /// While stopping: when the workers are killed; `None` after that.
    pub(super) stop_by: Option<Duration>,
    /// When the first worker got SIGKILL.
    pub(super) killed_at: Option<Duration>,
    /// The time that freezes have added to the stop.
    pub(super) stop_delay: Duration,
    pub(super) latest: Duration,
    /// Whether INT or TERM came.
    pub(super) is_asked: bool,
    /// When a worker at the terminal took a Ctrl-C for the launcher.
    pub(super) interrupted: Option<Duration>,
    pub(super) stop_source: Option<StopSource>,
    /// Signals for the workers during this attempt that may not be handled.
    pub(super) notices: Vec<i32>,
    pub(super) progress: Progress,
    /// Set only while running.
    pub(super) suspicion: Option<Suspicion>,
    pub(super) inspections: u32,
    /// A failure that may follow from another, and the end of the wait for that. Only while running.
    pub(super) lost_peer: Option<(usize, Outcome, Duration)>,
    /// Whether a message to the user has named the write that is awaited.
    pub(super) write_reported: bool,
    /// Actions decided but not returned yet.
    pub(super) actions: Vec<Action>,
}

impl Agent {
    /// Returns a group before its start. Call [`Agent::begin`] next.
    pub fn new(policy: Policy) -> Self {
        Self {
            workers: vec![Worker::default(); policy.workers],
            progress: Progress::new(policy.hang, policy.workers),
            policy,
            ..Self::default()
        }
    }

    pub(super) fn running(&self) -> Vec<usize> {
        let ranks = 0..self.workers.len();
        ranks.filter(|&rank| matches!(self.workers[rank].state, WorkerState::Running)).collect()
    }

    pub(super) fn is_all_started(&self) -> bool {
        let waits = |worker: &Worker| matches!(worker.state, WorkerState::Waiting | WorkerState::Starting);
        !self.workers.iter().any(waits)
    }

    pub(super) fn send(&mut self, rank: usize, signal: i32, now: Duration) {
        if signal == signals::KILL {
            self.killed_at.get_or_insert(now);
        }
        self.workers[rank].sent.push((signal, now));
        self.actions.push(Action::Signal { rank, signal });
    }

    /// Sends a signal to all running workers, and returns their ranks.
    pub(super) fn send_to_all(&mut self, signal: i32, now: Duration) -> Vec<usize> {
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, signal, now);
        }
        ranks
    }

    pub(super) fn say(&mut self, notice: Notice) {
        self.actions.push(Action::Tell(notice));
    }
}
