//! Stops a group: the reason, the signal, and the deadline. Workers that seem to hang are inspected first,
//! and stopped only if they do not beat meanwhile.

use super::event::{Action, KillReason, Notice};
use super::state::{Agent, Phase, Suspicion, WorkerState};
use super::times::{ALONE, INSPECTION, KILLED, SAME_REQUEST, STACK_DUMP_TIMEOUT, STILL_WRITING, TimeLimit};
use super::verdict::{End, Outcome, StopReason, StopSource, Verdict};
use crate::signals;
use std::time::Duration;

impl Agent {
    pub(super) fn stop(&mut self, reason: StopReason, deadline: Option<Duration>) {
        self.phase = Phase::Stopping(reason);
        self.stop_by = deadline;
        self.stop_delay = Duration::ZERO;
        self.suspicion = None;
        self.lost_peer = None;
    }

    pub(super) fn stop_requested(&mut self, signal: i32, again: bool, now: Duration) {
        // Another node has reached the same time limit, and the workers got this signal for it.
        let is_of_limit = |limit: TimeLimit| limit.signal == signal && !again && !self.is_asked;
        if matches!(self.phase, Phase::Stopping(StopReason::TimeLimit(limit)) if is_of_limit(limit)) {
            self.is_asked = signals::URGENT.contains(&signal);
            return;
        }
        self.stop_source = Some(StopSource::Request { signal });
        let is_after_ctrl_c = self.interrupted.is_some_and(|first| now >= first + SAME_REQUEST);
        if again || is_after_ctrl_c {
            return self.kill_all(StopReason::Signal { signal }, KillReason::Requested, now);
        }
        // The signals of several nodes are one request.
        if signals::URGENT.contains(&signal) && std::mem::replace(&mut self.is_asked, true) {
            return;
        }
        if self.phase == Phase::Running {
            self.stop(StopReason::Signal { signal }, self.timeout_from(now));
        }
        let workers = self.send_to_all(signal, now).len();
        self.say(Notice::Stopping { signal, workers });
    }

    pub(super) fn abandoned(&mut self, now: Duration) {
        let signal = signals::KILL;
        self.stop_source = Some(StopSource::Request { signal });
        self.kill_all(StopReason::Signal { signal }, KillReason::Abandoned, now);
    }

    pub(super) fn forward(&mut self, signal: i32) {
        // A training takes USR1 as a request to stop, which the next attempt must know if this attempt fails.
        let is_training = self.is_training();
        let is_request = is_training && signal == signals::USR1;
        let is_missed = !is_training && self.phase != Phase::Running;
        if is_request || is_missed {
            self.notices.push(signal);
        }
        self.pass_on(signal);
    }

    /// Sends a user's signal to the workers, also to those that start later.
    pub(super) fn pass_on(&mut self, signal: i32) {
        if !self.is_all_started() {
            self.policy.notices.push(signal);
        }
        let is_training = self.is_training();
        // A trainer has a handler soon after its start, and before that would die of the signal.
        let running = self.running().into_iter();
        self.actions.extend(running.map(|rank| match is_training {
            true => Action::Notify { rank, signal },
            false => Action::Signal { rank, signal },
        }));
    }

    /// Returns the notices that this attempt did not handle, for the next attempt.
    pub(super) fn unhandled_notices(&self, verdict: &Verdict) -> Vec<i32> {
        if verdict.cause.rank().is_none() {
            return Vec::new();
        }
        // A program that started has received the notices from before its start.
        let were_given = !self.is_training() && verdict.ends.len() == self.workers.len();
        let earlier = self.policy.notices.iter().filter(|_| !were_given);
        let mut notices: Vec<i32> = earlier.chain(&self.notices).copied().collect();
        notices.sort_unstable();
        notices.dedup();
        notices
    }

    /// Returns whether the workers can stop with a checkpoint.
    fn is_training(&self) -> bool {
        self.policy.requeue_code.is_some()
    }

    pub(super) fn time_is_up(&mut self, limit: TimeLimit, now: Duration) {
        self.stop_source = Some(StopSource::TimeLimit);
        let end = limit.end.max(now.saturating_add(self.time_to_stop(limit)));
        self.stop(StopReason::TimeLimit(limit), Some(end));
        let workers = self.send_to_all(limit.signal, now).len();
        let left = end.saturating_sub(now);
        self.say(Notice::TimeLimit { workers, left });
    }

    /// Returns the time for stopping if a freeze has used up the time before the limit.
    fn time_to_stop(&self, limit: TimeLimit) -> Duration {
        (limit.end - limit.ask).min(self.policy.shutdown_timeout)
    }

    /// Restarts all times after a freeze, except a limit's. The sum of such delays is bounded.
    pub(super) fn restart_times(&mut self, frozen: Duration, now: Duration) {
        self.progress.record_freeze(frozen, now);
        let hangs = self.hangs(now);
        let suspicion = self.suspicion.take();
        self.suspicion = suspicion.filter(|_| hangs).map(|suspicion| Suspicion {
            since: suspicion.since + frozen,
            until: suspicion.until + frozen,
            ..suspicion
        });
        if let Some((.., until)) = &mut self.lost_peer {
            *until += frozen;
        }
        self.killed_at = self.killed_at.map(|at| at + frozen);
        for worker in &mut self.workers {
            worker.writing = worker.writing.map(|at| at + frozen);
        }
        let hang_dropped = suspicion.is_some() && !hangs;
        self.say(Notice::Resumed { frozen, hang_dropped });
        let (Phase::Stopping(reason), Some(deadline)) = (self.phase, self.stop_by) else {
            return;
        };
        let rest = deadline + frozen;
        self.stop_by = Some(if let StopReason::TimeLimit(limit) = reason {
            let least = now.saturating_add(self.time_to_stop(limit));
            rest.min(least).max(deadline)
        } else {
            let timeout = self.timeout(reason);
            let anew = now.saturating_add(timeout).saturating_sub(rest);
            let more = anew.min(timeout.saturating_sub(self.stop_delay));
            self.stop_delay += more;
            rest + more
        });
    }

