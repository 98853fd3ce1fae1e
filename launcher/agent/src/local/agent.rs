//! The events, one by one.

use super::end::{End, Outcome};
use super::event::{Action, Event, Notice};
use super::hang::Progress;
use super::phase::{Phase, Why};
use super::state::{Agent, LostPeer, WorkerState};
use super::times::{FROZEN, SAME_MOMENT};
use super::verdict::Verdict;
use crate::signals;
use std::time::Duration;

impl Agent {
    /// The first actions.
    pub fn begin(&mut self, now: Duration) -> Vec<Action> {
        self.latest = now;
        self.start_next(now);
        self.finish_if_over();
        std::mem::take(&mut self.actions)
    }

    /// When the driver has to send [`Event::Timer`], if nothing else happens before.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Stopping { deadline, .. } => *deadline,
            Phase::Running => {
                let hang = match &self.suspicion {
                    Some(suspicion) => Some(suspicion.until),
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
        if self.phase == Phase::Finished {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.latest, now);
        let frozen = now.saturating_sub(before);
        if frozen > FROZEN {
            self.thaw(frozen, now);
        }
        match *event {
            Event::Started { rank } => self.started(rank, now),
            Event::NotStarted { rank, passing } => self.not_started(rank, passing, now),
            Event::Ended {
                rank,
                outcome,
                at,
                lost_peer,
            } => {
                let end = self.end(rank, outcome, at, lost_peer);
                self.ended(end, now);
            }
            Event::Stop { signal } => self.stop_requested(signal, now),
            Event::Interrupted if self.phase == Phase::Running => {
                self.stop_requested(signals::INT, now);
            }
            // It died of what it was sent while the group is being stopped.
            Event::Interrupted => {}
            Event::Abandoned => self.abandoned(now),
            Event::Evicted => self.evicted(now),
            Event::Forward { signal } => self.forward(signal),
            Event::Beat { rank, at, writing } => self.beat(rank, at, writing, now),
            Event::Inspected { number } => self.inspected(number, now),
            Event::Timer if self.phase == Phase::Running => self.timer_while_running(now),
            Event::Timer => self.timer_while_stopping(now),
        }
        self.finish_if_over();
        std::mem::take(&mut self.actions)
    }

    fn timer_while_running(&mut self, now: Duration) {
        match (self.policy.limit, self.lost_peer) {
            (Some(limit), _) if limit.ask <= now => self.time_is_up(limit, now),
            (_, Some(lost)) if lost.until <= now => self.failed(lost.rank, lost.outcome, now),
            _ => self.look_for_a_hang(now),
        }
    }

    fn start_next(&mut self, now: Duration) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(limit) = self.policy.limit.filter(|limit| limit.ask <= now) {
            return self.time_is_up(limit, now);
        }
        if let Some(rank) = self
            .workers
            .iter()
            .position(|w| matches!(w.state, WorkerState::Waiting))
        {
            self.workers[rank].state = WorkerState::Starting;
            self.actions.push(Action::Start { rank });
        }
    }

    fn started(&mut self, rank: usize, now: Duration) {
        self.workers[rank].state = WorkerState::Running;
        match self.phase {
            // It was being started when the stop came: it gets what the others got.
            Phase::Stopping { why, .. } => self.send(rank, why.signal(), now),
            Phase::Running | Phase::Finished => {
                let notices = self.policy.notices.iter();
                self.actions
                    .extend(notices.map(|&signal| Action::Notify { rank, signal }));
                self.start_next(now);
            }
        }
    }

    fn not_started(&mut self, rank: usize, passing: bool, now: Duration) {
        self.workers[rank].state = WorkerState::NeverStarted;
        // What was started has done nothing yet that would need a clean stop, and cannot work without this one.
        self.stop(Why::NotStarted { rank, passing }, None);
        for rank in self.running() {
            self.send(rank, signals::KILL, now);
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

    fn ended(&mut self, end: End, now: Duration) {
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
                self.failed(rank, outcome, now);
            }
            // All ranks leave together after writing their checkpoint, so the others are about to end too: they
            // are left to do so, but not for ever.
            Some(false) if self.phase == Phase::Running => self.stop(Why::Requeue, self.timeout_from(now)),
            _ => self.recover(now),
        }
    }

    fn failed(&mut self, rank: usize, outcome: Outcome, now: Duration) {
        self.stop(Why::Failure, self.timeout_from(now));
        let peers = self.running();
        for &peer in &peers {
            self.send(peer, signals::TERM, now);
        }
        self.say(Notice::Failed {
            rank,
            outcome,
            stopping: peers.len(),
        });
    }

    fn beat(&mut self, rank: usize, at: Duration, writing: bool, now: Duration) {
        self.workers[rank].writing = writing.then_some(now);
        if let Some(progress) = &mut self.progress {
            progress.beat(rank, at, writing);
        }
        self.recover(now);
    }

    fn finish_if_over(&mut self) {
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
        self.actions.push(Action::Sweep);
        self.actions.push(Action::Finish(verdict));
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
