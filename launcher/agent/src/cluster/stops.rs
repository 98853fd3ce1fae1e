//! Stops of runs at 1,000 moments: the leader, the members and the local agents together, with simulated time, messages and
//! workers.

use super::leader::{Ending, LeaderAction, LeaderEvent, MemberId, OWN};
use super::lease::Times;
use super::member::{FinishedAttempt, MemberAction, MemberEnding, MemberEvent, MemberPolicy};
use super::message::{Endpoint, RunInfo, StopReason, ToLeader, ToMember};
use super::ranks::Node;
use super::{ClusterPolicy, Leader, Member, blame::ClusterCause};
use crate::local::{Action, Agent, Cause, Event, Outcome, Policy, Requests, RestartPolicy, Restarts, Way};
use crate::signals::{INT, KILL, TERM};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// How long the work takes.
const WORK: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);
/// By this time the workers run on all nodes.
const ALL_STARTED: Duration = Duration::from_millis(1500);
/// By this time all nodes have joined.
const JOINED: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
struct Scene {
    nodes: usize,
    workers: usize,
    is_recipe: bool,
    /// Whether the run can continue with one node, outside of a batch job.
    is_elastic: bool,
    signal: i32,
    /// When each signalled node gets its signal, and when its guardian passes it on.
    signals: Vec<(usize, Duration, Option<Duration>)>,
    /// A second signal to one of them, after this time.
    second: Option<(usize, Duration)>,
    /// How long a checkpoint takes.
    checkpoint: Duration,
    latency: Duration,
}

enum Item {
    Tick,
    Signal { node: usize, way: Way },
    ToLeader { from: MemberId, message: ToLeader },
    ToMember { to: usize, message: ToMember },
    Ends { node: usize, attempt: u32, rank: usize, code: i32 },
}

struct SimNode {
    requests: Requests,
    member: Member,
    agent: Option<Agent>,
    attempt: u32,
    running: Vec<bool>,
    /// The exit code of the launcher.
    code: Option<u8>,
}

