//! The state of the model: the leader, three members, their connections and workers.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use dtrain_agent::cluster::leader::{LeaderAction, LeaderEvent, OWN};
use dtrain_agent::cluster::lease::Times;
use dtrain_agent::cluster::member::{MemberAction, MemberEnding, MemberEvent, MemberPolicy};
use dtrain_agent::cluster::message::{RunInfo, ToMember};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::{ClusterPolicy, Leader, Member};
use dtrain_agent::local::{RestartPolicy, Restarts};

use super::Bounds;
use super::node::{Link, NodeState, Side, Workers};

/// A fault of the protocol that the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// Leases are longer than the leader's.
    LongLease,
    /// The leader does not wait for the end of killed workers.
    FenceWithoutKill,
    /// A member obeys the start of an earlier epoch.
    OldStart,
}

pub(super) const NODES: usize = 3;
/// In ticks of one second.
pub(super) const TIMES: Times =
    Times { beat: Duration::from_secs(1), length: Duration::from_secs(2), kill: Duration::from_secs(2) };
/// Killed workers have ended after this number of ticks.
pub(super) const KILL: u32 = 2;
/// Every run is over by then.
const HORIZON: u32 = 80;
const CODE: u8 = 4;

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) now: u32,
    pub(super) leader: Leader,
    leader_hash: u64,
    pub(super) is_over: bool,
    pub(super) nodes: [NodeState; NODES],
    pub(super) faults_left: u8,
    pub(super) had_fault: bool,
    pub(super) fault_ticks: u32,
    next_link: u64,
    started: u64,
    planted: Planted,
    violation: Option<String>,
}

fn hash_of(value: &impl std::fmt::Debug) -> u64 {
    struct Text(DefaultHasher);
    impl std::fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(DefaultHasher::new());
    let _ = std::fmt::write(&mut text, format_args!("{value:?}"));
    text.0.finish()
}

impl Model {
    pub(super) fn new(bounds: &Bounds, planted: Planted) -> Self {
        let second = Duration::from_secs;
        let kill = if planted == Planted::FenceWithoutKill { second(0) } else { TIMES.kill };
        let policy = ClusterPolicy {
            nodes: bounds.least..=NODES,
            join_timeout: second(6),
            last_call: second(1),
            rejoin_call: second(1),
            ready_timeout: second(3),
            times: Times { kill, ..TIMES },
            requeue_code: Some(75),
            rejoin_timeout: second(4),
            failures_in_a_row: 3,
            run: RunInfo::default(),
            first_logs: 0,
            admits_at_checkpoint: false,
            nodes_may_leave: true,
            has_trial: true,
            nodes_of_job: None,
        };
        let restarts =
            Restarts::new(RestartPolicy { max_restarts: bounds.max_restarts, ..RestartPolicy::default() });
        let leader = Leader::new(policy, restarts, Duration::ZERO);
        let mut model = Self {
            now: 0,
            leader_hash: hash_of(&leader),
            leader,
            is_over: false,
            nodes: Default::default(),
            faults_left: bounds.faults,
            had_fault: false,
            fault_ticks: bounds.fault_ticks,
            next_link: 1,
            started: 0,
            planted,
            violation: None,
        };
        for node in 0..NODES {
            model.begin_member(node);
        }
        model
    }

    pub(super) fn time(&self) -> Duration {
        Duration::from_secs(self.now.into())
    }

    pub(super) fn begin_member(&mut self, index: usize) {
        let node = Node {
            host: format!("n{index}"),
            address: None,
            // Each start of a node has another number, as in the launcher.
            instance: u64::from(self.now) * NODES as u64 + index as u64,
            workers: 1,
            node_rank: None,
            run_id: None,
            fingerprints: Default::default(),
        };
        let second = Duration::from_secs;
        let policy = MemberPolicy { join_timeout: second(10), rejoin_timeout: second(4) };
        let (member, actions) = Member::new(node, policy, self.time());
        self.nodes[index].member = Some(member);
        self.carry_out(index, actions);
    }

