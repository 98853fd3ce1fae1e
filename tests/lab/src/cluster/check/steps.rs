//! The steps of the model.
//!
//! Steps of one member that touch nothing else are taken at once: a fault before them has the same effect as
//! one before the message that caused them. Heartbeats are delivered at once too: their order changes nothing
//! within one tick. Stops and kills take no time or the longest. Partitions and freezes end between two ticks.

use std::time::Duration;

use dtrain_agent::cluster::leader::LeaderEvent;
use dtrain_agent::cluster::member::{FinishedAttempt, MemberEvent};
use dtrain_agent::cluster::message::{Endpoint, ToLeader};
use dtrain_agent::cluster::trial::{self, FailedTry, Place};
use dtrain_agent::local::{Cause, End, Outcome, Verdict};
use dtrain_agent::signals;

use super::faults::Fault;
use super::model::{KILL, Model, NODES};
use super::node::{Link, Side, Workers};

/// A step. `Local`: one that only its node sees, which is a message, a timer, a connection, or the end of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Local { node: usize },
    ToLeader { node: usize, link: usize },
    EndAtLeader { node: usize, link: usize },
    EndAtMember { node: usize },
    LeaderTimer,
    WorkersEnd { node: usize },
    Fault(Fault),
    Heal { node: usize },
    Thaw { node: usize },
    Return { node: usize },
    Tick,
}

/// Ticks of work without a fault, and from a stop to the end: the longest is longer than a lease.
const LONGEST_WORK: u32 = 2;
const LONGEST_STOP: u32 = 3;
/// The longest partition, unless it lasts for ever, and the longest freeze.
const LONGEST_CUT: u32 = 5;
const LONGEST_FREEZE: u32 = 5;

impl Model {
    /// Returns the steps that are possible; the last is taken first.
    pub(super) fn steps(&self) -> Vec<Step> {
        if self.is_final() {
            return Vec::new();
        }
        if let Some(node) = (0..NODES).find(|node| self.has_local_step(*node)) {
            return vec![Step::Local { node }];
        }
        let mut steps = Vec::new();
        let mut is_urgent = false;
        let is_leader_awake = self.nodes[0].frozen.is_none() && !self.is_over;
        if is_leader_awake && self.leader.deadline().is_some_and(|at| at <= self.time()) {
            steps.push(Step::LeaderTimer);
            is_urgent = true;
        }
        for (node, state) in self.nodes.iter().enumerate() {
            for (link, it) in state.links.iter().enumerate() {
                let arrives = is_leader_awake && state.cut.is_none() && it.at_leader != Side::Closed;
                if arrives && !it.to_leader.is_empty() {
                    steps.push(Step::ToLeader { node, link });
                    is_urgent = true;
                } else if arrives && it.at_leader == Side::Ending {
                    steps.push(Step::EndAtLeader { node, link });
                    is_urgent = true;
                }
                let sees = state.cut.is_none() && state.frozen.is_none() && it.to_member.is_empty();
                if sees && it.at_member == Side::Ending {
                    steps.push(Step::EndAtMember { node });
                    is_urgent = true;
                }
            }
            if let Some(workers) = state.workers.filter(|_| state.frozen.is_none()) {
                let (earliest, latest) = match workers {
                    Workers { killed: Some(at), .. } => (at, at + KILL),
                    Workers { stopped: Some(at), .. } => (at, at + LONGEST_STOP),
                    Workers { since, .. } => (since + 1, since + LONGEST_WORK),
                };
                if earliest == self.now || latest <= self.now {
                    steps.push(Step::WorkersEnd { node });
                }
                is_urgent |= latest <= self.now;
            }
            if state.returns.is_some_and(|at| at <= self.now) && state.workers.is_none() && !self.is_over {
                steps.push(Step::Return { node });
                is_urgent = true;
            }
        }
        if self.faults_left > 0 && self.now < self.fault_ticks && !self.is_over {
            steps.extend(self.faults().into_iter().map(Step::Fault));
        }
        if is_urgent {
            return steps;
        }
        let nodes = || self.nodes.iter().enumerate();
        let is_short = |since: u32| self.now - since <= LONGEST_CUT;
        let cut = nodes().filter(|(_, state)| state.cut.is_some_and(is_short));
        steps.extend(cut.map(|(node, _)| Step::Heal { node }));
        steps.extend(nodes().filter_map(|(node, state)| state.frozen.map(|_| Step::Thaw { node })));
        let is_too_long = |since: u32| self.now - since >= LONGEST_FREEZE;
        if !nodes().any(|(_, state)| state.frozen.is_some_and(is_too_long)) {
            steps.push(Step::Tick);
        }
        steps
    }

    fn has_local_step(&self, node: usize) -> bool {
        let state = &self.nodes[node];
        let Some(member) = state.member.as_ref().filter(|_| state.frozen.is_none()) else { return false };
        let is_due = member.deadline().is_some_and(|at| at <= self.time());
        is_due
            || (state.is_preparing && !state.is_slow)
            || state.trying.is_some()
            || (state.wants_connection && self.can_connect(node))
            || (state.cut.is_none()
                && state.links.iter().any(|it| it.at_member != Side::Closed && !it.to_member.is_empty()))
            || self.eager_message(node).is_some()
            || (node == 0 && self.is_over)
    }

