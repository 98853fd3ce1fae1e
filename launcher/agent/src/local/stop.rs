//! How a group is stopped: on whose behalf, by which signal, and until when.

use super::{Action, Agent, Asked, Cause, Notice, SAME_REQUEST, TimeLimit, Verdict};
use crate::signals;
use std::time::Duration;

/// Workers that hang have so long to say where, after SIGABRT.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);
/// A worker that was heard of writing a checkpoint so long ago may still do it; its signs come every half second.
const STILL_WRITING: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Stopping { why: Why, deadline: Option<Duration> },
    Finished,
}

/// Why the group is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Failure,
    NotStarted {
        rank: usize,
        passing: bool,
    },
    Signal {
        signal: i32,
    },
    /// The time limit is near.
    TimeLimit(TimeLimit),
    /// No progress; this worker stopped first.
    Hang {
        rank: usize,
    },
    /// A worker ended with the requeue code although the launcher had not been asked to stop.
    Requeue,
    /// Another run has taken over the run directory.
    Evicted,
}

impl Why {
    /// What a worker gets first.
    pub(super) fn signal(self) -> i32 {
        match self {
            Self::Signal { signal } => signal,
            Self::TimeLimit(limit) => limit.signal,
            Self::Evicted => signals::KILL,
            _ => signals::TERM,
        }
    }

    /// Whether the workers may still write a checkpoint because of which it is worth to wait: not where one has failed, since
    /// they cannot make it whole any more.
    fn may_write(self) -> bool {
        matches!(self, Self::Signal { .. } | Self::Requeue)
    }
}

impl Agent {
    pub(super) fn stop(&mut self, why: Why, deadline: Option<Duration>) {
        self.phase = Phase::Stopping { why, deadline };
        self.stop_put_off = Duration::ZERO;
        self.suspicion = None;
        self.lost_peer = None;
    }

    pub(super) fn stop_requested(&mut self, signal: i32, now: Duration, actions: &mut Vec<Action>) {
        self.asked = Some(Asked::Request { signal });
        if signal == signals::INT || signal == signals::TERM {
            match self.interrupted {
                Some(first) if now < first + SAME_REQUEST => return,
                Some(_) => return self.kill_all(now, None, actions),
                None => self.interrupted = Some(now),
            }
        }
        if self.phase == Phase::Running {
            self.stop(Why::Signal { signal }, self.timeout_from(now));
        }
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, signal, now, actions);
        }
        actions.push(Action::Tell(Notice::Stopping {
            signal,
            workers: ranks.len(),
        }));
    }

    pub(super) fn abandoned(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let signal = signals::KILL;
        self.asked = Some(Asked::Request { signal });
        if self.phase == Phase::Running {
            self.stop(Why::Signal { signal }, None);
        }
        self.kill_all(now, None, actions);
    }

    pub(super) fn evicted(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.stop(Why::Evicted, None);
        for rank in self.running() {
            self.send(rank, signals::KILL, now, actions);
        }
    }

    pub(super) fn forward(&mut self, signal: i32, actions: &mut Vec<Action>) {
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
        actions.extend(self.running().into_iter().map(|rank| match is_training {
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

    pub(super) fn time_is_up(&mut self, limit: TimeLimit, now: Duration, actions: &mut Vec<Action>) {
        self.asked = Some(Asked::TimeLimit);
        let end = limit.end.max(now.saturating_add(self.time_to_stop(limit)));
        self.stop(Why::TimeLimit(limit), Some(end));
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, limit.signal, now, actions);
        }
        actions.push(Action::Tell(Notice::TimeLimit {
            workers: ranks.len(),
            left: end.saturating_sub(now),
        }));
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
    pub(super) fn thaw(&mut self, frozen: Duration, now: Duration, actions: &mut Vec<Action>) {
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
        actions.push(Action::Tell(Notice::Thawed {
            frozen,
            taken_back: suspicion.is_some() && !hangs,
        }));
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

    pub(super) fn timer_while_stopping(&mut self, now: Duration, actions: &mut Vec<Action>) {
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
                actions.push(Action::Tell(Notice::Writing {
                    ranks: self.writing(now),
                    left: self.policy.limit.map(|limit| limit.end.saturating_sub(now)),
                }));
            }
            return;
        }
        let patience = self.patience();
        self.kill_all(now, Some(patience), actions);
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
    pub(super) fn kill_all(&mut self, now: Duration, timed_out: Option<Duration>, actions: &mut Vec<Action>) {
        if let Phase::Stopping { deadline, .. } = &mut self.phase {
            *deadline = None;
        }
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, signals::KILL, now, actions);
        }
        if !ranks.is_empty() {
            actions.push(Action::Tell(Notice::Killing { ranks, timed_out }));
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
