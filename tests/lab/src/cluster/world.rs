//! A simulated cluster: the agents' own decisions, with simulated clocks, connections, workers and faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use dtrain_agent::cluster::leader::LeaderEvent;
use dtrain_agent::cluster::lease::Times;
use dtrain_agent::cluster::member::{MemberEnding, MemberEvent, MemberPolicy};
use dtrain_agent::cluster::message::{Endpoint, RunInfo, ToLeader};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::trial::Place;
use dtrain_agent::cluster::{ClusterPolicy, Leader, Member};
use dtrain_agent::local::{RestartPolicy, Restarts};
use dtrain_test_kit::faults::Random;

use super::node::SimNode;
use super::step::{Fault, Step, ms};

/// The settings of one simulated run.
#[derive(Clone, Debug, Default)]
pub(super) struct Setup {
    pub(super) nodes: usize,
    pub(super) least: usize,
    pub(super) max_restarts: u32,
    /// How long workers run without a fault.
    pub(super) work: Duration,
    pub(super) faults: usize,
    /// Nodes beyond the most that take part.
    pub(super) spare: usize,
    /// Whether users give node ranks; the spare nodes' are taken.
    pub(super) has_node_ranks: bool,
    /// Whether some nodes come later.
    pub(super) is_late: bool,
    /// Whether TERM to a node means that it leaves.
    pub(super) may_leave: bool,
    /// One message of this number is slow.
    pub(super) slow_one_in: u64,
    /// One node of this number does not reach the others that it tries; 0: none.
    pub(super) fails_one_in: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes {
    pub(super) epochs: u64,
    pub(super) messages: u64,
    /// From the start to the first start of workers everywhere.
    pub(super) started_after: Option<Duration>,
    pub(super) code: Option<u8>,
    pub(super) leader_lost: usize,
}

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    steps: BTreeMap<u64, Step>,
    pub(super) next: u64,
    pub(super) leader: Leader,
    pub(super) is_leader_over: bool,
    pub(super) nodes: Vec<SimNode>,
    pub(super) connections: BTreeMap<u64, (usize, Duration, Duration)>,
    pub(super) open_at_leader: BTreeMap<u64, usize>,
    pub(super) attempts: u64,
    timers: BTreeMap<Option<usize>, u64>,
    pub(super) outcomes: Outcomes,
}

const REJOIN: Duration = Duration::from_secs(10);

impl World {
    pub(super) fn new(setup: Setup, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Most faults last longer than the short lease, and some longer than the usual one.
        let usual = Times::default();
        let times = if random.below(2) == 0 { usual } else { Times { length: ms(1000), ..usual } };
        let policy = ClusterPolicy {
            nodes: setup.least..=setup.nodes,
            join_timeout: ms(600_000),
            last_call: ms(3000),
            ready_timeout: ms(30_000),
            times,
            requeue_code: Some(75),
            rejoin_timeout: REJOIN,
            failures_in_a_row: 3,
            rejoin_call: ms(3000),
            run: RunInfo::default(),
            first_logs: 0,
            admits_at_checkpoint: setup.is_late,
            nodes_may_leave: setup.may_leave,
            has_trial: true,
            nodes_of_job: None,
        };
        let restarts =
            Restarts::new(RestartPolicy { max_restarts: setup.max_restarts, ..RestartPolicy::default() });
        let nodes = (0..setup.nodes + setup.spare).map(|_| SimNode::new(&mut random)).collect();
        let leader = Leader::new(policy, restarts, Duration::ZERO);
        let mut world = Self {
            random,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            steps: BTreeMap::new(),
            next: 0,
            leader,
            is_leader_over: false,
            nodes,
            connections: BTreeMap::new(),
            open_at_leader: BTreeMap::new(),
            attempts: 0,
            timers: BTreeMap::new(),
            outcomes: Outcomes::default(),
            setup,
        };
        if let Some(deadline) = world.leader.deadline() {
            world.wake(None, deadline);
        }
        for node in 0..world.nodes.len() {
            let is_late = node > 0 && (node >= world.setup.nodes || world.setup.is_late);
            match is_late && world.random.below(3) == 0 {
                true => {
                    let at = ms(world.random.below(2 * world.setup.work.as_millis() as u64));
                    world.at(at, Step::Return { node });
                }
                false => world.begin_member(node),
            }
        }
        for _ in 0..world.setup.faults {
            let at = ms(world.random.below(2 * world.setup.work.as_millis() as u64));
            let fault = Fault::any(&mut world.random, world.nodes.len());
            world.at(at, Step::Fault(fault));
        }
        world
    }

