//! The leader: decides about the epochs of a run on several nodes, but does not act.

use super::blame::{ClusterCause, Judgement, NodeEnd, judge};
use super::lease::{Moment, Times};
use super::message::{Endpoint, Report, StopReason, ToLeader, ToMember, VERSION, WorkerEnd};
use super::ranks::{Node, Placement, place};
use crate::local::{Cause, Next, Restarts, Resumption, StopSource};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Identifies a connection. The leader's own member has the smallest.
pub type MemberId = u64;

#[derive(Clone, Debug)]
pub struct ClusterPolicy {
    /// Number of nodes of an epoch.
    pub nodes: RangeInclusive<usize>,
    /// The longest wait for enough nodes.
    pub join_timeout: Duration,
    /// With enough nodes, the wait for more.
    pub last_call: Duration,
    /// The longest time in which a node prepares its workers.
    pub ready_timeout: Duration,
    pub times: Times,
    /// Exit code of a worker that stopped with a checkpoint; `None` for programs.
    pub requeue_code: Option<i32>,
    /// A node that is to blame for this number of epochs in a row does not take part any more.
    pub failures_in_a_row: u32,
}

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
    Finish(Ending),
}

/// Messages for the user of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderNotice {
    Joined { host: String, nodes: usize, needed: usize },
    Rejected { host: String, reason: String },
    Started { epoch: u64, nodes: usize, workers: usize },
    NodeLost { host: String, is_connection: bool },
    Failed { host: String, end: WorkerEnd },
    Restarting { restart: u32, pause: Duration },
    LeftOut { host: String, failures: u32 },
}

/// The end of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Not enough nodes came in time: the hosts that came, and those that were rejected with the reason.
    TooFewNodes { came: Vec<String>, rejected: Vec<(String, String)> },
    /// The run was asked to stop before any worker ran.
    StoppedEarly { signal: i32 },
    Judged {
        judgement: Judgement,
        ends: Vec<WorkerEnd>,
        asked: Option<StopSource>,
        reason: Option<&'static str>,
    },
}

#[derive(Clone, Debug)]
enum Phase {
    Joining { since: Duration, enough_since: Option<Duration> },
    Proposed { since: Duration },
    Running { since: Duration },
    Draining { since: Duration, began: Option<Duration> },
    Pausing { until: Duration },
    Decided,
}

/// A node's part in the current epoch.
#[derive(Clone, Debug)]
struct Part {
    placement: Placement,
    is_ready: bool,
    report: Option<Report>,
}

#[derive(Clone, Debug)]
struct Peer {
    node: Node,
    heard: Duration,
    /// When and how the node was lost: between the two times.
    lost: Option<Moment>,
    part: Option<Part>,
}

impl Peer {
    /// Returns whether no worker of this node can run any more in the current epoch.
    fn is_over(&self, times: Times, now: Duration) -> bool {
        let is_reported = self.part.as_ref().is_none_or(|part| part.report.is_some());
        is_reported || (self.lost.is_some() && self.fenced_at(times) <= now)
    }

    /// Returns when the node's lease has ended and its workers are killed.
    fn fenced_at(&self, times: Times) -> Duration {
        self.heard.saturating_add(times.length).saturating_add(times.kill)
    }
}

#[derive(Clone, Debug)]
pub struct Leader {
    policy: ClusterPolicy,
    leaders: MemberId,
    epoch: u64,
    phase: Phase,
    peers: BTreeMap<MemberId, Peer>,
    rank0: Option<Endpoint>,
    restarts: Restarts,
    /// The first request to stop, and the member that sent it.
    asked: Option<(MemberId, i32)>,
    /// Failures in a row by host.
    failures: BTreeMap<String, u32>,
    rejected: Vec<(String, String)>,
    actions: Vec<LeaderAction>,
}

