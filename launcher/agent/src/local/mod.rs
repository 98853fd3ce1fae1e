//! The agent: what to do about the workers of one node, and nothing of how it is done.
//!
//! `Agent::on(event, now)` is a pure state machine. It holds no process, socket, thread or clock: the driver tells
//! it what happened and when, carries out the actions it answers with, and calls it again at
//! [`Agent::deadline`], and at least once in a [`TICK`]. Times are durations since the launch began, on the monotonic clock.
//!
//! The rules: workers are started one after the other; the first failure sends SIGTERM to every other worker at
//! once and SIGKILL after the shutdown timeout, but where a worker only lost a peer that peer has a moment to end by itself;
//! a stop signal to the launcher is forwarded, with the same timeout, beyond which a checkpoint that is being written is waited
//! for; a second INT or TERM kills at once; USR1 and USR2 are passed on; workers that make no progress are stopped, unless they
//! make some while it is found out where they are; shortly before the time limit workers are asked to stop; where the launcher
//! itself did not run for a while, all times begin anew but that limit's; when the last worker has ended, what is left
//! of the process groups is killed and a verdict is given, once. An agent is one attempt; [`Restarts`] decides
//! whether there is another.

mod event;
mod hang;
mod restart;
mod stop;
mod suspicion;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use event::{Action, End, Event, Notice, Outcome, Policy, TimeLimit};
pub use hang::HangPolicy;
pub use restart::{Next, RestartPolicy, Restarts, Resumption};
pub use suspicion::INSPECTION;
pub use verdict::{Asked, Cause, SAME_MOMENT, Verdict};

use crate::signals;
use hang::Progress;
use std::time::Duration;
use stop::{Phase, Why};
use suspicion::Suspicion;

/// Two INT or TERM signals closer together than this are one request: `timeout` signals its child and then its
/// whole process group, and a terminal's Ctrl-C can reach the launcher directly and through a wrapper. Taking the
/// echo for a second request would kill workers in the middle of their checkpoint.
pub const SAME_REQUEST: Duration = Duration::from_millis(250);

/// The driver sends [`Event::Timer`] at least so often.
pub const TICK: Duration = Duration::from_millis(500);

/// Where the launcher heard nothing for longer, not even a tick, it was stopped (SIGSTOP, a container that is paused, a job
/// that is suspended), and the workers most likely too.
const FROZEN: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
enum WorkerState {
    Waiting,
    Starting,
    Running,
    NeverStarted,
    Ended(End),
}

#[derive(Clone, Debug)]
struct Worker {
    state: WorkerState,
    /// Stop signals sent so far, and when.
    sent: Vec<(i32, Duration)>,
    /// When it was last heard of writing a checkpoint, unless it has gone on since.
    writing: Option<Duration>,
}

/// A failure that may only follow from another, which is waited for.
#[derive(Clone, Copy, Debug)]
struct LostPeer {
    rank: usize,
    outcome: Outcome,
    until: Duration,
}

