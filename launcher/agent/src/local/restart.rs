//! Decides whether a failed group is restarted, and when: pure, from the verdicts of a run's attempts.

use super::event::Event;
use super::times::TimeLimit;
use super::verdict::{Cause, Outcome, StopSource, Verdict};
use crate::signals;
use std::time::Duration;

/// After an attempt of at least this length, the pauses start from the first again.
pub(crate) const LASTING: Duration = Duration::from_secs(60);
/// The pause before the second restart in a row; it doubles with each further one. The first has no pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The number of times that a new master port is chosen if another program took it.
const PORTS: u32 = 3;
/// The number of restarts after SIGUSR1 killed workers that had no handler yet.
const EARLY_REQUESTS: u32 = 3;

#[derive(Clone, Copy, Debug, Default)]
pub struct RestartPolicy {
    /// The most restarts of the whole group.
    pub max_restarts: u32,
    /// Exit codes of workers that would fail again in the same way.
    pub permanent: &'static [i32],
    pub limit: Option<TimeLimit>,
    /// Whether USR1 asks the workers to stop with a checkpoint.
    pub training: bool,
}

/// An attempt that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedAttempt<'a> {
    /// The end of the worker to blame, if one ended.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) stop_source: Option<StopSource>,
    /// Signals that the workers did not handle.
    pub(crate) notices: &'a [i32],
    pub(crate) lasted: Duration,
    /// Whether another program took the chosen port.
    pub(crate) port_taken: bool,
}

/// The decision after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The run ends with the attempt's verdict. The reason is for users who set `max_restarts`.
    Finish { reason: Option<&'static str> },
    /// Restart the group after a pause; `restart` counts from 1 and is the same on all workers.
    Restart { restart: u32, pause: Duration },
    /// Start the group again at another port. Does not count as a restart.
    OtherPort,
    /// The launcher was asked to stop before the next attempt. [`Restarts::resume`] decides about the end.
    Stop,
}

/// The decision after the pause between two attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// The next attempt, whose workers get these signals.
    Start { notices: Vec<i32> },
    /// The launcher was asked to stop by this signal.
    Stopped { signal: i32 },
    /// Workers were asked to stop between attempts, and a checkpoint exists.
    Requeue,
    /// New workers would be asked to stop at once. The reason is for the user.
    TooLate { reason: &'static str },
}

const NO_TIME: &str = "the time limit is too near";

/// The attempts of one run so far.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    policy: RestartPolicy,
    /// Restarts decided so far.
    pub used: u32,
    /// Restarts since the last attempt that lasted [`LASTING`].
    in_a_row: u32,
    ports: u32,
    early_requests: u32,
    /// Signals for the workers that no attempt has handled.
    notices: Vec<i32>,
    /// The signal that asked the launcher to stop while no worker ran.
    stopped: Option<i32>,
}

impl Restarts {
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Moves the time limit to a clock that is ahead by this.
    pub fn move_limit(&mut self, ahead: Duration) {
        if let Some(limit) = &mut self.policy.limit {
            limit.ask = limit.ask.saturating_add(ahead);
            limit.end = limit.end.saturating_add(ahead);
        }
    }

    /// Decides about an attempt of the length `lasted`. `port_taken`: another program took the chosen port.
    pub fn after(&mut self, verdict: &Verdict, lasted: Duration, port_taken: bool, now: Duration) -> Next {
        let outcome = match verdict.cause {
            Cause::Failed { rank } | Cause::Hung { rank } => verdict.end_of(rank).map(|end| end.outcome),
            Cause::NotStarted { temporary: true, .. } => None,
            _ => return Next::Finish { reason: None },
        };
        let failed = FailedAttempt {
            outcome,
            stop_source: verdict.stop_source,
            notices: &verdict.notices,
            lasted,
            port_taken,
        };
        self.after_failure(&failed, now)
    }