    pub(super) fn connect(&mut self, index: usize) {
        let id = if index == 0 { OWN } else { self.next_link };
        self.next_link += 1;
        let state = &mut self.nodes[index];
        state.wants_connection = false;
        let (at_leader, at_member) = (Side::Open, Side::Open);
        let (to_leader, to_member) = (VecDeque::new(), VecDeque::new());
        state.links.push(Link { id, to_leader, to_member, at_leader, at_member });
        self.tell_member(index, MemberEvent::Connected);
    }

    pub(super) fn tell_member(&mut self, index: usize, event: MemberEvent) {
        let now = self.time();
        let is_timer = event == MemberEvent::Timer;
        let Some(member) = &mut self.nodes[index].member else { return };
        let actions = member.on(event, now);
        if is_timer && member.deadline().is_some_and(|at| at <= now) {
            self.fail("a member's timer does not move");
        }
        self.carry_out(index, actions);
        let state = &mut self.nodes[index];
        state.member_hash = state.member.as_ref().map_or(0, hash_of);
    }

    pub(super) fn tell_leader(&mut self, event: LeaderEvent) {
        if self.is_over {
            return;
        }
        let now = self.time();
        let is_timer = event == LeaderEvent::Timer;
        let actions = self.leader.on(event, now);
        if is_timer && self.leader.deadline().is_some_and(|at| at <= now) {
            self.fail("the leader's timer does not move");
        }
        self.carry_out_leader(actions);
        self.leader_hash = hash_of(&self.leader);
    }

    fn carry_out_leader(&mut self, actions: Vec<LeaderAction>) {
        for action in actions {
            match action {
                LeaderAction::Send { to, message } => self.send(to, message),
                LeaderAction::Close { member } => {
                    if let Some(link) = self.link(member) {
                        link.close_at_leader();
                    }
                }
                LeaderAction::Tell(_) => {}
                LeaderAction::Finish(_) => {
                    if std::mem::replace(&mut self.is_over, true) {
                        self.fail("the run ends twice");
                    }
                    let actions = self.leader.decide(CODE, String::new());
                    self.carry_out_leader(actions);
                    let links = self.nodes.iter_mut().flat_map(|node| &mut node.links);
                    links.for_each(Link::close_at_leader);
                }
            }
        }
    }

    fn link(&mut self, id: u64) -> Option<&mut Link> {
        self.nodes.iter_mut().flat_map(|node| &mut node.links).find(|link| link.id == id)
    }

    fn send(&mut self, to: u64, mut message: ToMember) {
        match &mut message {
            ToMember::Propose(it) if self.running().next().is_some() => {
                let epoch = it.epoch;
                self.fail(&format!("epoch {epoch} is proposed while workers of an earlier one run"));
            }
            ToMember::Start { epoch, .. } => self.started = *epoch,
            ToMember::Welcome { times, .. } => {
                times.kill = TIMES.kill;
                if self.planted == Planted::LongLease && to != OWN {
                    times.length *= 4;
                }
            }
            _ => {}
        }
        if let Some(link) = self.link(to).filter(|link| link.at_leader != Side::Closed) {
            link.to_member.push_back(message);
        }
    }

    /// Returns the running workers, except those that do not run because of a freeze.
    fn running(&self) -> impl Iterator<Item = Workers> {
        let awake = self.nodes.iter().filter(|node| node.frozen.is_none());
        awake.filter_map(|node| node.workers).filter(|workers| !workers.is_exempt)
    }