/// The state of one node's worker group.
#[derive(Clone, Debug)]
pub struct Agent {
    policy: Policy,
    workers: Vec<Worker>,
    phase: Phase,
    /// When something happened last.
    latest: Duration,
    /// When the first INT or TERM came.
    interrupted: Option<Duration>,
    /// Whether the workers were to stop, also if that came after the cause of their end.
    asked: Option<Asked>,
    /// What came for the workers during this attempt and was perhaps not heeded.
    notices: Vec<i32>,
    /// Where hangs are looked for.
    progress: Option<Progress>,
    /// Only while running.
    suspicion: Option<Suspicion>,
    /// Inspections so far.
    inspections: u32,
    /// How much time for stopping freezes have given on top.
    stop_put_off: Duration,
    /// Only while running.
    lost_peer: Option<LostPeer>,
    /// Whether the user knows that a write is waited for.
    is_write_told: bool,
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
        }
    }

    /// The first actions.
    pub fn begin(&mut self, now: Duration) -> Vec<Action> {
        self.latest = now;
        let mut actions = Vec::new();
        self.start_next(now, &mut actions);
        self.finish_if_over(&mut actions);
        actions
    }

    /// When the driver has to send [`Event::Timer`], if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Stopping { deadline, .. } => *deadline,
            Phase::Running => {
                let hang = match &self.suspicion {
                    Some(suspicion) => Some(suspicion.until()),
                    None => self.progress.as_ref().and_then(Progress::deadline),
                };
                let lost_peer = self.lost_peer.map(|lost| lost.until);
                let limit = self.policy.limit.map(|limit| limit.ask);
                hang.into_iter().chain(lost_peer).chain(limit).min()
            }
            Phase::Finished => None,
        }
    }

    /// Takes in what happened at `now` and answers what to do. Events that no longer matter (a late timer, a
    /// signal after the end) are answered with nothing.
    pub fn on(&mut self, event: &Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.phase == Phase::Finished {
            return actions;
        }
        let before = std::mem::replace(&mut self.latest, now);
        let frozen = now.saturating_sub(before);
        if frozen > FROZEN {
            self.thaw(frozen, now, &mut actions);
        }
        match *event {
            Event::Started { rank } => self.started(rank, now, &mut actions),
            Event::NotStarted { rank, passing } => self.not_started(rank, passing, now, &mut actions),
            Event::Ended {
                rank,
                outcome,
                at,
                lost_peer,
            } => {
                let end = self.end(rank, outcome, at, lost_peer);
                self.ended(end, now, &mut actions);
            }
            Event::Stop { signal } => self.stop_requested(signal, now, &mut actions),
            Event::Interrupted if self.phase == Phase::Running => {
                self.stop_requested(signals::INT, now, &mut actions);
            }
            // It died of what it was sent while the group is being stopped.
            Event::Interrupted => {}
            Event::Abandoned => self.abandoned(now, &mut actions),
            Event::Evicted => self.evicted(now, &mut actions),
            Event::Forward { signal } => self.forward(signal, &mut actions),
            Event::Beat { rank, at, writing } => self.beat(rank, at, writing, now, &mut actions),
            Event::Inspected { number } => self.inspected(number, now, &mut actions),
            Event::Timer if self.phase == Phase::Running => self.timer_while_running(now, &mut actions),
            Event::Timer => self.timer_while_stopping(now, &mut actions),
        }
        self.finish_if_over(&mut actions);
        actions
    }

    fn timer_while_running(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match (self.policy.limit, self.lost_peer) {
            (Some(limit), _) if limit.ask <= now => self.time_is_up(limit, now, actions),
            (_, Some(lost)) if lost.until <= now => self.failed(lost.rank, lost.outcome, now, actions),
            _ => self.look_for_a_hang(now, actions),
        }
    }

    fn running(&self) -> Vec<usize> {
        self.ranks_where(|state| matches!(state, WorkerState::Running))
    }

    fn ranks_where(&self, wanted: impl Fn(&WorkerState) -> bool) -> Vec<usize> {
        (0..self.workers.len())
            .filter(|&rank| wanted(&self.workers[rank].state))
            .collect()
    }

    fn start_next(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(limit) = self.policy.limit.filter(|limit| limit.ask <= now) {
            return self.time_is_up(limit, now, actions);
        }
        if let Some(rank) = self
            .workers
            .iter()
            .position(|w| matches!(w.state, WorkerState::Waiting))
        {
            self.workers[rank].state = WorkerState::Starting;
            actions.push(Action::Start { rank });
        }
    }

    fn started(&mut self, rank: usize, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].state = WorkerState::Running;
        match self.phase {
            // It was being started when the stop came: it gets what the others got.
            Phase::Stopping { why, .. } => self.send(rank, why.signal(), now, actions),
            Phase::Running | Phase::Finished => {
                let notices = self.policy.notices.iter();
                actions.extend(notices.map(|&signal| Action::Notify { rank, signal }));
                self.start_next(now, actions);
            }
        }
    }

    fn not_started(&mut self, rank: usize, passing: bool, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].state = WorkerState::NeverStarted;
        // What was started has done nothing yet that would need a clean stop, and cannot work without this one.
        self.stop(Why::NotStarted { rank, passing }, None);
        for rank in self.running() {
            self.send(rank, signals::KILL, now, actions);
        }
    }

    fn end(&self, rank: usize, outcome: Outcome, at: Duration, lost_peer: bool) -> End {
        // Only what had been sent before its end can have caused it.
        let sent = self.workers[rank]
            .sent
            .iter()
            .filter(|(_, sent_at)| *sent_at <= at)
            .map(|(signal, _)| *signal)
            .collect();
        End {
            rank,
            outcome,
            at,
            sent,
            lost_peer,
        }
    }

    fn ended(&mut self, end: End, now: Duration, actions: &mut Vec<Action>) {
        let (rank, outcome, lost_peer) = (end.rank, end.outcome, end.lost_peer);
        if let Some(progress) = &mut self.progress {
            progress.ended(rank);
        }
        let failed = match outcome {
            Outcome::Exited(0) => None,
            Outcome::Exited(code) => Some(self.policy.requeue_code != Some(code)),
            Outcome::Signaled(_) => (!end.stopped_by_agent()).then_some(true),
            Outcome::Lost => Some(true),
        };
        self.workers[rank].state = WorkerState::Ended(end);
        let asked_by_itself = matches!(
            self.phase,
            Phase::Stopping {
                why: Why::Requeue,
                ..
            }
        );
        match failed {
            Some(true) if self.phase == Phase::Running && lost_peer && self.is_all_started() => {
                self.lost_peer.get_or_insert(LostPeer {
                    rank,
                    outcome,
                    until: now.saturating_add(SAME_MOMENT),
                });
            }
            Some(true) if self.phase == Phase::Running || asked_by_itself => {
                self.failed(rank, outcome, now, actions);
            }
            // All ranks leave together after writing their checkpoint, so the others are about to end too: they
            // are left to do so, but not for ever.
            Some(false) if self.phase == Phase::Running => self.stop(Why::Requeue, self.timeout_from(now)),
            _ => self.recover(now, actions),
        }
    }

    /// Whether no worker waits for its start.
    fn is_all_started(&self) -> bool {
        self.ranks_where(|state| matches!(state, WorkerState::Waiting | WorkerState::Starting))
            .is_empty()
    }

    fn failed(&mut self, rank: usize, outcome: Outcome, now: Duration, actions: &mut Vec<Action>) {
        self.stop(Why::Failure, self.timeout_from(now));
        let peers = self.running();
        for &peer in &peers {
            self.send(peer, signals::TERM, now, actions);
        }
        actions.push(Action::Tell(Notice::Failed {
            rank,
            outcome,
            stopping: peers.len(),
        }));
    }

    fn beat(&mut self, rank: usize, at: Duration, writing: bool, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].writing = writing.then_some(now);
        if let Some(progress) = &mut self.progress {
            progress.beat(rank, at, writing);
        }
        self.recover(now, actions);
    }

    fn send(&mut self, rank: usize, signal: i32, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].sent.push((signal, now));
        actions.push(Action::Signal { rank, signal });
    }

    fn finish_if_over(&mut self, actions: &mut Vec<Action>) {
        let live = self.ranks_where(|s| matches!(s, WorkerState::Starting | WorkerState::Running));
        let waiting = self.ranks_where(|s| matches!(s, WorkerState::Waiting));
        if self.phase == Phase::Finished
            || !live.is_empty()
            || (self.phase == Phase::Running && !waiting.is_empty())
        {
            return;
        }
        let verdict = self.verdict();
        self.phase = Phase::Finished;
        actions.push(Action::Sweep);
        actions.push(Action::Finish(verdict));
    }

    fn verdict(&self) -> Verdict {
        let ends: Vec<End> = self
            .workers
            .iter()
            .filter_map(|worker| match &worker.state {
                WorkerState::Ended(end) => Some(end.clone()),
                _ => None,
            })
            .collect();
        let why = match self.phase {
            Phase::Stopping { why, .. } => Some(why),
            Phase::Running | Phase::Finished => None,
        };
        let mut verdict = Verdict::of(ends, self.workers.len(), why, self.policy.requeue_code);
        verdict.asked = self.asked;
        verdict.notices = self.unheeded(&verdict);
        verdict
    }
}