    /// Decides about an attempt that failed.
    pub(crate) fn after_failure(&mut self, failed: &FailedAttempt<'_>, now: Duration) -> Next {
        let FailedAttempt { outcome, stop_source, notices, lasted, port_taken } = *failed;
        let allowed = self.policy.max_restarts;
        let stay = |reason| Next::Finish { reason: (allowed > 0).then_some(reason) };
        if stop_source == Some(StopSource::TimeLimit) {
            return stay("the time limit was reached");
        }
        if self.is_too_late(now) {
            return stay(NO_TIME);
        }
        for &signal in notices {
            self.on_event(&Event::Forward { signal });
        }
        let other_port = port_taken && self.ports < PORTS;
        let is_early_request = self.is_early_request(outcome);
        if !other_port && !is_early_request {
            if matches!(outcome, Some(Outcome::Exited(code)) if self.policy.permanent.contains(&code)) {
                return stay("it would fail in the same way again");
            }
            if self.used == allowed {
                return stay("no restart is left");
            }
        }
        if let Some(StopSource::Request { signal }) = stop_source {
            self.on_event(&Event::Stop { signal, again: false });
            return Next::Stop;
        }
        if is_early_request {
            self.early_requests += 1;
            self.on_event(&Event::Forward { signal: signals::USR1 });
            return self.admit(now);
        }
        if other_port {
            self.ports += 1;
            return Next::OtherPort;
        }
        let in_a_row = if lasted >= LASTING { 0 } else { self.in_a_row };
        let doubled = in_a_row.checked_sub(1).map(|n| FIRST_PAUSE * (1 << n.min(16)));
        let pause = doubled.unwrap_or_default().min(LONGEST_PAUSE);
        if self.is_too_late(now.saturating_add(pause)) {
            return stay(NO_TIME);
        }
        self.used += 1;
        self.in_a_row = in_a_row + 1;
        Next::Restart { restart: self.used, pause }
    }

    /// Returns whether the request to stop killed a training's worker that had no handler yet. A batch system signals
    /// every process of a job, also a worker that has just started.
    fn is_early_request(&self, outcome: Option<Outcome>) -> bool {
        let is_killed = outcome == Some(Outcome::Signaled(signals::USR1));
        self.policy.training && is_killed && self.early_requests < EARLY_REQUESTS
    }

    /// Decides after workers that stopped because a node has joined or was lost, with enough others, or because of an
    /// early request. The restart is allowed in addition to the others.
    pub(crate) fn admit(&mut self, now: Duration) -> Next {
        if self.is_too_late(now) {
            return Next::Finish { reason: Some(NO_TIME) };
        }
        self.used += 1;
        self.policy.max_restarts += 1;
        Next::Restart { restart: self.used, pause: Duration::ZERO }
    }

    /// Handles an event while no worker runs, and returns whether it ends the pause.
    pub fn on_event(&mut self, event: &Event) -> bool {
        match *event {
            Event::Stop { signal, .. } => self.stopped = Some(self.stopped.unwrap_or(signal)),
            Event::Abandoned => self.stopped = Some(signals::KILL),
            Event::Forward { signal } if !self.notices.contains(&signal) => self.notices.push(signal),
            _ => {}
        }
        self.pause_ended()
    }

    /// Returns whether an event has ended the pause.
    pub fn pause_ended(&self) -> bool {
        self.stopped.is_some() || !self.notices.is_empty()
    }

    /// Decides at `now`, after the pause. `has_checkpoint`: a later launch would resume from a checkpoint.
    pub fn resume(&mut self, now: Duration, has_checkpoint: bool) -> Resumption {
        let requested = self.stopped.is_some() || self.notices.contains(&signals::USR1);
        match self.stopped {
            // The guardian is dead, so no process would start it again.
            Some(signals::KILL) => Resumption::Stopped { signal: signals::KILL },
            _ if requested && self.policy.training && has_checkpoint => Resumption::Requeue,
            Some(signal) => Resumption::Stopped { signal },
            None if self.is_too_late(now) => Resumption::TooLate { reason: NO_TIME },
            None => Resumption::Start { notices: std::mem::take(&mut self.notices) },
        }
    }

    fn is_too_late(&self, now: Duration) -> bool {
        self.policy.limit.is_some_and(|limit| limit.ask <= now)
    }
}

#[cfg(test)]
mod tests;