struct World {
    scene: Scene,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    items: BTreeMap<u64, Item>,
    next: u64,
    leader: Leader,
    nodes: Vec<SimNode>,
    /// When a training ends with a checkpoint.
    stops_at: Option<Duration>,
    has_checkpoint: bool,
    kills: usize,
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    fn new(scene: Scene) -> Self {
        let policy = ClusterPolicy {
            nodes: if scene.is_elastic { 1 } else { scene.nodes }..=scene.nodes,
            join_timeout: ms(60_000),
            last_call: ms(1000),
            rejoin_call: ms(1000),
            ready_timeout: ms(30_000),
            times: Times::default(),
            requeue_code: scene.is_recipe.then_some(75),
            rejoin_timeout: ms(10_000),
            failures_in_a_row: 3,
            run: RunInfo::default(),
            first_logs: 0,
            admits_at_checkpoint: false,
            nodes_may_leave: scene.is_elastic,
            has_trial: false,
            nodes_of_job: None,
        };
        let restarts = RestartPolicy { training: scene.is_recipe, ..RestartPolicy::default() };
        let mut world = Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            items: BTreeMap::new(),
            next: 0,
            leader: Leader::new(policy, Restarts::new(restarts), Duration::ZERO),
            nodes: Vec::new(),
            stops_at: None,
            has_checkpoint: false,
            kills: 0,
            scene,
        };
        for node in 0..world.scene.nodes {
            let (host, instance, workers) = (format!("n{node}"), node as u64, world.scene.workers);
            let own = Node { host, instance, workers, ..Node::default() };
            let policy = MemberPolicy { join_timeout: ms(60_000), rejoin_timeout: ms(10_000) };
            let (member, actions) = Member::new(own, policy, Duration::ZERO);
            let (requests, running) = (Requests::default(), Vec::new());
            world.nodes.push(SimNode { requests, member, agent: None, attempt: 0, running, code: None });
            world.obey_member(node, actions);
        }
        let signals = world.scene.signals.clone();
        let seconds = world.scene.second.into_iter().filter_map(|(index, after)| {
            let (node, at, guardian) = *signals.get(index % signals.len())?;
            Some((node, at + after, guardian))
        });
        for (node, at, guardian) in signals.iter().copied().chain(seconds) {
            world.at(at, Item::Signal { node, way: Way::Direct });
            if let Some(delay) = guardian {
                world.at(at + delay, Item::Signal { node, way: Way::Guardian });
            }
        }
        world.at(TICK, Item::Tick);
        world
    }

    fn at(&mut self, at: Duration, item: Item) {
        self.queue.push(Reverse((at, self.next)));
        self.items.insert(self.next, item);
        self.next += 1;
    }

    /// Runs until every launcher has ended.
    fn run(&mut self) {
        while let Some(Reverse((at, id))) = self.queue.pop() {
            assert!(at < ms(300_000), "the run does not end: {:?}", self.leader);
            self.now = at;
            if let Some(item) = self.items.remove(&id) {
                self.handle(item);
            }
            if self.nodes.iter().all(|node| node.code.is_some()) {
                return;
            }
        }
    }

    fn handle(&mut self, item: Item) {
        match item {
            Item::Tick => {
                self.tell_leader(LeaderEvent::Timer);
                for node in 0..self.nodes.len() {
                    self.tell_member(node, MemberEvent::Timer);
                    self.tell_agent(node, &Event::Timer);
                }
                if self.stops_at.is_some_and(|at| at <= self.now) {
                    self.end_training();
                }
                self.at(self.now + TICK, Item::Tick);
            }
            Item::Signal { node, way } => self.signal(node, way),
            Item::ToLeader { from, message } => {
                self.tell_leader(LeaderEvent::Received { from, message });
            }
            Item::ToMember { to, message } => self.tell_member(to, MemberEvent::Received(message)),
            Item::Ends { node, attempt, rank, code } if self.nodes[node].attempt == attempt => {
                self.end(node, rank, Outcome::Exited(code));
            }
            Item::Ends { .. } => {}
        }
    }

    /// As the launcher's main thread: first the other nodes, then its own workers.
    fn signal(&mut self, node: usize, way: Way) {
        if self.nodes[node].code.is_some() {
            return;
        }
        let Some(again) = self.nodes[node].requests.on(way, self.now) else { return };
        let signal = self.scene.signal;
        self.tell_member(node, MemberEvent::Asked { signal, again });
        self.tell_agent(node, &Event::Stop { signal, again });
    }

    fn tell_leader(&mut self, event: LeaderEvent) {
        let actions = self.leader.on(event, self.now);
        self.obey_leader(actions);
    }

    fn obey_leader(&mut self, actions: Vec<LeaderAction>) {
        for action in actions {
            match action {
                LeaderAction::Send { to, message } => {
                    let delay = if to == OWN { Duration::ZERO } else { self.scene.latency };
                    self.at(self.now + delay, Item::ToMember { to: to as usize, message });
                }
                LeaderAction::Finish(ending) => {
                    let code = self.code_of(&ending);
                    let actions = self.leader.decide(code, String::new());
                    self.obey_leader(actions);
                }
                LeaderAction::Close { .. } | LeaderAction::Tell(_) => {}
            }
        }
    }

    /// As the leader's main thread.
    fn code_of(&self, ending: &Ending) -> u8 {
        let by_signal = |signal: i32| match self.has_checkpoint && self.scene.is_recipe {
            true => 75,
            false => 128 + signal as u8,
        };
        match ending {
            Ending::StoppedEarly { signal } => by_signal(*signal),
            Ending::Judged { judgement, .. } => match judgement.cause {
                ClusterCause::Workers(Cause::Success) => 0,
                ClusterCause::Workers(Cause::Requeue) => 75,
                ClusterCause::Workers(Cause::Stopped { signal }) => 128 + signal as u8,
                _ => 4,
            },
            other => panic!("{other:?}"),
        }
    }

    fn tell_member(&mut self, node: usize, event: MemberEvent) {
        let actions = self.nodes[node].member.on(event, self.now);
        self.obey_member(node, actions);
    }

    fn obey_member(&mut self, node: usize, actions: Vec<MemberAction>) {
        for action in actions {
            match action {
                MemberAction::Send(message) => {
                    let delay = if node == 0 { Duration::ZERO } else { self.scene.latency };
                    self.at(self.now + delay, Item::ToLeader { from: node as MemberId, message });
                }
                MemberAction::Connect => self.tell_member(node, MemberEvent::Connected),
                MemberAction::Prepare(preparation) => {
                    let listens = Some(Endpoint { host: "n0".into(), port: 1, is_served: false });
                    let (epoch, logs) = (preparation.epoch, preparation.logs);
                    self.tell_member(node, MemberEvent::Prepared { epoch, listens, logs, place: None });
                }
                MemberAction::Try { epoch, .. } => {
                    self.tell_member(node, MemberEvent::Tried { epoch, failures: Vec::new() });
                }
                MemberAction::Start { .. } => self.start(node),
                MemberAction::Stop(reason) => {
                    let event = match reason {
                        StopReason::Asked { signal, again } => Event::Stop { signal, again },
                        StopReason::Requeue => Event::OthersRequeue,
                        StopReason::Admit => Event::Admit,
                        _ => Event::OthersFailed,
                    };
                    self.tell_agent(node, &event);
                }
                MemberAction::Kill => self.tell_agent(node, &Event::LeaseEnded),
                MemberAction::Finish(ending) => {
                    let MemberEnding::Decided { code, .. } = ending else { panic!("{ending:?}") };
                    assert_eq!(self.nodes[node].code.replace(code), None);
                    assert!(!self.nodes[node].running.contains(&true), "its workers still run");
                }
                MemberAction::Joined { .. } | MemberAction::Disconnect => {}
            }
        }
    }

    fn start(&mut self, node: usize) {
        let mut agent = Agent::new(Policy {
            workers: self.scene.workers,
            shutdown_timeout: Duration::from_secs(30),
            requeue_code: self.scene.is_recipe.then_some(75),
            ..Policy::default()
        });
        self.stops_at = None;
        let actions = agent.begin(self.now);
        let state = &mut self.nodes[node];
        state.attempt += 1;
        (state.agent, state.running) = (Some(agent), vec![false; self.scene.workers]);
        self.obey_agent(node, actions);
    }

    fn tell_agent(&mut self, node: usize, event: &Event) {
        let now = self.now;
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let actions = agent.on(event, now);
        self.obey_agent(node, actions);
    }

    fn obey_agent(&mut self, node: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { rank } => {
                    let attempt = self.nodes[node].attempt;
                    self.nodes[node].running[rank] = true;
                    self.at(WORK, Item::Ends { node, attempt, rank, code: 0 });
                    self.tell_agent(node, &Event::Started { rank });
                }
                Action::Signal { rank, signal: KILL } => {
                    self.kills += usize::from(self.nodes[node].running[rank]);
                    self.end(node, rank, Outcome::Signaled(KILL));
                }
                Action::Signal { rank, .. } | Action::Notify { rank, .. } => self.asked_worker(node, rank),
                Action::Finish(verdict) => {
                    self.nodes[node].agent = None;
                    let finished = FinishedAttempt {
                        verdict,
                        port_taken: false,
                        has_checkpoint: self.has_checkpoint && node == 0,
                        blame: None,
                    };
                    self.tell_member(node, MemberEvent::Over(Box::new(finished)));
                }
                Action::Inspect { .. } | Action::Tell(_) | Action::Sweep => {}
            }
        }
    }

    /// A training stops on all nodes after a step and with a checkpoint; a program by itself.
    fn asked_worker(&mut self, node: usize, rank: usize) {
        let at = self.now + STEP + self.scene.checkpoint;
        if self.scene.is_recipe {
            self.stops_at.get_or_insert(at);
        } else {
            let attempt = self.nodes[node].attempt;
            self.at(at, Item::Ends { node, attempt, rank, code: 0 });
        }
    }

    fn end_training(&mut self) {
        self.stops_at = None;
        let all_run =
            self.nodes.iter().filter(|node| node.agent.is_some()).all(|node| !node.running.contains(&false));
        self.has_checkpoint |= all_run;
        for node in 0..self.nodes.len() {
            for rank in 0..self.nodes[node].running.len() {
                self.end(node, rank, Outcome::Exited(if all_run { 75 } else { 1 }));
            }
        }
    }

    fn end(&mut self, node: usize, rank: usize, outcome: Outcome) {
        if std::mem::replace(&mut self.nodes[node].running[rank], false) {
            let lost_peer = outcome == Outcome::Exited(1);
            self.tell_agent(node, &Event::Ended { rank, outcome, at: self.now, lost_peer });
        }
    }
}