    /// Runs until the run is over everywhere. Panics where an invariant does not hold.
    pub(super) fn run(&mut self) {
        while let Some(Reverse((at, id))) = self.queue.pop() {
            let Some(step) = self.steps.remove(&id) else { continue };
            assert!(at < ms(3_600_000), "the run does not end: {:?}", self.leader);
            self.now = self.now.max(at);
            self.step(step);
            if self.is_leader_over
                && self.nodes.iter().all(|node| node.ending.is_some() || node.member.is_none())
            {
                break;
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            assert!(node.running.is_none(), "workers of node {index} are left");
            match &node.ending {
                // The node has left, with a checkpoint or without.
                Some(MemberEnding::Decided { code: 75 | 143, .. })
                    if self.setup.may_leave && node.was_asked && index > 0 => {}
                Some(MemberEnding::Decided { code, .. }) => assert_eq!(Some(*code), self.outcomes.code),
                Some(MemberEnding::LeaderLost) => self.outcomes.leader_lost += 1,
                Some(MemberEnding::Rejected { .. } | MemberEnding::NoLeader | MemberEnding::Left) => {}
                Some(MemberEnding::Stopped { .. }) => {}
                other => assert!(node.member.is_none() && other.is_none(), "node {index}: {other:?}"),
            }
        }
        assert!(self.is_leader_over, "the leader has not decided: {:?}", self.leader);
    }

    /// Workers of two epochs never run at the same time.
    pub(super) fn check(&self) {
        let running = self.nodes.iter().filter(|node| !node.is_exempt()).filter_map(|node| node.running);
        let mut epochs: Vec<u64> = running.map(|(epoch, _)| epoch).collect();
        epochs.dedup();
        assert!(epochs.len() < 2, "workers of epochs {epochs:?} run together at {:?}", self.now);
    }

    pub(super) fn at(&mut self, at: Duration, step: Step) {
        self.queue.push(Reverse((at, self.next)));
        self.steps.insert(self.next, step);
        self.next += 1;
    }

    pub(super) fn after(&mut self, delay: Duration, step: Step) {
        self.at(self.now + delay, step);
    }

    pub(super) fn wake(&mut self, node: Option<usize>, at: Duration) {
        self.timers.insert(node, self.next);
        let number = self.next;
        self.at(at.max(self.now + Duration::from_micros(100)), Step::Wake { node, number });
    }

    pub(super) fn step(&mut self, step: Step) {
        let is_leaders = matches!(step, Step::ToLeader { .. } | Step::Wake { node: None, .. })
            || matches!(step, Step::Cut { at_leader: true, at_member: false, .. });
        if is_leaders && self.nodes[0].is_frozen {
            return self.nodes[0].held.push_back(step);
        }
        let node = self.node_of(&step);
        if let Some(node) = node {
            let is_message = matches!(step, Step::ToMember { .. } | Step::ToLeader { .. });
            let is_local = matches!(
                step,
                Step::Wake { .. } | Step::Prepared { .. } | Step::Tried { .. } | Step::WorkersEnd { .. }
            );
            let state = &mut self.nodes[node];
            if (state.is_cut_off && is_message)
                || (state.is_frozen && (is_local || matches!(step, Step::ToMember { .. })))
            {
                return state.held.push_back(step);
            }
        }
        match step {
            Step::Connect { node } => self.connect(node),
            Step::ToLeader { connection, message } => {
                if self.open_at_leader.contains_key(&connection) {
                    self.tell_leader(LeaderEvent::Received { from: connection, message });
                }
            }
            Step::ToMember { connection, message } => {
                if let Some(node) = self.holder(connection) {
                    self.tell_member(node, MemberEvent::Received(message));
                }
            }
            Step::Cut { connection, at_leader, at_member } => self.cut(connection, at_leader, at_member),
            Step::Wake { node, number } if self.timers.get(&node) != Some(&number) => {}
            Step::Wake { node: Some(node), .. } => self.tell_member(node, MemberEvent::Timer),
            Step::Wake { node: None, .. } => self.tell_leader(LeaderEvent::Timer),
            Step::Prepared { node, epoch, logs } => {
                if self.nodes[node].prepared == epoch {
                    let listens = Endpoint { host: format!("node{node}"), port: 1024, is_served: false };
                    let place = Some(Place::closed([10, 0, 0, 1].into()));
                    self.tell_member(
                        node,
                        MemberEvent::Prepared { epoch, listens: Some(listens), logs, place },
                    );
                }
            }
            Step::Tried { node, epoch, failures } => {
                self.tell_member(node, MemberEvent::Tried { epoch, failures });
            }
            Step::WorkersEnd { node, attempt, how } => self.workers_end(node, attempt, how),
            Step::Fault(fault) => self.fault(fault),
            Step::Gone { instance } => {
                // The guardian has its own connection.
                self.next += 1;
                let message = ToLeader::Gone { instance };
                self.tell_leader(LeaderEvent::Received { from: self.next, message });
            }
            Step::Heal { node } => {
                self.nodes[node].is_cut_off = false;
                self.release(node);
            }
            Step::Thaw { node } => {
                self.nodes[node].is_frozen = false;
                // A process that wakes reads the time before anything else.
                self.tell_member(node, MemberEvent::Timer);
                self.nodes[node].is_killed_awake = self.nodes[node].is_killed;
                self.check();
                self.release(node);
            }
            Step::Return { node } => {
                if !self.is_leader_over && self.nodes[node].member.is_none() {
                    self.begin_member(node);
                }
            }
        }
    }

    /// Returns the node whose member has this connection.
    fn holder(&self, connection: u64) -> Option<usize> {
        let node = self.connections.get(&connection)?.0;
        (self.nodes[node].connection == Some(connection)).then_some(node)
    }

    fn release(&mut self, node: usize) {
        for step in std::mem::take(&mut self.nodes[node].held) {
            self.step(step);
        }
    }

    fn node_of(&self, step: &Step) -> Option<usize> {
        match step {
            Step::ToLeader { connection, .. } | Step::ToMember { connection, .. } => {
                self.connections.get(connection).map(|(node, ..)| *node)
            }
            Step::Wake { node, .. } => *node,
            Step::Prepared { node, .. } | Step::Tried { node, .. } | Step::WorkersEnd { node, .. } => {
                Some(*node)
            }
            _ => None,
        }
    }

    fn begin_member(&mut self, index: usize) {
        let given = index % self.setup.nodes;
        self.nodes[index].instance = self.random.next();
        let node = Node {
            host: format!("node{index}"),
            address: None,
            instance: self.nodes[index].instance,
            workers: 1 + index % 3,
            node_rank: self.setup.has_node_ranks.then_some(given),
            run_id: None,
            fingerprints: BTreeMap::new(),
        };
        let policy = MemberPolicy { join_timeout: ms(600_000), rejoin_timeout: REJOIN };
        let now = self.nodes[index].clock(self.now);
        let (member, actions) = Member::new(node, policy, now);
        self.nodes[index].member = Some(member);
        self.carry_out(index, actions);
        self.tell_member(index, MemberEvent::Timer);
    }

    fn connect(&mut self, node: usize) {
        if self.nodes[node].member.is_none() || self.nodes[node].connection.is_some() || self.is_leader_over {
            return;
        }
        if self.nodes[node].is_cut_off || self.nodes[node].is_frozen || self.nodes[0].is_frozen {
            return self.after(ms(100), Step::Connect { node });
        }
        // The leader's own member has the smallest number.
        self.next += 1;
        let connection = if node == 0 { 0 } else { self.next };
        self.connections.insert(connection, (node, Duration::ZERO, Duration::ZERO));
        self.open_at_leader.insert(connection, node);
        self.nodes[node].connection = Some(connection);
        self.tell_member(node, MemberEvent::Connected);
    }

    fn cut(&mut self, connection: u64, at_leader: bool, at_member: bool) {
        if at_leader && self.open_at_leader.remove(&connection).is_some() {
            self.tell_leader(LeaderEvent::Disconnected { from: connection });
        }
        if let Some(node) = self.holder(connection).filter(|_| at_member) {
            self.nodes[node].connection = None;
            self.tell_member(node, MemberEvent::Disconnected);
        }
    }
}
