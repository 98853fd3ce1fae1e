//! How a group is stopped: on whose behalf, by which signal, and until when.

use super::event::{Action, Notice};
use super::phase::{Phase, Why};
use super::state::Agent;
use super::times::{LAST_WORDS, SAME_REQUEST, STILL_WRITING, TimeLimit};
use super::verdict::{Asked, Cause, Verdict};
use crate::signals;
use std::time::Duration;

impl Agent {
    pub(super) fn stop(&mut self, why: Why, deadline: Option<Duration>) {
        self.phase = Phase::Stopping { why, deadline };
        self.stop_put_off = Duration::ZERO;
        self.suspicion = None;
        self.lost_peer = None;
    }

    pub(super) fn stop_requested(&mut self, signal: i32, now: Duration) {
        self.asked = Some(Asked::Request { signal });
        if signal == signals::INT || signal == signals::TERM {
            match self.interrupted {
                Some(first) if now < first + SAME_REQUEST => return,
                Some(_) => return self.kill_all(now, None),
                None => self.interrupted = Some(now),
            }
        }
        if self.phase == Phase::Running {
            self.stop(Why::Signal { signal }, self.timeout_from(now));
        }
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, signal, now);
        }
        self.say(Notice::Stopping {
            signal,
            workers: ranks.len(),
        });
    }

    pub(super) fn abandoned(&mut self, now: Duration) {
        let signal = signals::KILL;
        self.asked = Some(Asked::Request { signal });
        if self.phase == Phase::Running {
            self.stop(Why::Signal { signal }, None);
        }
        self.kill_all(now, None);
    }

    pub(super) fn evicted(&mut self, now: Duration) {
        self.stop(Why::Evicted, None);
        for rank in self.running() {
            self.send(rank, signals::KILL, now);
        }
    }

    pub(super) fn forward(&mut self, signal: i32) {
        // Of a training it is a request to stop, which must not be forgotten when the attempt fails before it has heeded it.
        let is_training = self.is_training();
        let is_request = is_training && signal == signals::USR1;
        let is_missed = !is_training && self.phase != Phase::Running;
        if is_request || is_missed {
            self.notices.push(signal);
        }
        if !self.is_all_started() {
            self.policy.notices.push(signal);
        }
        // A trainer has a handler soon after it has begun, and dies of the signal before.
        self.actions
            .extend(self.running().into_iter().map(|rank| match is_training {
                true => Action::Notify { rank, signal },
                false => Action::Signal { rank, signal },
            }));
    }

    /// The notices that another attempt has to heed because this one did not.
    pub(super) fn unheeded(&self, verdict: &Verdict) -> Vec<i32> {
        if !matches!(
            verdict.cause,
            Cause::Failed { .. } | Cause::Hung { .. } | Cause::NotStarted { .. }
        ) {
            return Vec::new();
        }
        // A program has had those that came before its start, unless it did not start.
        let were_given = !self.is_training() && verdict.ends.len() == self.workers.len();
        let earlier = self.policy.notices.iter().filter(|_| !were_given);
        let mut notices: Vec<i32> = earlier.chain(&self.notices).copied().collect();
        notices.sort_unstable();
        notices.dedup();
        notices
    }

    /// Whether the workers know how to stop with a checkpoint.
    fn is_training(&self) -> bool {
        self.policy.requeue_code.is_some()
    }

    pub(super) fn time_is_up(&mut self, limit: TimeLimit, now: Duration) {
        self.asked = Some(Asked::TimeLimit);
        let end = limit.end.max(now.saturating_add(self.time_to_stop(limit)));
        self.stop(Why::TimeLimit(limit), Some(end));
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, limit.signal, now);
        }
        self.say(Notice::TimeLimit {
            workers: ranks.len(),
            left: end.saturating_sub(now),
        });
    }

    /// What workers have to stop in even if the limit itself is over, because nothing ran when it came near.
    fn time_to_stop(&self, limit: TimeLimit) -> Duration {
        limit
            .end
            .saturating_sub(limit.ask)
            .min(self.policy.shutdown_timeout)
    }

    /// Nothing ran for a while: what the workers have to do, they have their time for anew. By how much that is longer than without
    /// it is bounded, however often it happens. A time limit does not wait.
    pub(super) fn thaw(&mut self, frozen: Duration, now: Duration) {
        if let Some(progress) = &mut self.progress {
            progress.thaw(frozen, now);
        }
        let hangs = self
            .progress
            .as_ref()
            .is_some_and(|progress| !progress.silent(now).is_empty());
        let suspicion = self.suspicion.take();
        self.suspicion = suspicion
            .filter(|_| hangs)
            .map(|suspicion| suspicion.thaw(frozen));
        if let Some(lost) = &mut self.lost_peer {
            lost.until += frozen;
        }
        for writing in self
            .workers
            .iter_mut()
            .filter_map(|worker| worker.writing.as_mut())
        {
            *writing += frozen;
        }
        self.say(Notice::Thawed {
            frozen,
            taken_back: suspicion.is_some() && !hangs,
        });
        let Phase::Stopping {
            why,
            deadline: Some(deadline),
        } = self.phase
        else {
            return;
        };
        let rest = deadline + frozen;
        let until = if let Why::TimeLimit(limit) = why {
            let least = now.saturating_add(self.time_to_stop(limit));
            rest.min(least).max(deadline)
        } else {
            let patience = self.patience();
            let anew = now.saturating_add(patience).saturating_sub(rest);
            let more = anew.min(patience.saturating_sub(self.stop_put_off));
            self.stop_put_off += more;
            rest + more
        };
        self.phase = Phase::Stopping {
            why,
            deadline: Some(until),
        };
    }

    pub(super) fn timer_while_stopping(&mut self, now: Duration) {
        let Phase::Stopping {
            why,
            deadline: Some(deadline),
        } = self.phase
        else {
            return;
        };
        if deadline > now {
            return;
        }
        if why.may_write()
            && let Some(until) = self.write_under_way(now)
        {
            self.phase = Phase::Stopping {
                why,
                deadline: Some(until),
            };
            if !std::mem::replace(&mut self.is_write_told, true) {
                self.say(Notice::Writing {
                    ranks: self.writing(now),
                    left: self.policy.limit.map(|limit| limit.end.saturating_sub(now)),
                });
            }
            return;
        }
        let patience = self.patience();
        self.kill_all(now, Some(patience));
    }

    /// The workers that write a checkpoint.
    fn writing(&self, now: Duration) -> Vec<usize> {
        self.running()
            .into_iter()
            .filter(|&rank| {
                self.workers[rank]
                    .writing
                    .is_some_and(|at| now.saturating_sub(at) < STILL_WRITING)
            })
            .collect()
    }

    /// Until when a checkpoint that is being written is waited for, if one is.
    fn write_under_way(&self, now: Duration) -> Option<Duration> {
        let latest = self
            .writing(now)
            .into_iter()
            .filter_map(|rank| self.workers[rank].writing)
            .max()?;
        // When it is written the worker has to end, too.
        let until = latest.saturating_add(self.policy.shutdown_timeout.max(STILL_WRITING));
        let until = self.policy.limit.map_or(until, |limit| until.min(limit.end));
        (until > now).then_some(until)
    }

    /// Kills all that run; from here on only their ends are waited for.
    pub(super) fn kill_all(&mut self, now: Duration, timed_out: Option<Duration>) {
        if let Phase::Stopping { deadline, .. } = &mut self.phase {
            *deadline = None;
        }
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, signals::KILL, now);
        }
        if !ranks.is_empty() {
            self.say(Notice::Killing { ranks, timed_out });
        }
    }

    pub(super) fn last_words(&self) -> Duration {
        LAST_WORDS.min(self.policy.shutdown_timeout)
    }

    /// The time that workers have which are being stopped.
    fn patience(&self) -> Duration {
        match self.phase {
            Phase::Stopping {
                why: Why::Hang { .. },
                ..
            } => self.last_words(),
            Phase::Stopping {
                why: Why::TimeLimit(limit),
                ..
            } => limit.end.saturating_sub(limit.ask),
            _ => self.policy.shutdown_timeout,
        }
    }

    pub(super) fn timeout_from(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_add(self.policy.shutdown_timeout))
    }
}
