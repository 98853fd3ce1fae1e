//! The leader: decides about the epochs of a run on several nodes, but does not act.
//!
//! `state` holds what it knows, `join` admits nodes and proposes epochs, `trial` lets them try each other, `request`
//! handles signals, `judge` decides after an epoch, `pause` notices that the leader itself did not run.

mod join;
mod judge;
mod pause;
mod request;
mod state;
#[cfg(test)]
mod tests;
mod trial;

pub use join::difference_of_ids;
pub use state::{ClusterPolicy, Leader, MemberId, OWN};

use super::blame::{Judgement, NodeEnd};
use super::lease::Moment;
use super::message::{Report, StopReason, ToLeader, ToMember, WorkerEnd};
use super::trial::FailedConnection;
use crate::local::{Cause, Outcome, StopSource};
use dtrain_common::exit::ExitStatus;
use state::{Part, Peer, Phase};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderEvent {
    Received {
        from: MemberId,
        message: ToLeader,
    },
    Disconnected {
        from: MemberId,
    },
    /// [`Leader::deadline`] has passed.
    Timer,
}

/// An action for the driver, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderAction {
    Send {
        to: MemberId,
        message: ToMember,
    },
    Close {
        member: MemberId,
    },
    Tell(LeaderNotice),
    /// The run is over. The driver answers with [`Leader::decide`], which tells the members.
    Finish(Box<Ending>),
}

/// Messages for the user of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderNotice {
    Joined {
        host: String,
        nodes: usize,
        most: usize,
    },
    /// It waits until one of the nodes that take part is lost or leaves.
    Spare {
        host: String,
        most: usize,
    },
    Rejected {
        host: String,
        reason: String,
    },
    /// Too few nodes have come so far. `left`: until the end of the wait.
    Waiting {
        came: Vec<String>,
        missing: Vec<String>,
        left: Duration,
    },
    Started {
        epoch: u64,
        nodes: usize,
        workers: usize,
    },
    /// `is_connection`: its connection has ended; otherwise it was silent.
    NodeLost {
        host: String,
        is_connection: bool,
    },
    Left {
        host: String,
        reason: String,
    },
    /// Another program took the port of rank 0, and the next epoch uses another one.
    OtherPort,
    Failed {
        host: String,
        end: WorkerEnd,
    },
    /// An epoch that failed, and after which the run continues.
    Ended {
        judgement: Judgement,
        nodes: Vec<NodeEnd>,
    },
    Restarting {
        restart: u32,
        pause: Duration,
    },
    LeftOut {
        host: String,
        failures: u32,
    },
    /// Connections of this host fail, and it is left out.
    Unconnected {
        host: String,
        failed: Vec<FailedConnection>,
    },
}

/// The end of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Not enough nodes came in time. `missing`: as far as they are known; `rejected` and `failed`: with the reasons.
    TooFewNodes {
        came: Vec<String>,
        missing: Vec<String>,
        rejected: Vec<(String, String)>,
        failed: Vec<(String, String)>,
    },
    /// A node could not prepare its workers, or no worker ran when it left.
    NodeLeft { host: String, reason: String },
    /// Nodes cannot reach each other.
    Unconnected { failed: Vec<FailedConnection> },
    /// The run was asked to stop while no worker ran.
    StoppedEarly { signal: i32 },
    /// The leader did not run for this time, and lost the other nodes: it is to blame.
    LeaderFrozen { pause: Duration },
    Judged {
        judgement: Judgement,
        nodes: Vec<NodeEnd>,
        stop_source: Option<StopSource>,
        /// Why an allowed restart is not made.
        reason: Option<&'static str>,
    },
}

impl Leader {
    /// Handles an event at `now`, and returns the actions.
    pub fn on(&mut self, event: LeaderEvent, now: Duration) -> Vec<LeaderAction> {
        self.note_pause(now);
        match event {
            LeaderEvent::Received { from, message } => self.received(from, message, now),
            LeaderEvent::Disconnected { from } => self.lose(from, true, now),
            LeaderEvent::Timer => {}
        }
        self.advance(now);
        std::mem::take(&mut self.actions)
    }

    /// Tells all members the exit code of the run, after [`LeaderAction::Finish`].
    pub fn decide(&mut self, code: u8, reason: String) -> Vec<LeaderAction> {
        self.phase = Phase::Decided;
        let decided = ToMember::Decided { code, reason };
        self.send_to_all(|_, _| true, &decided);
        // The leader's own member needs no connection, so it gets the message in any case.
        if self.peers.get(&OWN).is_some_and(|own| own.lost.is_some()) {
            self.send(OWN, decided.clone());
        }
        self.decided = Some(decided);
        std::mem::take(&mut self.actions)
    }

