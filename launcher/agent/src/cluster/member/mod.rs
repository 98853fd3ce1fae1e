//! A member: joins the leader, and starts and stops the workers of its node as the leader decides.

mod connection;
#[cfg(test)]
mod tests;

use super::lease::{Lease, Moment, Times};
use super::message::{
    Blame, Endpoint, Preparation, Report, RunInfo, StopReason, ToLeader, ToMember, VERSION, WorkerEnd,
};
use super::ranks::{Node, Placement};
use super::trial::{FailedTry, Place};
use crate::local::{Cause, End, Outcome, Verdict};
use crate::signals;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct MemberPolicy {
    /// The longest wait for the leader, from the start.
    pub join_timeout: Duration,
    /// The longest wait for a leader that was lost.
    pub rejoin_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A connection to the leader is open and authenticated.
    Connected,
    Received(ToMember),
    /// The connection has ended.
    Disconnected,
    /// The leader's process has ended.
    LeaderGone,
    /// The answer to the [`MemberAction::Prepare`] of this epoch. `listens`: on the node of rank 0. `logs`:
    /// number of the log folder. `place`: where
    /// the others may try this node.
    Prepared {
        epoch: u64,
        listens: Option<Endpoint>,
        logs: u32,
        place: Option<Place>,
    },
    /// The answer to the [`MemberAction::Try`] of this epoch: the nodes that cannot be used.
    Tried {
        epoch: u64,
        failures: Vec<(usize, FailedTry)>,
    },
    /// The first failure among this node's workers, which are being stopped. Ranks and times are the node's.
    Failed(End),
    /// The answer to [`MemberAction::Start`], in the end: no worker runs any more.
    Over(Box<FinishedAttempt>),
    /// The node cannot prepare its workers, or continue.
    Leaving {
        reason: String,
    },
    /// The launcher was asked to stop by this signal. Its own workers have been told already. `again`: for a second time.
    Asked {
        signal: i32,
        again: bool,
    },
    /// [`Member::deadline`] has passed.
    Timer,
}

/// An attempt of this node that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedAttempt {
    /// Ranks and times are the node's.
    pub verdict: Verdict,
    pub port_taken: bool,
    /// As in [`Report`].
    pub has_checkpoint: bool,
    pub blame: Option<Box<Blame>>,
}

/// An action for the driver, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    Send(ToLeader),
    /// Connect to the leader, again and again, and answer with [`MemberEvent::Connected`].
    Connect,
    /// End the connection, without an answer.
    Disconnect,
    /// The leader has admitted this node. `is_spare`: it waits until another is lost or leaves.
    Joined {
        run: RunInfo,
        is_spare: bool,
    },
    /// Prepare the workers' files and, on the node of rank 0, a port. Earlier preparations are void.
    Prepare(Preparation),
    /// Try the connections to these nodes, which have these group ranks.
    Try {
        epoch: u64,
        places: Vec<(usize, Place)>,
    },
    Start {
        rank0: Endpoint,
    },
    /// Ask the workers to stop.
    Stop(StopReason),
    /// Kill the workers: the leader may start others from now on.
    Kill,
    Finish(MemberEnding),
}

/// The end of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEnding {
    /// The leader's exit code.
    Decided {
        code: u8,
        reason: String,
    },
    /// This node cannot continue.
    Left,
    Rejected {
        reason: String,
    },
    /// The leader could not be reached in time.
    NoLeader,
    /// The leader was lost and did not come back.
    LeaderLost,
    Stopped {
        signal: i32,
    },
}

/// The most ends of workers in a report.
const MOST_ENDS: usize = 200;