fn scenes() -> impl Strategy<Value = Scene> {
    let times = |most: u64| (0..=most).prop_map(ms);
    let first = (0usize..3, times(3700), prop::option::of(times(2000)));
    let other = prop::option::of((1usize..3, times(8000), prop::option::of(times(2000))));
    let second = prop::option::of((0usize..2, (250u64..6000).prop_map(ms)));
    let run = (2usize..=3, 1usize..=2, any::<bool>(), any::<bool>(), prop::sample::select(vec![INT, TERM]));
    (run, first, other, second, times(3000), times(100)).prop_map(
        |((nodes, workers, is_recipe, is_elastic, signal), first, other, second, checkpoint, latency)| {
            let (node, at, guardian) = (first.0 % nodes, first.1 + JOINED, first.2);
            let mut signals = vec![(node, at, guardian)];
            signals.extend(other.map(|(step, gap, guardian)| {
                ((node + 1 + (step - 1) % (nodes - 1)) % nodes, at + gap, guardian)
            }));
            Scene { nodes, workers, is_recipe, is_elastic, signal, signals, second, checkpoint, latency }
        },
    )
}

impl Scene {
    /// Returns the nodes that leave a run which continues without them; `None` where the clocks may tell either.
    fn leaving(&self) -> Option<Vec<usize>> {
        let lease = Times::default().length;
        if !self.is_elastic || self.signal != TERM {
            return Some(Vec::new());
        }
        let nodes: Vec<usize> = self.signals.iter().map(|(node, ..)| *node).collect();
        let gap = self.signals.last()?.1 - self.signals.first()?.1;
        let is_near = nodes.len() == 2 && gap.abs_diff(lease) <= 2 * self.latency + ms(1);
        let stops = nodes.contains(&0) || nodes.len() == 2 && (gap < lease || self.nodes == 2);
        (!is_near).then(|| if stops { Vec::new() } else { nodes })
    }
}