    /// Returns the connection whose next message the leader receives at once: a heartbeat, or one of the leader's node.
    fn eager_message(&self, node: usize) -> Option<usize> {
        let state = &self.nodes[node];
        let is_next = |message: &ToLeader| node == 0 || matches!(message, ToLeader::Beat { .. });
        let is_eager = |it: &Link| it.at_leader != Side::Closed && it.to_leader.front().is_some_and(is_next);
        let arrives = !self.is_over && state.cut.is_none() && self.nodes[0].frozen.is_none();
        state.links.iter().position(is_eager).filter(|_| arrives)
    }

    fn receive_at_leader(&mut self, node: usize, link: usize) {
        let link = &mut self.nodes[node].links[link];
        let from = link.id;
        if let Some(message) = link.to_leader.pop_front() {
            self.tell_leader(LeaderEvent::Received { from, message });
        }
    }

    fn can_connect(&self, node: usize) -> bool {
        self.nodes[node].cut.is_none() && self.nodes[0].frozen.is_none() && !self.is_over
    }

    fn local_step(&mut self, node: usize) {
        let now = self.time();
        let can_connect = self.can_connect(node);
        let eager = self.eager_message(node);
        let state = &mut self.nodes[node];
        let is_due = state.member.as_ref().and_then(|member| member.deadline()).is_some_and(|at| at <= now);
        let has_message = state.cut.is_none() && state.own_link().is_some_and(|it| !it.to_member.is_empty());
        if is_due {
            // A process that wakes reads the time before anything else.
            self.tell_member(node, MemberEvent::Timer);
        } else if has_message {
            self.deliver(node);
        } else if let Some(link) = eager {
            self.receive_at_leader(node, link);
        } else if state.is_preparing && !state.is_slow {
            state.is_preparing = false;
            let epoch = state.prepared;
            let listens = Some(Endpoint { host: "n0".to_owned(), port: 1, is_served: false });
            let place = Some(Place::closed([10, 0, 0, 1].into()));
            self.tell_member(node, MemberEvent::Prepared { epoch, listens, logs: 0, place });
        } else if let Some((epoch, to)) = state.trying.take() {
            let fails = std::mem::take(&mut state.cannot_reach);
            let failure = FailedTry { fault: trial::Fault::Silent, port: 1, other_works: false };
            let failures = if fails { vec![(to, failure)] } else { Vec::new() };
            self.tell_member(node, MemberEvent::Tried { epoch, failures });
        } else if state.wants_connection && can_connect {
            self.connect(node);
        } else {
            // The leader's process ends, and its own member with it.
            state.kill(now.as_secs() as u32);
            state.member = None;
        }
    }

    /// Takes a step; [`Self::check`] tells whether it breaks an invariant.
    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Local { node } => self.local_step(node),
            Step::ToLeader { node, link } => self.receive_at_leader(node, link),
            Step::EndAtLeader { node, link } => {
                let link = &mut self.nodes[node].links[link];
                link.at_leader = Side::Closed;
                let from = link.id;
                self.tell_leader(LeaderEvent::Disconnected { from });
            }
            Step::EndAtMember { node } => {
                self.nodes[node].close_at_member();
                self.tell_member(node, MemberEvent::Disconnected);
            }
            Step::LeaderTimer => self.tell_leader(LeaderEvent::Timer),
            Step::WorkersEnd { node } => self.workers_end(node),
            Step::Fault(fault) => self.fault(fault),
            Step::Heal { node } => self.nodes[node].cut = None,
            Step::Thaw { node } => {
                self.nodes[node].frozen = None;
                // Workers that are killed now count as frozen.
                self.tell_member(node, MemberEvent::Timer);
                if let Some(workers) = &mut self.nodes[node].workers {
                    workers.is_exempt = workers.killed.is_some();
                }
            }
            Step::Return { node } => {
                self.nodes[node].returns = None;
                self.begin_member(node);
            }
            Step::Tick => {
                self.now += 1;
                self.nodes.iter_mut().for_each(|node| (node.is_slow, node.cannot_reach) = (false, false));
            }
        }
        for node in &mut self.nodes {
            node.links.retain(|it| it.at_leader != Side::Closed || it.at_member != Side::Closed);
        }
    }

    fn workers_end(&mut self, node: usize) {
        let at = self.time();
        let Some(workers) = self.nodes[node].workers.take() else { return };
        let (cause, outcome) = match workers {
            Workers { failed: true, .. } => (Cause::Failed { rank: 0 }, Outcome::Exited(1)),
            Workers { stopped: None, killed: None, .. } => (Cause::Success, Outcome::Exited(0)),
            Workers { asked: true, .. } => {
                (Cause::Stopped { signal: signals::TERM }, Outcome::Signaled(signals::TERM))
            }
            _ => (Cause::OthersFailed, Outcome::Signaled(signals::KILL)),
        };
        let sent = match outcome {
            Outcome::Signaled(signal) => vec![signal],
            _ => Vec::new(),
        };
        let ends = vec![End { rank: 0, outcome, at, sent, lost_peer: false }];
        let verdict = Verdict { cause, ends, stop_source: None, silent_since: None, notices: Vec::new() };
        let finished = FinishedAttempt { verdict, port_taken: false, has_checkpoint: true, blame: None };
        self.tell_member(node, MemberEvent::Over(Box::new(finished)));
    }

    /// Reports a failure of a worker, whose node's others are being stopped.
    pub(super) fn worker_fails(&mut self, node: usize) {
        let now = self.now;
        if let Some(workers) = &mut self.nodes[node].workers {
            (workers.failed, workers.stopped) = (true, Some(now));
        }
        let at = Duration::from_secs(now.into());
        let end = End { rank: 0, outcome: Outcome::Exited(1), at, sent: Vec::new(), lost_peer: false };
        self.tell_member(node, MemberEvent::Failed(end));
    }
}
