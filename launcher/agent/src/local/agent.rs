//! The agent's events.

use super::event::{Action, Event, KillReason, Notice};
use super::state::{Agent, Phase, Worker, WorkerState};
use super::times::{FROZEN, SAME_MOMENT};
use super::verdict::{Cause, End, Outcome, StopReason, Verdict};
use crate::signals;
use std::time::Duration;

impl Agent {
    /// Returns the first actions.
    pub fn begin(&mut self, now: Duration) -> Vec<Action> {
        self.latest = now;
        self.start_next(now);
        self.finish_if_over();
        std::mem::take(&mut self.actions)
    }

    /// Returns the time by which the driver must send [`Event::Timer`], if no other event comes before.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Stopping(_) => self.stop_by.or_else(|| self.given_up_at()),
            Phase::Running => {
                let suspicion = self.suspicion.map(|suspicion| suspicion.until);
                let hang = suspicion.or_else(|| self.progress.deadline());
                let lost_peer = self.lost_peer.map(|(.., until)| until);
                let limit = self.policy.limit.map(|limit| limit.ask);
                hang.into_iter().chain(lost_peer).chain(limit).min()
            }
            Phase::Finished => None,
        }
    }

    /// Handles an event at `now` and returns the actions; no actions after the end of the attempt.
    pub fn on(&mut self, event: &Event, now: Duration) -> Vec<Action> {
        if self.phase == Phase::Finished {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.latest, now);
        let frozen = now.saturating_sub(before);
        if frozen > FROZEN {
            self.restart_times(frozen, now);
        }
        match *event {
            Event::Started { rank } => self.started(rank, now),
            Event::NotStarted { rank, temporary } => {
                self.workers[rank].state = WorkerState::NeverStarted;
                // The other workers need no clean stop yet, and cannot work without this worker.
                self.stop(StopReason::NotStarted { rank, temporary }, None);
                self.send_to_all(signals::KILL, now);
            }
            Event::Ended { rank, outcome, at, lost_peer } => {
                // Only signals sent before the end can have caused it.
                let sent = self.workers[rank].sent.iter().filter(|(_, sent)| *sent <= at);
                let sent = sent.map(|(signal, _)| *signal).collect();
                self.ended(End { rank, outcome, at, sent, lost_peer }, now);
            }
            Event::Stop { signal, again } => self.stop_requested(signal, again, now),
            Event::Interrupted if self.phase == Phase::Running => {
                self.interrupted = Some(now);
                self.stop_requested(signals::INT, false, now);
            }
            // During a stop, the worker died of the signal that the launcher sent.
            Event::Interrupted => {}
            Event::Abandoned => self.abandoned(now),
            Event::Evicted => {
                self.stop(StopReason::Evicted, None);
                self.send_to_all(signals::KILL, now);
            }
            Event::OthersFailed if self.phase == Phase::Running => {
                let reason = StopReason::OthersFailed { writing: self.writing(now).next().is_some() };
                self.stop(reason, Some(now.saturating_add(self.timeout(reason))));
                self.send_to_all(signals::TERM, now);
            }
            Event::OthersRequeue if self.phase == Phase::Running => {
                self.stop(StopReason::Requeue, self.timeout_from(now));
            }
            // The workers are being stopped already.
            Event::OthersFailed | Event::OthersRequeue => {}
            Event::LeaseEnded => {
                self.kill_all(StopReason::OthersFailed { writing: false }, KillReason::LeaseEnded, now);
            }
            Event::Forward { signal } => self.forward(signal),
            Event::Admit => self.pass_on(signals::USR1),
            Event::Beat { rank, at, writing } => {
                self.workers[rank].writing = writing.then_some(now);
                self.progress.beat(rank, at, writing);
                self.recover(now);
            }
            Event::Inspected { number } => self.inspected(number, now),
            Event::Timer => self.timer(now),
        }
        self.finish_if_over();
        std::mem::take(&mut self.actions)
    }

    /// Returns the end of this rank, if it has ended.
    pub fn end_of(&self, rank: usize) -> Option<&End> {
        match &self.workers.get(rank)?.state {
            WorkerState::Ended(end) => Some(end),
            _ => None,
        }
    }

    fn timer(&mut self, now: Duration) {
        match (self.phase, self.policy.limit, self.lost_peer) {
            (Phase::Stopping(reason), ..) => self.timer_while_stopping(reason, now),
            (_, Some(limit), _) if limit.ask <= now => self.time_is_up(limit, now),
            (_, _, Some((rank, outcome, until))) if until <= now => self.failed(rank, outcome, now),
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
        let waits = |worker: &Worker| matches!(worker.state, WorkerState::Waiting);
        if let Some(rank) = self.workers.iter().position(waits) {
            self.workers[rank].state = WorkerState::Starting;
            self.actions.push(Action::Start { rank });
        }
    }

    fn started(&mut self, rank: usize, now: Duration) {
        self.workers[rank].state = WorkerState::Running;
        // The stop came while this worker was being started: it gets the same signal as the others.
        if let Phase::Stopping(reason) = self.phase {
            let signal = if self.stop_by.is_some() { reason.signal() } else { signals::KILL };
            return self.send(rank, signal, now);
        }
        let notices = self.policy.notices.iter();
        self.actions.extend(notices.map(|&signal| Action::Notify { rank, signal }));
        self.start_next(now);
    }

    fn ended(&mut self, end: End, now: Duration) {
        let (rank, outcome, lost_peer) = (end.rank, end.outcome, end.lost_peer);
        self.progress.ended(rank);
        let failed = match outcome {
            Outcome::Exited(0) => None,
            Outcome::Exited(code) => Some(self.policy.requeue_code != Some(code)),
            Outcome::Signaled(_) => (!end.stopped_by_agent()).then_some(true),
            Outcome::Lost => Some(true),
        };
        self.workers[rank].state = WorkerState::Ended(end);
        let running = self.phase == Phase::Running;
        match failed {
            Some(true) if running && lost_peer && self.is_all_started() => {
                let until = now.saturating_add(SAME_MOMENT);
                self.lost_peer.get_or_insert((rank, outcome, until));
                // Perhaps it was the silent one.
                self.recover(now);
            }
            Some(true) if running || self.phase == Phase::Stopping(StopReason::Requeue) => {
                self.failed(rank, outcome, now);
            }
            // All ranks exit together after writing their checkpoint, so the others are about to end too.
            Some(false) if running => self.stop(StopReason::Requeue, self.timeout_from(now)),
            _ => self.recover(now),
        }
    }

    fn failed(&mut self, rank: usize, outcome: Outcome, now: Duration) {
        self.stop(StopReason::Failure, self.timeout_from(now));
        let stopping = self.send_to_all(signals::TERM, now).len();
        self.say(Notice::Failed { rank, outcome, stopping });
    }

    fn finish_if_over(&mut self) {
        let is_awaited = |worker: &Worker| match worker.state {
            WorkerState::Starting | WorkerState::Running => true,
            WorkerState::Waiting => self.phase == Phase::Running,
            WorkerState::NeverStarted | WorkerState::Ended(_) => false,
        };
        if self.phase == Phase::Finished || self.workers.iter().any(is_awaited) {
            return;
        }
        let verdict = self.verdict();
        self.phase = Phase::Finished;
        self.actions.extend([Action::Sweep, Action::Finish(verdict)]);
    }

    fn verdict(&self) -> Verdict {
        let ends = (0..self.workers.len()).filter_map(|rank| self.end_of(rank).cloned());
        let reason = match self.phase {
            Phase::Stopping(reason) => Some(reason),
            Phase::Running | Phase::Finished => None,
        };
        let mut verdict = Verdict::of(ends.collect(), self.workers.len(), reason, self.policy.requeue_code);
        verdict.stop_source = self.stop_source;
        if let Cause::Hung { rank } = verdict.cause {
            verdict.silent_since = self.progress.last_beat(rank);
        }
        verdict.notices = self.unhandled_notices(&verdict);
        verdict
    }
}