    fn carry_out(&mut self, index: usize, actions: Vec<MemberAction>) {
        let (now, started) = (self.now, self.started);
        for action in actions {
            let state = &mut self.nodes[index];
            match action {
                MemberAction::Send(message) => {
                    if let Some(link) = state.own_link() {
                        link.to_leader.push_back(message);
                    }
                }
                MemberAction::Connect => state.wants_connection = index != 0 || state.links.is_empty(),
                MemberAction::Disconnect => state.close_at_member(),
                MemberAction::Joined { .. } => {}
                MemberAction::Prepare(preparation) => {
                    (state.prepared, state.is_preparing) = (preparation.epoch, true);
                }
                MemberAction::Try { epoch, places } => {
                    state.trying = Some((epoch, places.first().map_or(0, |(to, _)| *to)));
                }
                MemberAction::Start { .. } => {
                    let epoch = state.prepared;
                    let workers = Workers { epoch, since: now, ..Workers::default() };
                    if state.workers.replace(workers).is_some() {
                        self.fail("workers are started beside others of the node");
                    } else if epoch != started {
                        self.fail(&format!("epoch {epoch} runs, but {started} was started last"));
                    }
                }
                MemberAction::Stop(_) => {
                    if let Some(workers) = &mut state.workers {
                        workers.stopped.get_or_insert(now);
                    }
                }
                MemberAction::Kill => state.kill(now),
                MemberAction::Finish(ending) => {
                    // A node that was asked to leave, with a checkpoint or without.
                    let has_left = |code| state.was_asked && [75, 143].contains(&code);
                    let is_wrong = |code| (code != CODE || !self.is_over) && !has_left(code);
                    if matches!(ending, MemberEnding::Decided { code, .. } if is_wrong(code)) {
                        self.fail("a member ends with another code than the leader's");
                    }
                    let state = &mut self.nodes[index];
                    state.member = None;
                    state.close_at_member();
                }
            }
        }
    }

    /// Delivers the next message to a member.
    pub(super) fn deliver(&mut self, index: usize) {
        let state = &mut self.nodes[index];
        let Some(link) = state.own_link() else { return };
        let Some(mut message) = link.to_member.pop_front() else { return };
        if self.planted == Planted::OldStart {
            match &message {
                ToMember::Propose(it) => {
                    if let Some(ToMember::Start { rank0, .. }) = state.old_start.take() {
                        // As if the member did not compare epochs.
                        let start = ToMember::Start { epoch: it.epoch, rank0 };
                        self.tell_member(index, MemberEvent::Received(message));
                        message = start;
                    }
                }
                ToMember::Start { .. } => state.old_start = Some(message.clone()),
                _ => {}
            }
        }
        self.tell_member(index, MemberEvent::Received(message));
    }

    /// Returns an error if an invariant does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        let mut epochs: Vec<u64> = self.running().map(|workers| workers.epoch).collect();
        epochs.dedup();
        if epochs.len() > 1 {
            return Err(format!("workers of epochs {epochs:?} run together"));
        }
        let links = || self.nodes.iter().flat_map(|node| &node.links);
        if links().any(|link| link.to_leader.len().max(link.to_member.len()) > 40) || links().count() > 12 {
            return Err("a queue grows".to_owned());
        }
        if self.now > HORIZON {
            return Err(format!("the run does not end: {:?}", self.leader));
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, violation: &str) {
        self.violation.get_or_insert_with(|| violation.to_owned());
    }

    /// Returns whether the run is over on all nodes.
    pub(super) fn is_final(&self) -> bool {
        self.is_over && self.nodes.iter().all(|node| node.member.is_none() && node.workers.is_none())
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.now, self.leader_hash, self.is_over, self.faults_left, self.started).hash(&mut hasher);
        for node in &self.nodes {
            (node.member_hash, node.member.is_some(), node.wants_connection, node.prepared).hash(&mut hasher);
            (node.is_preparing, node.is_slow, node.was_asked).hash(&mut hasher);
            (node.trying, node.cannot_reach).hash(&mut hasher);
            (node.workers, node.frozen, node.cut, node.returns, node.old_start.is_some()).hash(&mut hasher);
            for link in &node.links {
                (link.id, link.at_leader, link.at_member).hash(&mut hasher);
                if !(link.to_leader.is_empty() && link.to_member.is_empty()) {
                    hash_of(&(&link.to_leader, &link.to_member)).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }
}
