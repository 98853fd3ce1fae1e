//! A simulated cluster: the agents' own decisions, with simulated clocks, connections, workers and faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use dtrain_agent::cluster::leader::{LeaderAction, LeaderEvent};
use dtrain_agent::cluster::member::{
    FinishedAttempt, MemberAction, MemberEnding, MemberEvent, MemberPolicy, Preparation,
};
use dtrain_agent::cluster::message::{Endpoint, RunInfo, StopReason, ToLeader, ToMember};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::{ClusterPolicy, Leader, Member};
use dtrain_agent::local::{Cause, End, Outcome, RestartPolicy, Restarts, Verdict};
use dtrain_agent::signals;

use crate::random::Random;

/// The settings of one simulated run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) nodes: usize,
    pub(super) least: usize,
    pub(super) max_restarts: u32,
    /// How long workers run without a fault.
    pub(super) work: Duration,
    pub(super) faults: usize,
}

/// An event of the world, at a time.
#[derive(Clone, Debug)]
enum Step {
    Connect {
        node: usize,
    },
    ToLeader {
        connection: u64,
        message: ToLeader,
    },
    ToMember {
        connection: u64,
        message: ToMember,
    },
    /// Both sides, or one, see the end of a connection.
    Cut {
        connection: u64,
        at_leader: bool,
        at_member: bool,
    },
    /// A timer of the node, or of the leader (`None`), which a later one may have replaced.
    Wake {
        node: Option<usize>,
        number: u64,
    },
    Prepared {
        node: usize,
        epoch: u64,
    },
    WorkersEnd {
        node: usize,
        attempt: u64,
        how: How,
    },
    Fault(Fault),
    Heal {
        node: usize,
    },
    Thaw {
        node: usize,
    },
    Return {
        node: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Done,
    Failed,
    Stopped,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    WorkerFails {
        node: usize,
    },
    /// The agent and its workers die at once, and the agent is started again later.
    NodeDies {
        node: usize,
    },
    /// The connection is reset.
    Reset {
        node: usize,
    },
    /// Nothing arrives on either side for some time.
    Partition {
        node: usize,
    },
    /// No process of the node runs for some time.
    Freeze {
        node: usize,
    },
}

struct SimNode {
    member: Option<Member>,
    connection: Option<u64>,
    /// The member's clock is ahead of the world's by this.
    offset: Duration,
    is_cut_off: bool,
    is_frozen: bool,
    /// Whether the running workers were frozen: they run for a moment after a thaw, until the member kills them.
    was_frozen: bool,
    /// Events that wait for the end of a partition or freeze.
    held: VecDeque<Step>,
    /// The epoch and the number of the attempt of running workers.
    running: Option<(u64, u64)>,
    prepared: u64,
    /// An attempt that was asked to stop.
    is_stopping: bool,
    ending: Option<MemberEnding>,
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
    setup: Setup,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    steps: BTreeMap<u64, Step>,
    next: u64,
    leader: Leader,
    is_leader_over: bool,
    nodes: Vec<SimNode>,
    connections: BTreeMap<u64, (usize, Duration, Duration)>,
    open_at_leader: BTreeMap<u64, usize>,
    attempts: u64,
    timers: BTreeMap<Option<usize>, u64>,
    pub(super) outcomes: Outcomes,
}

const REJOIN: Duration = Duration::from_secs(10);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    pub(super) fn new(setup: Setup, seed: u64) -> Self {
        let policy = ClusterPolicy {
            nodes: setup.least..=setup.nodes,
            join_timeout: ms(600_000),
            last_call: ms(3000),
            ready_timeout: ms(30_000),
            times: Default::default(),
            requeue_code: Some(75),
            failures_in_a_row: 3,
            rejoin_call: ms(3000),
            run: RunInfo::default(),
            first_logs: 0,
        };
        let restarts =
            Restarts::new(RestartPolicy { max_restarts: setup.max_restarts, ..RestartPolicy::default() });
        let mut random = Random::new(seed);
        let nodes = (0..setup.nodes).map(|_| SimNode::new(ms(random.below(10_000_000)))).collect();
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
        for node in 0..world.setup.nodes {
            world.begin_member(node);
        }
        for _ in 0..world.setup.faults {
            let at = ms(world.random.below(2 * world.setup.work.as_millis() as u64));
            let node = world.random.below(world.setup.nodes as u64) as usize;
            let others = 1 + world.random.below((world.setup.nodes as u64 - 1).max(1)) as usize;
            let other = others.min(world.setup.nodes - 1);
            // The leader's own node loses no connection to itself.
            let fault = match world.random.below(5) {
                0 => Fault::NodeDies { node: other },
                1 => Fault::Reset { node: other },
                2 => Fault::Partition { node: other },
                3 => Fault::Freeze { node: other },
                _ => Fault::WorkerFails { node },
            };
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
            self.check();
            if self.is_leader_over
                && self.nodes.iter().all(|node| node.ending.is_some() || node.member.is_none())
            {
                break;
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            assert!(node.running.is_none(), "workers of node {index} are left");
            match &node.ending {
                Some(MemberEnding::Decided { code, .. }) => assert_eq!(Some(*code), self.outcomes.code),
                Some(MemberEnding::LeaderLost) => self.outcomes.leader_lost += 1,
                Some(MemberEnding::Rejected { .. } | MemberEnding::NoLeader) => {}
                other => assert!(node.member.is_none() && other.is_none(), "node {index}: {other:?}"),
            }
        }
        assert!(self.is_leader_over, "the leader has not decided: {:?}", self.leader);
    }

    /// Workers of two epochs never run at the same time, and ranks are placed once.
    fn check(&self) {
        let running = self.nodes.iter().filter(|node| !node.was_frozen).filter_map(|node| node.running);
        let mut epochs: Vec<u64> = running.map(|(epoch, _)| epoch).collect();
        epochs.dedup();
        assert!(epochs.len() < 2, "workers of epochs {epochs:?} run together at {:?}", self.now);
    }

    fn at(&mut self, at: Duration, step: Step) {
        self.queue.push(Reverse((at, self.next)));
        self.steps.insert(self.next, step);
        self.next += 1;
    }

    fn after(&mut self, delay: Duration, step: Step) {
        self.at(self.now + delay, step);
    }

    fn wake(&mut self, node: Option<usize>, at: Duration) {
        self.timers.insert(node, self.next);
        let number = self.next;
        self.at(at.max(self.now + Duration::from_micros(100)), Step::Wake { node, number });
    }

    fn step(&mut self, step: Step) {
        let node = self.node_of(&step);
        if let Some(node) = node {
            let is_message = matches!(step, Step::ToMember { .. } | Step::ToLeader { .. });
            let is_local =
                matches!(step, Step::Wake { .. } | Step::Prepared { .. } | Step::WorkersEnd { .. });
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
                if let Some(node) = self.nodes.iter().position(|node| node.connection == Some(connection)) {
                    self.tell_member(node, MemberEvent::Received(message));
                }
            }
            Step::Cut { connection, at_leader, at_member } => self.cut(connection, at_leader, at_member),
            Step::Wake { node, number } if self.timers.get(&node) != Some(&number) => {}
            Step::Wake { node: Some(node), .. } => self.tell_member(node, MemberEvent::Timer),
            Step::Wake { node: None, .. } => self.tell_leader(LeaderEvent::Timer),
            Step::Prepared { node, epoch } => {
                if self.nodes[node].prepared == epoch {
                    let listens = Endpoint { host: format!("node{node}"), port: 1024, is_served: false };
                    self.tell_member(node, MemberEvent::Prepared { epoch, listens: Some(listens) });
                }
            }
            Step::WorkersEnd { node, attempt, how } => self.workers_end(node, attempt, how),
            Step::Fault(fault) => self.fault(fault),
            Step::Heal { node } => {
                self.nodes[node].is_cut_off = false;
                self.release(node);
            }
            Step::Thaw { node } => {
                self.nodes[node].is_frozen = false;
                // A process that wakes reads the time before anything else.
                self.tell_member(node, MemberEvent::Timer);
                self.release(node);
            }
            Step::Return { node } => {
                if !self.is_leader_over && self.nodes[node].member.is_none() {
                    self.begin_member(node);
                }
            }
        }
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
            Step::Prepared { node, .. } | Step::WorkersEnd { node, .. } => Some(*node),
            _ => None,
        }
    }

    fn begin_member(&mut self, index: usize) {
        let node = Node {
            host: format!("node{index}"),
            instance: self.random.next(),
            workers: 1 + index % 3,
            node_rank: None,
            run_id: None,
            fingerprints: BTreeMap::new(),
        };
        let policy = MemberPolicy { join_timeout: ms(600_000), rejoin_timeout: REJOIN };
        let now = self.now + self.nodes[index].offset;
        let (member, actions) = Member::new(node, policy, now);
        self.nodes[index].member = Some(member);
        self.carry_out(index, actions);
        self.tell_member(index, MemberEvent::Timer);
    }

    fn connect(&mut self, node: usize) {
        if self.nodes[node].member.is_none() || self.nodes[node].connection.is_some() || self.is_leader_over {
            return;
        }
        if self.nodes[node].is_cut_off || self.nodes[node].is_frozen {
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
        let node = self.nodes.iter().position(|node| node.connection == Some(connection));
        if let Some(node) = node.filter(|_| at_member) {
            self.nodes[node].connection = None;
            self.tell_member(node, MemberEvent::Disconnected);
        }
    }

    fn tell_leader(&mut self, event: LeaderEvent) {
        if self.is_leader_over {
            return;
        }
        let actions = self.leader.on(event, self.now);
        self.carry_out_leader(actions);
        if let Some(deadline) = self.leader.deadline().filter(|_| !self.is_leader_over) {
            self.wake(None, deadline);
        }
    }

    fn carry_out_leader(&mut self, actions: Vec<LeaderAction>) {
        for action in actions {
            match action {
                LeaderAction::Send { to, message } => {
                    if let ToMember::Start { .. } = message {
                        self.outcomes.started_after.get_or_insert(self.now);
                    }
                    self.send(
                        to,
                        |connection| Step::ToMember { connection, message: message.clone() },
                        false,
                    );
                }
                LeaderAction::Close { member } => {
                    self.open_at_leader.remove(&member);
                    let at = self.connections.get(&member).map_or(self.now, |(.., at)| (*at).max(self.now));
                    self.at(at, Step::Cut { connection: member, at_leader: false, at_member: true });
                }
                LeaderAction::Tell(_) => {}
                LeaderAction::Finish(_) => {
                    self.is_leader_over = true;
                    self.outcomes.code = Some(4);
                    let actions = self.leader.decide(4, String::new());
                    self.carry_out_leader(actions);
                    // The leader's process ends: every connection does.
                    for connection in self.open_at_leader.clone().into_keys() {
                        let at = self.connections[&connection].2.max(self.now);
                        self.at(at, Step::Cut { connection, at_leader: true, at_member: true });
                    }
                }
            }
        }
    }

    /// Sends a message, in order with the others of its connection; some come twice.
    fn send(&mut self, connection: u64, step: impl Fn(u64) -> Step, is_to_leader: bool) {
        self.outcomes.messages += 1;
        let delay = match connection {
            0 => Duration::ZERO,
            _ if self.random.below(50) == 0 => ms(self.random.below(700)),
            _ => Duration::from_micros(50 + self.random.below(2000)),
        };
        let now = self.now;
        let Some((_, there, back)) = self.connections.get_mut(&connection) else { return };
        let last = if is_to_leader { there } else { back };
        let at = (now + delay).max(*last);
        *last = at;
        self.at(at, step(connection));
        if self.random.below(100) == 0 {
            self.at(at, step(connection));
        }
    }

    fn tell_member(&mut self, node: usize, event: MemberEvent) {
        let state = &mut self.nodes[node];
        let now = self.now + state.offset;
        let Some(member) = &mut state.member else { return };
        let actions = member.on(event, now);
        let deadline = member.deadline().map(|at| at.saturating_sub(state.offset));
        self.carry_out(node, actions);
        if let Some(at) = deadline {
            self.wake(Some(node), at);
        }
    }

    fn carry_out(&mut self, node: usize, actions: Vec<MemberAction>) {
        for action in actions {
            match action {
                MemberAction::Send(message) => {
                    if let Some(connection) = self.nodes[node].connection {
                        self.send(
                            connection,
                            |connection| Step::ToLeader { connection, message: message.clone() },
                            true,
                        );
                    }
                }
                MemberAction::Connect => self.after(ms(20), Step::Connect { node }),
                MemberAction::Disconnect => {
                    if let Some(connection) = self.nodes[node].connection.take() {
                        self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                    }
                }
                MemberAction::Joined(_) => {}
                MemberAction::Prepare(Preparation { epoch, .. }) => {
                    self.outcomes.epochs = self.outcomes.epochs.max(epoch);
                    self.nodes[node].prepared = epoch;
                    let delay = ms(self.random.below(50));
                    self.after(delay, Step::Prepared { node, epoch });
                }
                MemberAction::Start { .. } => {
                    self.attempts += 1;
                    let attempt = self.attempts;
                    let epoch = self.nodes[node].prepared;
                    assert!(self.nodes[node].running.is_none(), "an attempt still runs");
                    let state = &mut self.nodes[node];
                    (state.running, state.is_stopping, state.was_frozen) =
                        (Some((epoch, attempt)), false, false);
                    let work = self.setup.work + ms(self.random.below(20));
                    self.after(work, Step::WorkersEnd { node, attempt, how: How::Done });
                }
                MemberAction::Stop(reason) => {
                    // Most workers stop at once; some take longer than a lease lasts.
                    let longest =
                        if self.random.below(4) == 0 && reason != StopReason::Regroup { 3000 } else { 30 };
                    let delay = self.random.below(longest);
                    self.end_workers(node, ms(delay));
                }
                MemberAction::Kill => {
                    let delay = ms(self.random.below(500));
                    self.end_workers(node, delay);
                }
                MemberAction::Finish(ending) => {
                    self.nodes[node].ending = Some(ending);
                    self.nodes[node].member = None;
                    if let Some(connection) = self.nodes[node].connection.take() {
                        self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                    }
                }
            }
        }
    }

    fn end_workers(&mut self, node: usize, delay: Duration) {
        let state = &mut self.nodes[node];
        state.is_stopping = true;
        if let Some((_, attempt)) = state.running {
            self.after(delay, Step::WorkersEnd { node, attempt, how: How::Stopped });
        }
    }

    fn workers_end(&mut self, node: usize, attempt: u64, how: How) {
        let state = &mut self.nodes[node];
        if state.running.is_none_or(|(_, running)| running != attempt) {
            return;
        }
        let at = self.now + state.offset;
        let end = |outcome, sent| End { rank: 0, outcome, at, sent, lost_peer: false };
        let (cause, end) = match how {
            How::Done => (Cause::Success, end(Outcome::Exited(0), vec![])),
            How::Failed => (Cause::Failed { rank: 0 }, end(Outcome::Exited(1), vec![])),
            How::Stopped => (
                Cause::Stopped { signal: signals::TERM },
                end(Outcome::Signaled(signals::TERM), vec![signals::TERM]),
            ),
        };
        if how == How::Failed {
            self.tell_member(node, MemberEvent::Failed(end.clone()));
        }
        self.nodes[node].running = None;
        let verdict =
            Verdict { cause, ends: vec![end], stop_source: None, silent_since: None, notices: vec![] };
        let finished = FinishedAttempt { verdict, port_taken: false, blame: None };
        self.tell_member(node, MemberEvent::Over(Box::new(finished)));
    }

    fn fault(&mut self, fault: Fault) {
        let long = ms(self.random.below(8000));
        match fault {
            Fault::WorkerFails { node } => {
                if let Some((_, attempt)) = self.nodes[node].running.filter(|_| !self.nodes[node].is_stopping)
                {
                    self.step(Step::WorkersEnd { node, attempt, how: How::Failed });
                }
            }
            Fault::NodeDies { node } => {
                let offset = ms(self.random.below(10_000_000));
                let old = std::mem::replace(&mut self.nodes[node], SimNode::new(offset));
                if old.ending.is_some() {
                    self.nodes[node].ending = old.ending;
                    return;
                }
                if let Some(connection) = old.connection {
                    self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                }
                self.after(long, Step::Return { node });
            }
            Fault::Reset { node } => {
                if let Some(connection) = self.nodes[node].connection {
                    self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: true });
                }
            }
            Fault::Partition { node } => {
                self.nodes[node].is_cut_off = true;
                self.after(long, Step::Heal { node });
            }
            Fault::Freeze { node } => {
                (self.nodes[node].is_frozen, self.nodes[node].was_frozen) = (true, true);
                self.after(long, Step::Thaw { node });
            }
        }
    }
}

impl SimNode {
    fn new(offset: Duration) -> Self {
        Self {
            member: None,
            connection: None,
            offset,
            is_cut_off: false,
            is_frozen: false,
            was_frozen: false,
            held: VecDeque::new(),
            running: None,
            prepared: 0,
            is_stopping: false,
            ending: None,
        }
    }
}
