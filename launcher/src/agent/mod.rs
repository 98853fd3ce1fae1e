//! The agent: what to do about the workers of one node, and nothing of how it is done.
//!
//! `Agent::on(event, now)` is a pure state machine. It holds no process, socket, thread or clock: the driver tells
//! it what happened and when, carries out the actions it answers with, and calls it again at
//! [`Agent::deadline`]. Times are durations since the launch began, on the monotonic clock.
//!
//! The rules: workers are started one after the other; the first failure sends SIGTERM to every other worker at
//! once and SIGKILL after the shutdown timeout; a stop signal to the launcher is forwarded, with the same timeout;
//! a second INT or TERM kills at once; USR1 and USR2 are passed on; shortly before the time limit workers are asked to stop; when the last worker has ended, what is left
//! of the process groups is killed and a verdict is given, once. An agent is one attempt; [`Restarts`] decides
//! whether there is another.

mod event;
mod hang;
mod restart;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub(crate) use event::{Action, End, Event, Notice, Outcome, Policy, TimeLimit};
pub(crate) use hang::HangPolicy;
pub(crate) use restart::{Next, RestartPolicy, Restarts};
pub(crate) use verdict::{Cause, Verdict};

use crate::process::signals;
use hang::Progress;
use std::time::Duration;

/// Two INT or TERM signals closer together than this are one request: `timeout` signals its child and then its
/// whole process group, and a terminal's Ctrl-C can reach the launcher directly and through a wrapper. Taking the
/// echo for a second request would kill workers in the middle of their checkpoint.
pub(crate) const SAME_REQUEST: Duration = Duration::from_millis(250);

/// Workers that hang have so long to say where, after SIGABRT.
const LAST_WORDS: Duration = Duration::from_secs(10);

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
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Stopping { why: Why, deadline: Option<Duration> },
    Finished,
}

/// Why the group is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Failure,
    NotStarted {
        rank: usize,
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
}

/// The state of one node's worker group.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    policy: Policy,
    workers: Vec<Worker>,
    phase: Phase,
    /// When the first INT or TERM came.
    interrupted: Option<Duration>,
    /// Whether any stop signal came.
    asked_to_stop: bool,
    /// Where hangs are looked for.
    progress: Option<Progress>,
}

impl Agent {
    /// A group of which nothing has been started. Call [`Agent::begin`] next.
    pub(crate) fn new(policy: Policy) -> Self {
        let workers = vec![
            Worker {
                state: WorkerState::Waiting,
                sent: Vec::new()
            };
            policy.workers
        ];
        let progress = policy.hang.map(|hang| Progress::new(hang, policy.workers));
        Self {
            policy,
            workers,
            progress,
            phase: Phase::Running,
            interrupted: None,
            asked_to_stop: false,
        }
    }

    /// The first actions.
    pub(crate) fn begin(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.start_next(&mut actions);
        actions
    }