impl Leader {
    /// Returns a leader that waits for nodes from `now` on. `leaders`: the leader's own member.
    pub fn new(policy: ClusterPolicy, restarts: Restarts, leaders: MemberId, now: Duration) -> Self {
        Self {
            policy,
            leaders,
            epoch: 0,
            phase: Phase::Joining { since: now, enough_since: None },
            peers: BTreeMap::new(),
            rank0: None,
            restarts,
            asked: None,
            failures: BTreeMap::new(),
            rejected: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Handles an event at `now`, and returns the actions.
    pub fn on(&mut self, event: LeaderEvent, now: Duration) -> Vec<LeaderAction> {
        match event {
            LeaderEvent::Received { from, message } => self.received(from, message, now),
            LeaderEvent::Disconnected { from } => self.lose(from, true, now),
            LeaderEvent::Timer => {}
        }
        self.advance(now);
        std::mem::take(&mut self.actions)
    }

    /// Tells all members the exit code of the run, after [`LeaderAction::Finish`].
    pub fn decide(&mut self, code: u8) -> Vec<LeaderAction> {
        self.phase = Phase::Decided;
        self.send_to_all(|_| true, &ToMember::Decided { code });
        std::mem::take(&mut self.actions)
    }

    /// Returns the time by which the driver must send [`LeaderEvent::Timer`].
    pub fn deadline(&self) -> Option<Duration> {
        let times = self.policy.times;
        let silence = |peer: &Peer| match peer.lost {
            None => Some(peer.heard.saturating_add(times.length)),
            Some(_) => peer.part.is_some().then(|| peer.fenced_at(times)),
        };
        let by_phase = match self.phase {
            Phase::Joining { enough_since: Some(since), .. } => {
                Some(since.saturating_add(self.policy.last_call))
            }
            Phase::Joining { since, .. } => Some(since.saturating_add(self.policy.join_timeout)),
            Phase::Proposed { since } => Some(since.saturating_add(self.policy.ready_timeout)),
            Phase::Pausing { until } => Some(until),
            Phase::Running { .. } | Phase::Draining { .. } => None,
            Phase::Decided => return None,
        };
        self.peers.values().filter_map(silence).chain(by_phase).min()
    }

    fn received(&mut self, from: MemberId, message: ToLeader, now: Duration) {
        if let ToLeader::Join { version, node } = message {
            return self.join(from, version, node, now);
        }
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.lost.is_none()) else {
            return; // It was given up: its connection is being closed.
        };
        peer.heard = peer.heard.max(now);
        let current = self.epoch;
        match message {
            ToLeader::Beat { number } => self.send(from, ToMember::Beat { number, time: now }),
            ToLeader::Ready { epoch, listens } if epoch == current => {
                let Some(part) = &mut peer.part else { return };
                part.is_ready = true;
                if part.placement.group_rank == 0 {
                    self.rank0 = listens;
                }
            }
            ToLeader::Failed { epoch, end } if epoch == current => {
                let host = peer.node.host.clone();
                if matches!(self.phase, Phase::Running { .. }) {
                    let reason = StopReason::WorkerFailed { rank: end.rank, host: host.clone() };
                    self.drain(reason, Some(from), now);
                    self.tell(LeaderNotice::Failed { host, end });
                }
            }
            ToLeader::Drained { epoch, report } if epoch == current => self.drained(from, report, now),
            ToLeader::Asked { signal } => self.asked(from, signal, now),
            _ => {}
        }
    }

    fn join(&mut self, from: MemberId, version: u32, node: Node, now: Duration) {
        if self.peers.contains_key(&from) {
            return; // A duplicate.
        }
        if let Some(reason) = self.reason_to_reject(from, version, &node) {
            let host = node.host;
            self.send(from, ToMember::Rejected { reason: reason.clone() });
            self.actions.push(LeaderAction::Close { member: from });
            self.rejected.push((host.clone(), reason.clone()));
            return self.tell(LeaderNotice::Rejected { host, reason });
        }
        let host = node.host.clone();
        self.peers.insert(from, Peer { node, heard: now, lost: None, part: None });
        self.send(from, ToMember::Welcome { times: self.policy.times });
        let nodes = self.here().count();
        self.tell(LeaderNotice::Joined { host, nodes, needed: *self.policy.nodes.end() });
    }

    fn reason_to_reject(&self, from: MemberId, version: u32, node: &Node) -> Option<String> {
        if version != VERSION {
            return Some(format!(
                "its dtrain speaks version {version} of the protocol, and the leader's {VERSION}"
            ));
        }
        let failures = self.failures.get(&node.host).copied().unwrap_or_default();
        if failures >= self.policy.failures_in_a_row {
            return Some(format!("it has failed {failures} times in a row"));
        }
        if matches!(self.phase, Phase::Decided) {
            return Some("the run is over".to_owned());
        }
        let same = |peer: &&Peer| node.node_rank.is_some() && peer.node.node_rank == node.node_rank;
        if let Some(holder) = self.here().map(|(_, peer)| peer).find(same) {
            let (rank, host) = (node.node_rank.unwrap_or_default(), &holder.node.host);
            return Some(format!("node rank {rank} is taken by {host}; give every node its own --node-rank"));
        }
        let max = *self.policy.nodes.end();
        if self.here().count() >= max {
            let hosts: Vec<_> = self.here().map(|(_, peer)| peer.node.host.as_str()).collect();
            return Some(format!("all {max} nodes have joined: {}", hosts.join(", ")));
        }
        let leader = self.peers.get(&self.leaders).filter(|_| from != self.leaders)?;
        difference(&leader.node, node)
    }

    /// Returns the nodes that can take part in the next epoch.
    fn here(&self) -> impl Iterator<Item = (MemberId, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.lost.is_none()).map(|(id, peer)| (*id, peer))
    }