/// Returns a scene's failure, if its launchers do not end as the user of the signals expects.
fn judge(scene: &Scene) -> Result<(), String> {
    let Some(leaving) = scene.leaving() else { return Ok(()) };
    let mut world = World::new(scene.clone());
    world.run();
    let codes: Vec<u8> = world.nodes.iter().filter_map(|node| node.code).collect();
    let asked = if scene.is_recipe { 75 } else { 128 + scene.signal as u8 };
    let is_early = scene.signals.iter().any(|(_, at, _)| *at < ALL_STARTED);
    if scene.second.is_some() || is_early {
        // There may be no checkpoint, but every launcher ends.
        let known = [0, asked, 128 + scene.signal as u8];
        return codes.iter().all(|code| known.contains(code)).then_some(()).ok_or(format!("codes {codes:?}"));
    }
    if world.kills > 0 {
        return Err(format!("{} workers were killed; codes {codes:?}", world.kills));
    }
    let is_right = |(node, code): (usize, &u8)| match leaving.is_empty() || leaving.contains(&node) {
        true => *code == asked,
        false => *code == 0,
    };
    codes
        .iter()
        .enumerate()
        .all(is_right)
        .then_some(())
        .ok_or(format!("codes {codes:?}, leaving {leaving:?}"))
}

#[test]
fn a_stop_at_any_moment_gives_the_right_code_and_loses_no_checkpoint() {
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&scenes(), |scene| judge(&scene).map_err(TestCaseError::fail));
    if let Err(error) = result {
        panic!("{error}");
    }
}
