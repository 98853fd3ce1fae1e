//! What the agent knows of one node's worker group.

use super::end::{End, Outcome};
use super::event::{Action, Notice, Policy};
use super::hang::Progress;
use super::phase::Phase;
use super::verdict::Asked;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) enum WorkerState {
    Waiting,
    Starting,
    Running,
    NeverStarted,
    Ended(End),
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Stop signals sent so far, and when.
    pub(super) sent: Vec<(i32, Duration)>,
    /// When it was last heard of writing a checkpoint, unless it has gone on since.
    pub(super) writing: Option<Duration>,
}

/// A failure that may only follow from another, which is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostPeer {
    pub(super) rank: usize,
    pub(super) outcome: Outcome,
    pub(super) until: Duration,
}

/// Workers that are taken for hanging and are being inspected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    /// The one that was silent first.
    pub(super) rank: usize,
    pub(super) since: Duration,
    pub(super) until: Duration,
    /// That of its inspection: an earlier one may be answered late.
    pub(super) number: u32,
}

impl Suspicion {
    /// The same after nothing ran for so long.
    pub(super) fn thaw(self, frozen: Duration) -> Self {
        Self {
            since: self.since + frozen,
            until: self.until + frozen,
            ..self
        }
    }
}

/// The state of one node's worker group.
#[derive(Clone, Debug)]
pub struct Agent {
    pub(super) policy: Policy,
    pub(super) workers: Vec<Worker>,
    pub(super) phase: Phase,
    /// When something happened last.
    pub(super) latest: Duration,
    /// When the first INT or TERM came.
    pub(super) interrupted: Option<Duration>,
    /// Whether the workers were to stop, also if that came after the cause of their end.
    pub(super) asked: Option<Asked>,
    /// What came for the workers during this attempt and was perhaps not heeded.
    pub(super) notices: Vec<i32>,
    /// Where hangs are looked for.
    pub(super) progress: Option<Progress>,
    /// Only while running.
    pub(super) suspicion: Option<Suspicion>,
    /// Inspections so far.
    pub(super) inspections: u32,
    /// How much time for stopping freezes have given on top.
    pub(super) stop_put_off: Duration,
    /// Only while running.
    pub(super) lost_peer: Option<LostPeer>,
    /// Whether the user knows that a write is waited for.
    pub(super) is_write_told: bool,
    /// Decided and not handed out yet.
    pub(super) actions: Vec<Action>,
}

impl Agent {
    /// A group of which nothing has been started. Call [`Agent::begin`] next.
    pub fn new(policy: Policy) -> Self {
        let workers = vec![
            Worker {
                state: WorkerState::Waiting,
                sent: Vec::new(),
                writing: None,
            };
            policy.workers
        ];
        let progress = policy.hang.map(|hang| Progress::new(hang, policy.workers));
        Self {
            policy,
            workers,
            progress,
            phase: Phase::Running,
            latest: Duration::ZERO,
            interrupted: None,
            asked: None,
            notices: Vec::new(),
            suspicion: None,
            inspections: 0,
            stop_put_off: Duration::ZERO,
            lost_peer: None,
            is_write_told: false,
            actions: Vec::new(),
        }
    }

    pub(super) fn running(&self) -> Vec<usize> {
        self.ranks_where(|state| matches!(state, WorkerState::Running))
    }

    pub(super) fn ranks_where(&self, wanted: impl Fn(&WorkerState) -> bool) -> Vec<usize> {
        (0..self.workers.len())
            .filter(|&rank| wanted(&self.workers[rank].state))
            .collect()
    }

    /// Whether no worker waits for its start.
    pub(super) fn is_all_started(&self) -> bool {
        self.ranks_where(|state| matches!(state, WorkerState::Waiting | WorkerState::Starting))
            .is_empty()
    }

    pub(super) fn send(&mut self, rank: usize, signal: i32, now: Duration) {
        self.workers[rank].sent.push((signal, now));
        self.actions.push(Action::Signal { rank, signal });
    }

    pub(super) fn say(&mut self, notice: Notice) {
        self.actions.push(Action::Tell(notice));
    }
}