#[derive(Clone, Debug)]
enum Connection {
    None,
    /// Asked to join at this time; not welcomed yet.
    Joining {
        asked: Duration,
    },
    Joined {
        lease: Lease,
        next_beat: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workers {
    None,
    Prepared,
    Running,
    /// They were asked to stop.
    Stopping,
    Killed,
}

#[derive(Clone, Debug)]
pub struct Member {
    node: Node,
    policy: MemberPolicy,
    times: Times,
    connection: Connection,
    /// Since when the member has no leader and no worker.
    alone_since: Duration,
    /// The number of the leader that has admitted this node.
    leader: Option<u64>,
    epoch: u64,
    placement: Option<Placement>,
    /// The next workers, while earlier ones have not ended.
    next: Option<Preparation>,
    workers: Workers,
    /// The lease of the running workers if the connection is lost: when they are killed.
    kill_at: Option<Duration>,
    asked: Option<i32>,
    is_leader_gone: bool,
    /// Whether all workers of the run have ended well.
    ended_well: bool,
    is_over: bool,
    actions: Vec<MemberAction>,
}

impl Member {
    /// Returns a member that looks for its leader from `now` on, and its first actions.
    pub fn new(node: Node, policy: MemberPolicy, now: Duration) -> (Self, Vec<MemberAction>) {
        let member = Self {
            node,
            policy,
            times: Times::default(),
            connection: Connection::None,
            alone_since: now,
            leader: None,
            epoch: 0,
            placement: None,
            next: None,
            workers: Workers::None,
            kill_at: None,
            asked: None,
            is_leader_gone: false,
            ended_well: false,
            is_over: false,
            actions: Vec::new(),
        };
        (member, vec![MemberAction::Connect])
    }

    /// Handles an event at `now`, and returns the actions.
    pub fn on(&mut self, event: MemberEvent, now: Duration) -> Vec<MemberAction> {
        if self.is_over {
            return Vec::new();
        }
        // First: a machine that was suspended must not obey messages from before.
        self.check_lease(now);
        match event {
            MemberEvent::Connected => {
                self.connection = Connection::Joining { asked: now };
                let node = self.node.clone();
                self.send(ToLeader::Join { version: VERSION, node });
            }
            MemberEvent::Received(message) => self.received(message, now),
            MemberEvent::Disconnected => self.lose_leader(now),
            MemberEvent::Prepared { epoch, listens, logs, place } if self.is_prepared(epoch) => {
                self.send(ToLeader::Ready { epoch, listens, logs, place });
            }
            MemberEvent::Tried { epoch, failures } if self.is_prepared(epoch) => {
                self.send(ToLeader::Tried { epoch, failures });
            }
            MemberEvent::Failed(end) => {
                if self.workers == Workers::Running {
                    self.workers = Workers::Stopping;
                }
                let end = self.on_leaders_clock(end);
                self.send(ToLeader::Failed { epoch: self.epoch, end });
            }
            MemberEvent::Over(finished) => self.over(*finished, now),
            MemberEvent::Leaving { reason } => {
                self.send(ToLeader::Leaving { reason });
                self.finish(MemberEnding::Left);
            }
            MemberEvent::Asked { signal, again } => {
                self.asked = Some(signal);
                if self.lease().is_some() {
                    self.send(ToLeader::Asked { signal, again });
                }
            }
            MemberEvent::LeaderGone => self.is_leader_gone = true,
            MemberEvent::Prepared { .. } | MemberEvent::Tried { .. } | MemberEvent::Timer => {}
        }
        self.beat(now);
        self.give_up(now);
        std::mem::take(&mut self.actions)
    }

    /// Returns when the lease of this node's workers ends; `None` without a lease.
    pub fn lease_end(&self) -> Option<Duration> {
        // The lease of an earlier connection counts until its workers have ended.
        self.kill_at.or(self.lease().map(Lease::end)).filter(|_| self.runs())
    }

    /// Returns the time by which the driver must send [`MemberEvent::Timer`].
    pub fn deadline(&self) -> Option<Duration> {
        let by_connection = match &self.connection {
            Connection::Joined { lease, next_beat } => Some(lease.end().min(*next_beat)),
            _ => (!self.runs()).then(|| self.alone_since.saturating_add(self.patience())),
        };
        let kill_at = self.kill_at.filter(|_| self.runs() && self.workers != Workers::Killed);
        by_connection.into_iter().chain(kill_at).min().filter(|_| !self.is_over)
    }

    fn received(&mut self, message: ToMember, now: Duration) {
        match message {
            ToMember::Rejected { reason } => self.finish(MemberEnding::Rejected { reason }),
            ToMember::Decided { code, reason } => self.finish(MemberEnding::Decided { code, reason }),
            ToMember::Welcome { times, run, is_spare } => self.welcome(times, run, is_spare, now),
            // The lease has just ended: the leader may have gone on without this node.
            _ if self.lease().is_none() => {}
            ToMember::EndedWell => self.ended_well = true,
            ToMember::Beat { number, time } => {
                if let Connection::Joined { lease, .. } = &mut self.connection {
                    lease.renew(number, time, now);
                }
            }
            ToMember::Propose(preparation) if preparation.epoch > self.epoch => match self.runs() {
                // The workers of an earlier connection have been killed, but not ended yet.
                true => self.next = Some(preparation),
                false => self.prepare(preparation),
            },
            ToMember::Try { epoch, places } if self.is_prepared(epoch) => {
                self.actions.push(MemberAction::Try { epoch, places });
            }
            ToMember::Start { epoch, rank0 } if self.is_prepared(epoch) => match self.asked {
                // The signal came after this node was ready: the leader takes the workers for told.
                Some(signal) => {
                    self.workers = Workers::None;
                    let report = Report { cause: Cause::Stopped { signal }, ..Report::empty() };
                    self.send(ToLeader::Drained { epoch, report: Box::new(report) });
                }
                None => {
                    self.workers = Workers::Running;
                    self.actions.push(MemberAction::Start { rank0 });
                }
            },
            ToMember::Stop { epoch, .. } if self.next.as_ref().is_some_and(|next| next.epoch == epoch) => {
                self.next = None;
                self.send(ToLeader::Drained { epoch, report: Box::new(Report::empty()) });
            }
            ToMember::Stop { epoch, reason } if epoch == self.epoch => self.stop(reason),
            _ => {}
        }
    }

    fn prepare(&mut self, preparation: Preparation) {
        (self.epoch, self.placement) = (preparation.epoch, Some(preparation.placement));
        self.workers = Workers::Prepared;
        self.actions.push(MemberAction::Prepare(preparation));
    }

    fn stop(&mut self, reason: StopReason) {
        match self.workers {
            Workers::Prepared => {
                self.workers = Workers::None;
                self.send(ToLeader::Drained { epoch: self.epoch, report: Box::new(Report::empty()) });
            }
            Workers::Running | Workers::Stopping => {
                // A batch system sends its signal to every node: it is one request.
                let is_known = match reason {
                    StopReason::Asked { signal, again: false } => {
                        self.asked.is_some_and(|first| signals::is_same_request(first, signal))
                    }
                    _ => false,
                };
                if !is_known {
                    self.actions.push(MemberAction::Stop(reason));
                }
                self.workers = Workers::Stopping;
            }
            Workers::None | Workers::Killed => {}
        }
    }

    fn over(&mut self, finished: FinishedAttempt, now: Duration) {
        self.workers = Workers::None;
        self.kill_at = None;
        let FinishedAttempt { verdict, port_taken, has_checkpoint, blame } = finished;
        let first = self.placement.map_or(0, |placement| placement.first_rank);
        let cause = match verdict.cause {
            Cause::Failed { rank } => Cause::Failed { rank: first + rank },
            Cause::Hung { rank } => Cause::Hung { rank: first + rank },
            Cause::NotStarted { rank, temporary } => Cause::NotStarted { rank: first + rank, temporary },
            other => other,
        };
        let silent_since =
            verdict.silent_since.zip(self.lease()).map(|(at, lease)| lease.on_leaders_clock(at));
        // A message has a limited length, and the first failures decide.
        let (failed, well): (Vec<_>, Vec<_>) =
            verdict.ends.into_iter().partition(|end| end.outcome != Outcome::Exited(0));
        let ends = failed.into_iter().chain(well).take(MOST_ENDS);
        let ends = ends.map(|end| self.on_leaders_clock(end)).collect();
        let notices = verdict.notices;
        let report =
            Box::new(Report { cause, silent_since, ends, notices, port_taken, has_checkpoint, blame });
        self.send(ToLeader::Drained { epoch: self.epoch, report });
        self.alone_since = now;
        if let Some(next) = self.next.take() {
            self.prepare(next);
        }
    }

    fn on_leaders_clock(&self, end: End) -> WorkerEnd {
        let unknown = Moment { at: end.at, error: Duration::MAX };
        let at = self.lease().map_or(unknown, |lease| lease.on_leaders_clock(end.at));
        let first = self.placement.map_or(0, |placement| placement.first_rank);
        let End { rank, outcome, sent, lost_peer, .. } = end;
        WorkerEnd { rank: first + rank, outcome, at, sent, lost_peer }
    }

    /// Returns the lease of this connection, once the leader has admitted the node.
    fn lease(&self) -> Option<&Lease> {
        match &self.connection {
            Connection::Joined { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// Returns whether the workers of this epoch wait for their start.
    fn is_prepared(&self, epoch: u64) -> bool {
        epoch == self.epoch && self.workers == Workers::Prepared
    }

    fn runs(&self) -> bool {
        matches!(self.workers, Workers::Running | Workers::Stopping | Workers::Killed)
    }

    fn send(&mut self, message: ToLeader) {
        if matches!(self.connection, Connection::None) {
            return;
        }
        self.actions.push(MemberAction::Send(message));
    }

    fn finish(&mut self, ending: MemberEnding) {
        if self.runs() {
            self.actions.push(MemberAction::Kill);
        }
        self.is_over = true;
        self.actions.push(MemberAction::Finish(ending));
    }
}