    /// When the driver has to send [`Event::Timer`], if nothing else happens before.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Stopping { deadline, .. } => *deadline,
            Phase::Running => {
                let hang = self.progress.as_ref().and_then(Progress::deadline);
                let limit = self.policy.limit.map(|limit| limit.ask);
                hang.into_iter().chain(limit).min()
            }
            Phase::Finished => None,
        }
    }

    /// Takes in what happened at `now` and answers what to do. Events that no longer matter (a late timer, a
    /// signal after the end) are answered with nothing.
    pub(crate) fn on(&mut self, event: &Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.phase == Phase::Finished {
            return actions;
        }
        match *event {
            Event::Started { rank } => self.started(rank, now, &mut actions),
            Event::NotStarted { rank } => self.not_started(rank, now, &mut actions),
            Event::Ended { rank, outcome, at } => self.ended(rank, outcome, at, now, &mut actions),
            Event::Stop { signal } => self.stop_requested(signal, now, &mut actions),
            Event::Abandoned => {
                self.asked_to_stop = true;
                if self.phase == Phase::Running {
                    self.phase = Phase::Stopping {
                        why: Why::Signal {
                            signal: signals::KILL,
                        },
                        deadline: None,
                    };
                }
                self.kill_all(now, None, &mut actions);
            }
            Event::Forward { signal } => {
                actions.extend(
                    self.running()
                        .into_iter()
                        .map(|rank| Action::Signal { rank, signal }),
                );
            }
            Event::Beat { rank } => {
                if let Some(progress) = &mut self.progress {
                    progress.beat(rank, now);
                }
            }
            Event::Inspected => self.ask_where_they_are(now, &mut actions),
            Event::Timer if self.phase == Phase::Running => match self.policy.limit {
                Some(limit) if limit.ask <= now => self.time_is_up(limit, now, &mut actions),
                _ => self.look_for_a_hang(now, &mut actions),
            },
            Event::Timer => {
                if self.deadline().is_some_and(|deadline| deadline <= now) {
                    let patience = self.patience();
                    self.kill_all(now, Some(patience), &mut actions);
                }
            }
        }
        self.finish_if_over(&mut actions);
        actions
    }

    fn running(&self) -> Vec<usize> {
        self.ranks_where(|state| matches!(state, WorkerState::Running))
    }

    fn ranks_where(&self, wanted: impl Fn(&WorkerState) -> bool) -> Vec<usize> {
        (0..self.workers.len())
            .filter(|&rank| wanted(&self.workers[rank].state))
            .collect()
    }

    fn start_next(&mut self, actions: &mut Vec<Action>) {
        if self.phase != Phase::Running {
            return;
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
            Phase::Stopping {
                why: Why::Signal { signal },
                ..
            } => self.send(rank, signal, now, actions),
            Phase::Stopping {
                why: Why::TimeLimit(limit),
                ..
            } => self.send(rank, limit.signal, now, actions),
            Phase::Stopping { .. } => self.send(rank, signals::TERM, now, actions),
            Phase::Running | Phase::Finished => self.start_next(actions),
        }
    }

    fn not_started(&mut self, rank: usize, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].state = WorkerState::NeverStarted;
        // What was started has done nothing yet that would need a clean stop, and cannot work without this one.
        self.phase = Phase::Stopping {
            why: Why::NotStarted { rank },
            deadline: None,
        };
        for rank in self.running() {
            self.send(rank, signals::KILL, now, actions);
        }
    }

    fn ended(
        &mut self,
        rank: usize,
        outcome: Outcome,
        at: Duration,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        if let Some(progress) = &mut self.progress {
            progress.ended(rank);
        }
        let worker = &mut self.workers[rank];
        // Only what had been sent before its end can have caused it.
        let sent = worker
            .sent
            .iter()
            .filter(|(_, sent_at)| *sent_at <= at)
            .map(|(signal, _)| *signal)
            .collect();
        let end = End {
            rank,
            outcome,
            at,
            sent,
        };
        let failed = match outcome {
            Outcome::Exited(0) => None,
            Outcome::Exited(code) => Some(self.policy.requeue_code != Some(code)),
            Outcome::Signaled(_) => (!end.stopped_by_agent()).then_some(true),
            Outcome::Lost => Some(true),
        };
        worker.state = WorkerState::Ended(end);
        let Some(failed) = failed else { return };
        match (&self.phase, failed) {
            (Phase::Running, true)
            | (
                Phase::Stopping {
                    why: Why::Requeue, ..
                },
                true,
            ) => {
                let peers = self.running();
                self.phase = Phase::Stopping {
                    why: Why::Failure,
                    deadline: self.timeout_from(now),
                };
                for &peer in &peers {
                    self.send(peer, signals::TERM, now, actions);
                }
                actions.push(Action::Tell(Notice::Failed {
                    rank,
                    outcome,
                    stopping: peers.len(),
                }));
            }
            // All ranks leave together after writing their checkpoint, so the others are about to end too: they
            // are left to do so, but not for ever.
            (Phase::Running, false) => {
                self.phase = Phase::Stopping {
                    why: Why::Requeue,
                    deadline: self.timeout_from(now),
                };
            }
            (Phase::Stopping { .. } | Phase::Finished, _) => {}
        }
    }

    fn stop_requested(&mut self, signal: i32, now: Duration, actions: &mut Vec<Action>) {
        self.asked_to_stop = true;
        if signal == signals::INT || signal == signals::TERM {
            match self.interrupted {
                Some(first) if now < first + SAME_REQUEST => return,
                Some(_) => return self.kill_all(now, None, actions),
                None => self.interrupted = Some(now),
            }
        }
        if self.phase == Phase::Running {
            self.phase = Phase::Stopping {
                why: Why::Signal { signal },
                deadline: self.timeout_from(now),
            };
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

    fn time_is_up(&mut self, limit: TimeLimit, now: Duration, actions: &mut Vec<Action>) {
        self.asked_to_stop = true;
        self.phase = Phase::Stopping {
            why: Why::TimeLimit(limit),
            deadline: Some(limit.end),
        };
        let ranks = self.running();
        for &rank in &ranks {
            self.send(rank, limit.signal, now, actions);
        }
        actions.push(Action::Tell(Notice::TimeLimit {
            workers: ranks.len(),
            left: limit.end.saturating_sub(now),
        }));
    }

    fn look_for_a_hang(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let silent = self
            .progress
            .as_ref()
            .map(|progress| progress.silent(now))
            .unwrap_or_default();
        let Some(&(rank, _)) = silent.first() else {
            return;
        };
        self.phase = Phase::Stopping {
            why: Why::Hang { rank },
            deadline: None,
        };
        actions.push(Action::Tell(Notice::Hanging { silent }));
        actions.push(Action::Inspect {
            ranks: self.running(),
        });
    }

    /// Programs that can say where they are do it on SIGABRT: Python's faulthandler prints every thread's stack, our trainer
    /// that of its main thread.
    fn ask_where_they_are(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let last_words = self.last_words();
        if let Phase::Stopping {
            why: Why::Hang { .. },
            deadline,
        } = &mut self.phase
        {
            *deadline = Some(now.saturating_add(last_words));
            for rank in self.running() {
                self.send(rank, signals::ABRT, now, actions);
            }
        }
    }

    /// Kills all that run; from here on only their ends are waited for.
    fn kill_all(&mut self, now: Duration, timed_out: Option<Duration>, actions: &mut Vec<Action>) {
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

    fn send(&mut self, rank: usize, signal: i32, now: Duration, actions: &mut Vec<Action>) {
        self.workers[rank].sent.push((signal, now));
        actions.push(Action::Signal { rank, signal });
    }

    fn last_words(&self) -> Duration {
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

    fn timeout_from(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_add(self.policy.shutdown_timeout))
    }

    fn finish_if_over(&mut self, actions: &mut Vec<Action>) {
        let live = self.ranks_where(|s| matches!(s, WorkerState::Starting | WorkerState::Running));
        let waiting = self.ranks_where(|s| matches!(s, WorkerState::Waiting));
        if !live.is_empty() || (self.phase == Phase::Running && !waiting.is_empty()) {
            return;
        }
        let ends: Vec<End> = self
            .workers
            .iter()
            .filter_map(|worker| match &worker.state {
                WorkerState::Ended(end) => Some(end.clone()),
                _ => None,
            })
            .collect();
        let (not_started, signal) = match self.phase {
            Phase::Stopping {
                why: Why::NotStarted { rank },
                ..
            } => (Some(rank), None),
            Phase::Stopping {
                why: Why::Signal { signal },
                ..
            } => (None, Some(signal)),
            // A training is asked by another signal, which would say nothing about why it ended.
            Phase::Stopping {
                why: Why::TimeLimit(_),
                ..
            } => (None, Some(signals::TERM)),
            _ => (None, None),
        };
        let mut verdict = Verdict {
            asked_to_stop: self.asked_to_stop,
            ..Verdict::of(ends, not_started, signal, self.policy.requeue_code)
        };
        if let Phase::Stopping {
            why: Why::Hang { rank },
            ..
        } = self.phase
        {
            verdict.cause = Cause::Hung { rank };
        }
        let limited = matches!(
            self.phase,
            Phase::Stopping {
                why: Why::TimeLimit(_),
                ..
            }
        );
        if limited && matches!(verdict.cause, Cause::Stopped { .. }) {
            verdict.cause = Cause::TimeIsUp;
        }
        self.phase = Phase::Finished;
        actions.push(Action::Sweep);
        actions.push(Action::Finish(verdict));
    }
}