    fn lose(&mut self, member: MemberId, is_connection: bool, now: Duration) {
        let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.lost.is_none()) else {
            return;
        };
        let error = now.saturating_sub(peer.heard) / 2;
        peer.lost = Some(Moment { at: peer.heard + error, error });
        let host = peer.node.host.clone();
        let is_over = peer.part.as_ref().is_none_or(|part| part.report.is_some());
        self.actions.push(LeaderAction::Close { member });
        if matches!(self.phase, Phase::Decided) {
            return;
        }
        self.tell(LeaderNotice::NodeLost { host: host.clone(), is_connection });
        if !is_over {
            match self.phase {
                Phase::Proposed { .. } => self.drain(StopReason::Regroup, None, now),
                Phase::Running { .. } => self.drain(StopReason::NodeLost { host }, None, now),
                _ => {}
            }
        }
    }

    fn drained(&mut self, from: MemberId, report: Report, now: Duration) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let Some(part) = &mut peer.part else { return };
        let reason = match report.cause {
            Cause::Success => None,
            Cause::Requeue => Some(StopReason::Requeue),
            Cause::Failed { rank } | Cause::Hung { rank } | Cause::NotStarted { rank, .. } => {
                Some(StopReason::WorkerFailed { rank, host: peer.node.host.clone() })
            }
            // The same comes to the other nodes, or was sent by the leader.
            Cause::Stopped { signal } => Some(StopReason::Asked { signal, again: false }),
            Cause::TimeIsUp | Cause::Evicted => {
                Some(StopReason::Asked { signal: crate::signals::TERM, again: false })
            }
        };
        part.report = Some(report);
        if let Some(reason) = reason.filter(|_| matches!(self.phase, Phase::Running { .. })) {
            self.drain(reason, Some(from), now);
        }
    }

    fn asked(&mut self, from: MemberId, signal: i32, now: Duration) {
        // Batch systems send a signal to all nodes: only the same node's second one is a second request.
        let again = match self.asked {
            Some((first, _)) if first != from => return,
            Some(_) => true,
            None => false,
        };
        self.asked = Some((from, signal));
        self.restarts.on_event(&crate::local::Event::Stop { signal });
        let reason = StopReason::Asked { signal, again };
        match self.phase {
            Phase::Joining { .. } => self.finish(Ending::StoppedEarly { signal }),
            Phase::Proposed { .. } | Phase::Running { .. } => self.drain(reason, Some(from), now),
            Phase::Draining { .. } => self.stop_others(reason, Some(from)),
            Phase::Pausing { .. } => self.phase = Phase::Pausing { until: now },
            Phase::Decided => {}
        }
    }

    /// Begins to stop the epoch on all nodes, except on the one that stops by itself.
    fn drain(&mut self, reason: StopReason, except: Option<MemberId>, now: Duration) {
        let began = match self.phase {
            Phase::Running { since } => Some(since),
            _ => None,
        };
        self.phase = Phase::Draining { since: now, began };
        self.stop_others(reason, except);
    }

    fn stop_others(&mut self, reason: StopReason, except: Option<MemberId>) {
        let message = ToMember::Stop { epoch: self.epoch, reason };
        let is_running = |id: MemberId, peer: &Peer| {
            Some(id) != except && peer.part.as_ref().is_some_and(|part| part.report.is_none())
        };
        let running: Vec<_> =
            self.here().filter(|(id, peer)| is_running(*id, peer)).map(|(id, _)| id).collect();
        for id in running {
            self.send(id, message.clone());
        }
    }

    /// Makes the transitions that the state and the time allow.
    fn advance(&mut self, now: Duration) {
        let times = self.policy.times;
        let silent =
            |(id, peer): (MemberId, &Peer)| (peer.heard.saturating_add(times.length) <= now).then_some(id);
        let silent: Vec<_> = self.here().filter(|(id, _)| *id != self.leaders).filter_map(silent).collect();
        for id in silent {
            self.lose(id, false, now);
        }
        let parts = || self.peers.values().filter(|peer| peer.part.is_some());
        match self.phase {
            Phase::Joining { since, enough_since } => self.gather(since, enough_since, now),
            Phase::Proposed { since } => {
                let is_ready = |peer: &Peer| peer.part.as_ref().is_some_and(|part| part.is_ready);
                if parts().all(is_ready) {
                    self.start(now);
                } else if since.saturating_add(self.policy.ready_timeout) <= now {
                    let late = self.here().filter(|(_, peer)| peer.part.is_some() && !is_ready(peer));
                    for id in late.map(|(id, _)| id).collect::<Vec<_>>() {
                        self.lose(id, false, now);
                    }
                }
            }
            Phase::Running { since } if parts().all(|peer| peer.is_over(times, now)) => {
                self.judge(since, Some(since), now);
            }
            Phase::Draining { since, began } if parts().all(|peer| peer.is_over(times, now)) => {
                self.judge(since, began, now);
            }
            Phase::Pausing { until } if until <= now => self.resume(now),
            _ => {}
        }
    }

    fn gather(&mut self, since: Duration, enough_since: Option<Duration>, now: Duration) {
        let count = self.here().count();
        let enough = count >= *self.policy.nodes.start() && self.peers.get(&self.leaders).is_some();
        let enough_since = enough_since.or(Some(now)).filter(|_| enough);
        self.phase = Phase::Joining { since, enough_since };
        let is_last_call_over = |since: Duration| since.saturating_add(self.policy.last_call) <= now;
        if enough && (count == *self.policy.nodes.end() || enough_since.is_some_and(is_last_call_over)) {
            self.propose(now);
        } else if !enough && since.saturating_add(self.policy.join_timeout) <= now {
            let came = self.here().map(|(_, peer)| peer.node.host.clone()).collect();
            let rejected = std::mem::take(&mut self.rejected);
            self.finish(Ending::TooFewNodes { came, rejected });
        }
    }

    fn propose(&mut self, now: Duration) {
        self.epoch += 1;
        self.rank0 = None;
        self.peers.retain(|_, peer| peer.lost.is_none());
        let placed = place(self.here().map(|(id, peer)| (id, &peer.node)), self.leaders);
        let (epoch, restart) = (self.epoch, self.restarts.used);
        for (id, placement) in placed {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.part = Some(Part { placement, is_ready: false, report: None });
            }
            self.send(id, ToMember::Propose { epoch, restart, placement });
        }
        self.phase = Phase::Proposed { since: now };
    }

    fn start(&mut self, now: Duration) {
        let Some(rank0) = self.rank0.clone() else {
            return self.drain(StopReason::Regroup, None, now);
        };
        let epoch = self.epoch;
        self.phase = Phase::Running { since: now };
        self.send_to_all(|peer| peer.part.is_some(), &ToMember::Start { epoch, rank0 });
        let placement = self.peers.values().find_map(|peer| peer.part.as_ref()).map(|part| part.placement);
        let (nodes, workers) = placement.map_or((0, 0), |it| (it.group_world_size, it.world_size));
        self.tell(LeaderNotice::Started { epoch, nodes, workers });
    }

    /// Judges the epoch, in which no worker runs any more, and decides about the next. `began`: when the workers
    /// were started, if they were.
    fn judge(&mut self, since: Duration, began: Option<Duration>, now: Duration) {
        let mut nodes = Vec::new();
        for peer in self.peers.values_mut() {
            if let Some(Part { placement, report, .. }) = peer.part.take() {
                nodes.push((
                    peer.node.host.clone(),
                    NodeEnd { group_rank: placement.group_rank, report, lost: peer.lost },
                ));
            }
        }
        let Some(began) = began else {
            // No worker was started: the nodes that are left make the next epoch.
            if let Some((_, signal)) = self.asked {
                return self.finish(Ending::StoppedEarly { signal });
            }
            self.phase = Phase::Joining { since, enough_since: None };
            return self.gather(since, None, now);
        };
        let ends: Vec<_> = nodes.iter().map(|(_, end)| end.clone()).collect();
        let judgement = judge(&ends, self.policy.requeue_code);
        let reports = || ends.iter().filter_map(|node| node.report.as_ref());
        let mut notices: Vec<i32> = reports().flat_map(|report| report.notices.iter().copied()).collect();
        notices.sort_unstable();
        notices.dedup();
        let all: Vec<WorkerEnd> = reports().flat_map(|report| report.ends.iter().cloned()).collect();
        let culprit =
            nodes.iter().find(|(_, node)| is_to_blame(node, &judgement)).map(|(host, _)| host.clone());
        self.count_failure(culprit, now.saturating_sub(began));
        let failed_outcome = match judgement.cause {
            ClusterCause::Workers(Cause::Failed { rank } | Cause::Hung { rank }) => {
                Some(all.iter().find(|end| end.rank == rank).map(|end| end.outcome))
            }
            ClusterCause::Workers(Cause::NotStarted { temporary: true, .. })
            | ClusterCause::NodeLost { .. } => Some(None),
            ClusterCause::Workers(_) => None,
        };
        let asked = self.asked.map(|(_, signal)| StopSource::Request { signal });
        let next = match failed_outcome {
            Some(outcome) => {
                self.restarts.after_failure(outcome, asked, &notices, now.saturating_sub(began), false, now)
            }
            None => Next::Finish { reason: None },
        };
        let ending = |reason| Ending::Judged { judgement, ends: all, asked, reason };
        match next {
            Next::Finish { reason } => self.finish(ending(reason)),
            Next::Stop => self.finish(ending(Some("the launcher was asked to stop"))),
            Next::Restart { restart, pause } => {
                self.tell(LeaderNotice::Restarting { restart, pause });
                self.phase = Phase::Pausing { until: now.saturating_add(pause) };
                self.advance(now);
            }
            Next::OtherPort => self.phase = Phase::Pausing { until: now },
        }
    }

    /// Counts failures in a row of the host that is to blame.
    fn count_failure(&mut self, culprit: Option<String>, lasted: Duration) {
        let Some(host) = culprit else { return };
        let is_lasting = lasted >= crate::local::LASTING;
        self.failures.retain(|known, _| *known == host && !is_lasting);
        let count = self.failures.entry(host.clone()).or_default();
        *count += 1;
        let failures = *count;
        if failures >= self.policy.failures_in_a_row && self.policy.nodes.start() < self.policy.nodes.end() {
            let left_out = self
                .here()
                .find(|(id, peer)| *id != self.leaders && peer.node.host == host)
                .map(|(id, _)| id);
            if let Some(id) = left_out {
                let reason = format!("it has failed {failures} times in a row");
                self.send(id, ToMember::Rejected { reason });
                self.actions.push(LeaderAction::Close { member: id });
                self.peers.remove(&id);
                self.tell(LeaderNotice::LeftOut { host, failures });
            }
        }
    }

    fn resume(&mut self, now: Duration) {
        match self.restarts.resume(now, false) {
            Resumption::Start { .. } => {
                self.phase = Phase::Joining { since: now, enough_since: None };
                self.gather(now, None, now);
            }
            Resumption::Stopped { signal } => self.finish(Ending::StoppedEarly { signal }),
            Resumption::Requeue => self.finish(Ending::StoppedEarly { signal: crate::signals::USR1 }),
            Resumption::TooLate { .. } => self.finish(Ending::StoppedEarly { signal: crate::signals::TERM }),
        }
    }

    fn finish(&mut self, ending: Ending) {
        self.phase = Phase::Decided;
        self.actions.push(LeaderAction::Finish(ending));
    }

    fn send(&mut self, to: MemberId, message: ToMember) {
        self.actions.push(LeaderAction::Send { to, message });
    }

    fn send_to_all(&mut self, to: impl Fn(&Peer) -> bool, message: &ToMember) {
        let ids: Vec<_> = self.here().filter(|(_, peer)| to(peer)).map(|(id, _)| id).collect();
        for id in ids {
            self.send(id, message.clone());
        }
    }

    fn tell(&mut self, notice: LeaderNotice) {
        self.actions.push(LeaderAction::Tell(notice));
    }
}

fn is_to_blame(node: &NodeEnd, judgement: &Judgement) -> bool {
    match judgement.cause {
        ClusterCause::NodeLost { group_rank } => node.group_rank == group_rank,
        ClusterCause::Workers(
            Cause::Failed { rank } | Cause::Hung { rank } | Cause::NotStarted { rank, .. },
        ) => {
            let report = node.report.as_ref();
            report.is_some_and(|report| report.ends.iter().any(|end| end.rank == rank))
        }
        ClusterCause::Workers(_) => false,
    }
}

/// Returns what differs between the leader's node and another, which must be the same.
fn difference(leaders: &Node, node: &Node) -> Option<String> {
    if leaders.run_id != node.run_id {
        let name = |id: &Option<String>| id.clone().unwrap_or_else(|| "none".to_owned());
        return Some(format!(
            "its --rdzv-id is {}, and the leader's is {}",
            name(&node.run_id),
            name(&leaders.run_id)
        ));
    }
    let names = leaders.fingerprints.keys().chain(node.fingerprints.keys());
    let differs = |name: &&String| leaders.fingerprints.get(*name) != node.fingerprints.get(*name);
    names.into_iter().find(differs).map(|name| format!("its {name} differs from the leader's"))
}