    pub(super) fn timer_while_stopping(&mut self, reason: StopReason, now: Duration) {
        if self.stop_by.is_none() && self.given_up_at().is_some_and(|at| at <= now) {
            return self.give_up(now);
        }
        if self.stop_by.is_none_or(|deadline| deadline > now) {
            return;
        }
        if reason.waits_for_write()
            && let Some(until) = self.write_under_way(now)
        {
            self.stop_by = Some(until);
            if !std::mem::replace(&mut self.write_reported, true) {
                let ranks = self.writing(now).map(|(rank, _)| rank).collect();
                let left = self.policy.limit.map(|limit| limit.end.saturating_sub(now));
                self.say(Notice::Writing { ranks, left });
            }
            return;
        }
        self.kill_all(reason, KillReason::TimedOut(self.timeout(reason)), now);
    }

    /// Returns the workers that write a checkpoint, with the times of their last reports.
    pub(super) fn writing(&self, now: Duration) -> impl Iterator<Item = (usize, Duration)> {
        let reports = self.running().into_iter();
        reports
            .filter_map(|rank| Some((rank, self.workers[rank].writing?)))
            .filter(move |(_, at)| now.saturating_sub(*at) < STILL_WRITING)
    }

    /// Returns the end of the wait for a checkpoint write, if a worker writes.
    fn write_under_way(&self, now: Duration) -> Option<Duration> {
        let latest = self.writing(now).map(|(_, at)| at).max()?;
        // After the write, the worker also needs time to end.
        let until = latest.saturating_add(self.policy.shutdown_timeout.max(STILL_WRITING));
        let until = self.policy.limit.map_or(until, |limit| until.min(limit.end));
        (until > now).then_some(until)
    }

    /// Kills all running workers; `reason` is that of the stop, unless one has begun. After that, only their ends are
    /// awaited.
    pub(super) fn kill_all(&mut self, reason: StopReason, why: KillReason, now: Duration) {
        if self.phase == Phase::Running {
            self.stop(reason, None);
        }
        self.stop_by = None;
        let ranks = self.send_to_all(signals::KILL, now);
        if !ranks.is_empty() {
            self.say(Notice::Killing { ranks, why });
        }
    }

    /// Returns when killed workers that still run are given up.
    pub(super) fn given_up_at(&self) -> Option<Duration> {
        self.killed_at.map(|at| at.saturating_add(KILLED))
    }

    /// Counts killed workers that do not end as killed: they run no more of their program.
    fn give_up(&mut self, now: Duration) {
        let ranks = self.running();
        for &rank in &ranks {
            let sent = self.workers[rank].sent.iter().map(|(signal, _)| *signal).collect();
            let outcome = Outcome::Signaled(signals::KILL);
            let end = End { rank, outcome, at: now, sent, lost_peer: false };
            self.workers[rank].state = WorkerState::Ended(end);
        }
        self.say(Notice::Stuck { ranks });
    }

    fn stack_dump_timeout(&self) -> Duration {
        STACK_DUMP_TIMEOUT.min(self.policy.shutdown_timeout)
    }

    /// Returns the time that workers get for stopping.
    pub(super) fn timeout(&self, reason: StopReason) -> Duration {
        match reason {
            StopReason::Hang { .. } => self.stack_dump_timeout(),
            StopReason::TimeLimit(limit) => limit.end - limit.ask,
            StopReason::OthersFailed { writing: false } if self.is_training() => {
                ALONE.min(self.policy.shutdown_timeout)
            }
            _ => self.policy.shutdown_timeout,
        }
    }

    pub(super) fn timeout_from(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_add(self.policy.shutdown_timeout))
    }

    fn hangs(&self, now: Duration) -> bool {
        !self.progress.silent(now).is_empty()
    }

    pub(super) fn look_for_a_hang(&mut self, now: Duration) {
        if let Some(suspicion) = self.suspicion {
            if suspicion.until <= now {
                // On SIGABRT, Python's faulthandler prints all threads' stacks, dtrain's trainer one.
                let deadline = now.saturating_add(self.stack_dump_timeout());
                self.stop(StopReason::Hang { rank: suspicion.rank }, Some(deadline));
                self.send_to_all(signals::ABRT, now);
            }
            return;
        }
        let silent = self.progress.silent(now);
        let Some(&(rank, _)) = silent.first() else {
            return;
        };
        self.inspections += 1;
        let number = self.inspections;
        self.suspicion = Some(Suspicion { rank, since: now, until: now.saturating_add(INSPECTION), number });
        self.say(Notice::Hanging { silent });
        let ranks = self.running();
        self.actions.push(Action::Inspect { ranks, number });
    }

    /// Gives workers as long as the inspection took to show that they are only slow: debuggers stop them.
    pub(super) fn inspected(&mut self, number: u32, now: Duration) {
        if let Some(suspicion) = &mut self.suspicion
            && suspicion.number == number
        {
            let took = now.saturating_sub(suspicion.since).min(STACK_DUMP_TIMEOUT);
            suspicion.until = suspicion.until.min(now.saturating_add(took));
            self.look_for_a_hang(now);
        }
    }

    /// Drops the suspicion if no rank is silent for too long any more.
    pub(super) fn recover(&mut self, now: Duration) {
        if self.suspicion.is_some() && !self.hangs(now) {
            self.suspicion = None;
            self.say(Notice::Recovered);
        }
    }
}