    fn received(&mut self, from: MemberId, message: ToLeader, now: Duration) {
        if let ToLeader::Join { version, node } = message {
            return self.join(from, version, node, now);
        }
        if let ToLeader::CannotJoin { host, run_id, reason, signal } = message {
            let is_of_run = self.cannot_join(from, host, run_id.as_deref(), reason);
            // As if the signal had come a moment later: in a job it is for all nodes.
            if let Some(signal) = signal.filter(|_| is_of_run && !self.policy.nodes_may_leave) {
                self.asked(from, signal, false, now);
            }
            return;
        }
        if let ToLeader::Gone { instance } = message {
            return self.gone(from, instance, now);
        }
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.lost.is_none()) else {
            return; // It was given up: its connection is being closed.
        };
        peer.heard = peer.heard.max(now);
        let current = self.epoch;
        match message {
            ToLeader::Beat { number } => self.send(from, ToMember::Beat { number, time: now }),
            ToLeader::Tried { epoch, failures } if epoch == current => {
                let Some(part) = &mut peer.part else { return };
                part.failures = Some(failures);
            }
            ToLeader::Ready { epoch, listens, logs, place } if epoch == current => {
                let Some(part) = &mut peer.part else { return };
                (part.is_ready, part.place) = (true, place);
                if part.placement.group_rank == 0 {
                    self.rank0 = listens;
                }
                if logs >= self.logs {
                    // An earlier run on this node has used the number of the log folder.
                    self.logs = logs;
                    if matches!(self.phase, Phase::Proposed { .. }) {
                        self.drain(StopReason::Regroup, None);
                    }
                }
            }
            ToLeader::Failed { epoch, end } if epoch == current => {
                let host = peer.name.clone();
                if self.runs_on() {
                    let reason = StopReason::WorkerFailed { rank: end.rank, host: host.clone() };
                    self.drain(reason, Some(from));
                    // A worker that rejects the recipe or the data has not failed: the end of the run names its reason.
                    let rejects = self.policy.requeue_code.is_some()
                        && end.outcome == Outcome::Exited(ExitStatus::Usage.code().into());
                    if !rejects {
                        self.tell(LeaderNotice::Failed { host, end });
                    }
                }
            }
            ToLeader::Drained { epoch, report } if epoch == current => self.drained(from, *report),
            ToLeader::Asked { signal, again } => self.asked(from, signal, again, now),
            ToLeader::Leaving { reason } => self.leave(from, reason, now),
            _ => {}
        }
    }

    /// Gives up a node, whose connection has ended or which was silent.
    fn lose(&mut self, member: MemberId, is_connection: bool, now: Duration) {
        let Some(host) = self.remove(member, now) else { return };
        if self.frozen.is_none() {
            self.tell(LeaderNotice::NodeLost { host: host.clone(), is_connection });
        }
        if member == OWN {
            self.left = Some((host, "its agent did not prepare the workers in time".to_owned()));
        }
    }

    /// Ends the connection to a node, and stops the epoch if the node has a part in it. Returns its host, except
    /// after the end of the run.
    fn remove(&mut self, member: MemberId, now: Duration) -> Option<String> {
        let peer = self.peers.get_mut(&member).filter(|peer| peer.lost.is_none())?;
        let error = now.saturating_sub(peer.heard) / 2;
        peer.lost = Some(Moment { at: peer.heard + error, error });
        let (host, is_over) = (peer.name.clone(), peer.is_over());
        self.actions.push(LeaderAction::Close { member });
        // Of a host that is lost again and again, one entry is enough.
        let is_old = |peer: &Peer| peer.lost.is_some() && peer.part.is_none() && peer.name == host;
        self.peers.retain(|id, peer| *id == member || !is_old(peer));
        match self.phase {
            Phase::Decided => return None,
            Phase::Proposed { .. } | Phase::Trying { .. } if !is_over => {
                self.drain(StopReason::Regroup, None)
            }
            Phase::Running { .. } if !is_over => {
                self.frozen = self.frozen.or(self.recent_pause(now));
                self.drain(StopReason::NodeLost { host: host.clone() }, None);
            }
            Phase::Draining { began: Some(_) } if !is_over => {
                self.frozen = self.frozen.or(self.recent_pause(now));
                if self.is_soft_stop {
                    self.drain(StopReason::NodeLost { host: host.clone() }, None);
                }
            }
            _ => {}
        }
        Some(host)
    }

    fn drained(&mut self, from: MemberId, mut report: Report) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let Some(part) = &mut peer.part else { return };
        let is_leaving = self.leaving.contains(&peer.node.instance);
        self.has_checkpoint |= report.has_checkpoint;
        if let Some(blame) = report.blame.as_mut().filter(|_| peer.name != peer.node.host) {
            blame.rename(&peer.name);
        }
        let reason = match report.cause {
            Cause::Success => None,
            // The other nodes' time limit is about to come.
            Cause::Requeue if self.policy.requeue_code.is_none() => {
                Some(StopReason::Asked { signal: crate::signals::TERM, again: false })
            }
            Cause::Requeue => Some(StopReason::Requeue),
            Cause::Failed { rank } | Cause::Hung { rank } | Cause::NotStarted { rank, .. } => {
                Some(StopReason::WorkerFailed { rank, host: peer.name.clone() })
            }
            // Its workers have ended before the checkpoint, which the others cannot write without them.
            Cause::Stopped { .. } | Cause::TimeIsUp if is_leaving => {
                Some(StopReason::NodeLost { host: peer.name.clone() })
            }
            // The same comes to the other nodes, or was sent by the leader.
            Cause::Stopped { signal } => Some(StopReason::Asked { signal, again: false }),
            Cause::Evicted => Some(StopReason::Evicted),
            Cause::TimeIsUp | Cause::OthersFailed => {
                Some(StopReason::Asked { signal: crate::signals::TERM, again: false })
            }
        };
        part.report = Some(report);
        if let Some(reason) = reason.filter(|_| self.runs_on()) {
            self.drain(reason, Some(from));
        }
    }

    /// Begins to stop the epoch on all nodes, except on the one that stops by itself.
    pub(super) fn drain(&mut self, reason: StopReason, except: Option<MemberId>) {
        let began = match self.phase {
            Phase::Running { since } => Some(since),
            Phase::Draining { began } => began,
            _ => None,
        };
        self.is_soft_stop = reason == StopReason::Admit;
        self.phase = Phase::Draining { began };
        // Before the start of the workers, the asked node must stop its preparation too.
        self.stop_others(reason, except.filter(|_| began.is_some()));
    }

    /// Returns whether the workers run, and have at most a request for a checkpoint.
    fn runs_on(&self) -> bool {
        match self.phase {
            Phase::Running { .. } => true,
            Phase::Draining { began } => began.is_some() && self.is_soft_stop,
            _ => false,
        }
    }

    fn stop_others(&mut self, reason: StopReason, except: Option<MemberId>) {
        let message = ToMember::Stop { epoch: self.epoch, reason };
        let runs = |id: MemberId, peer: &Peer| Some(id) != except && !peer.is_over();
        self.send_to_all(runs, &message);
    }

    /// Makes the transitions that the state and the time allow.
    fn advance(&mut self, now: Duration) {
        let times = self.policy.times;
        let is_silent =
            |id: MemberId, peer: &Peer| id != OWN && peer.heard.saturating_add(times.length) <= now;
        let silent: Vec<_> =
            self.here().filter(|(id, peer)| is_silent(*id, peer)).map(|(id, _)| id).collect();
        for id in silent {
            self.lose(id, false, now);
        }
        // Without a start, a lost node has no workers.
        let is_started = !matches!(self.phase, Phase::Draining { began: None });
        for peer in self.peers.values_mut().filter(|peer| peer.lost.is_some()) {
            let is_fenced = !is_started || peer.fenced_at(times) <= now;
            if let Some(part) = peer.part.as_mut().filter(|_| is_fenced) {
                part.is_fenced = true;
            }
        }
        let parts = || self.peers.values().filter(|peer| peer.part.is_some());
        match self.phase {
            Phase::Joining(joining) => self.gather(joining, now),
            Phase::Proposed { since } | Phase::Trying { since } => {
                let is_trying = matches!(self.phase, Phase::Trying { .. });
                let has_answered =
                    |part: &Part| if is_trying { part.failures.is_some() } else { part.is_ready };
                let has_answered = |peer: &Peer| peer.part.as_ref().is_none_or(has_answered);
                if parts().all(has_answered) {
                    match is_trying {
                        true => self.judge_trial(now),
                        false => self.try_connections(now),
                    }
                } else if since.saturating_add(self.policy.ready_timeout) <= now {
                    let late = self.here().filter(|(_, peer)| !has_answered(peer));
                    for id in late.map(|(id, _)| id).collect::<Vec<_>>() {
                        self.lose(id, false, now);
                    }
                    self.advance(now);
                }
            }
            Phase::Running { since } if parts().all(Peer::is_over) => {
                self.judge(Some(since), now);
            }
            Phase::Draining { began } if parts().all(Peer::is_over) => {
                self.judge(began, now);
            }
            Phase::Pausing { until } if until <= now => self.resume(now),
            _ => {}
        }
    }

    pub(super) fn start(&mut self, now: Duration) {
        let Some(rank0) = self.rank0.clone() else {
            let is_first =
                |peer: &Peer| peer.part.as_ref().is_some_and(|part| part.placement.group_rank == 0);
            let first = self.here().find(|(_, peer)| is_first(peer)).map_or(OWN, |(id, _)| id);
            return self.leave(first, "it has no address for rank 0".to_owned(), now);
        };
        let epoch = self.epoch;
        (self.is_admitting, self.has_started) = (false, true);
        self.regroups.clear();
        self.failed.clear();
        self.phase = Phase::Running { since: now };
        self.send_to_all(|_, peer| peer.part.is_some(), &ToMember::Start { epoch, rank0 });
        let placement = self.peers.values().find_map(|peer| peer.part.as_ref()).map(|part| part.placement);
        let (nodes, workers) = placement.map_or((0, 0), |it| (it.group_world_size, it.world_size));
        self.tell(LeaderNotice::Started { epoch, nodes, workers });
    }
}
