#![allow(clippy::unwrap_used)]

mod joining;
mod nodes;
mod pauses;
mod requests;
mod trial;

use super::*;
use crate::cluster::blame::ClusterCause;
use crate::cluster::lease::Times;
use crate::cluster::message::{Endpoint, Preparation, RunInfo, VERSION};
use crate::cluster::ranks::Node;
use crate::cluster::trial::Place;
use crate::local::{Outcome, RestartPolicy, Restarts};
use crate::signals::{INT, TERM, USR2};
use std::ops::RangeInclusive;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A leader with its members' messages, at simulated times.
struct Cluster {
    leader: Leader,
    now: Duration,
}

impl Cluster {
    fn new(nodes: RangeInclusive<usize>) -> Self {
        let policy = ClusterPolicy {
            nodes,
            join_timeout: ms(600_000),
            last_call: ms(1000),
            rejoin_call: Duration::ZERO,
            ready_timeout: ms(30_000),
            times: Times::short(),
            requeue_code: Some(75),
            rejoin_timeout: ms(30_000),
            failures_in_a_row: 3,
            run: RunInfo::default(),
            first_logs: 0,
            admits_at_checkpoint: false,
            nodes_may_leave: false,
            has_trial: true,
            nodes_of_job: None,
        };
        let restarts = Restarts::new(RestartPolicy { max_restarts: 9, ..RestartPolicy::default() });
        Self { leader: Leader::new(policy, restarts, Duration::ZERO), now: Duration::ZERO }
    }

    /// Returns a cluster whose nodes have joined.
    fn joined(nodes: RangeInclusive<usize>) -> Self {
        let mut cluster = Self::new(nodes.clone());
        for id in 0..*nodes.end() as u64 {
            cluster.join(id);
        }
        cluster
    }

    /// Returns a cluster whose nodes have joined and run workers.
    fn running(nodes: RangeInclusive<usize>) -> Self {
        let mut cluster = Self::joined(nodes);
        cluster.start();
        cluster
    }

    fn on(&mut self, event: LeaderEvent) -> Vec<LeaderAction> {
        self.leader.on(event, self.now)
    }

    fn receive(&mut self, from: MemberId, message: ToLeader) -> Vec<LeaderAction> {
        self.on(LeaderEvent::Received { from, message })
    }

    /// Lets the node of this number join; the connection has the same number, or one more per hundred.
    fn join(&mut self, id: MemberId) -> Vec<LeaderAction> {
        self.join_as(id, format!("n{}", id % 100), None)
    }

    fn join_as(&mut self, id: MemberId, host: String, address: Option<&str>) -> Vec<LeaderAction> {
        let address = address.map(|address| address.parse().unwrap());
        let node = Node { host, address, instance: id % 100, workers: 1, ..Node::default() };
        self.receive(id, ToLeader::Join { version: VERSION, node })
    }

    fn ids(&self) -> Vec<MemberId> {
        self.leader.here().map(|(id, _)| id).collect()
    }

    /// Lets a node be ready, with an address for rank 0.
    fn node_is_ready(&mut self, id: MemberId, logs: u32, place: Option<Place>) -> Vec<LeaderAction> {
        let listens = Some(Endpoint { host: "n0".into(), port: 1, is_served: false });
        self.receive(id, ToLeader::Ready { epoch: self.leader.epoch, listens, logs, place })
    }

    fn start(&mut self) {
        for id in self.ids() {
            self.node_is_ready(id, self.leader.logs - 1, None);
        }
        assert!(matches!(self.leader.phase, Phase::Running { .. }), "{:?}", self.leader.phase);
    }

    fn drained(&mut self, id: MemberId, report: Report) -> Vec<LeaderAction> {
        self.receive(id, ToLeader::Drained { epoch: self.leader.epoch, report: Box::new(report) })
    }

    /// Lets all nodes report: the workers of this rank failed, the others were stopped.
    fn fail(&mut self, rank: usize) -> Vec<LeaderAction> {
        let mut all = Vec::new();
        for id in self.ids() {
            let own = self.leader.peers[&id].part.as_ref().map(|part| part.placement.first_rank);
            let ends = vec![exited(rank, 1, self.now)];
            let report = match own == Some(rank) {
                true => Report { cause: Cause::Failed { rank }, ends, ..Report::empty() },
                false => Report { cause: Cause::OthersFailed, ..Report::empty() },
            };
            all.extend(self.drained(id, report));
        }
        all
    }

    /// Lets time pass while the members beat.
    fn pass(&mut self, time: Duration) -> Vec<LeaderAction> {
        let (end, mut all) = (self.now + time, Vec::new());
        while self.now < end {
            self.now = (self.now + ms(200)).min(end);
            for id in self.ids() {
                all.extend(self.receive(id, ToLeader::Beat { number: 1 }));
            }
            all.extend(self.on(LeaderEvent::Timer));
        }
        all
    }
}

fn exited(rank: usize, code: i32, at: Duration) -> WorkerEnd {
    let (outcome, at) = (Outcome::Exited(code), Moment::exact(at));
    WorkerEnd { rank, outcome, at, sent: vec![], lost_peer: false }
}

fn stops(actions: &[LeaderAction]) -> Vec<(MemberId, StopReason)> {
    let stop = |action: &LeaderAction| match action {
        LeaderAction::Send { to, message: ToMember::Stop { reason, .. } } => Some((*to, reason.clone())),
        _ => None,
    };
    actions.iter().filter_map(stop).collect()
}

/// Returns the proposals, and to whom they go.
fn proposals(actions: &[LeaderAction]) -> Vec<(MemberId, &Preparation)> {
    let proposals = actions.iter().filter_map(|action| match action {
        LeaderAction::Send { to, message: ToMember::Propose(it) } => Some((*to, it)),
        _ => None,
    });
    proposals.collect()
}

fn proposed(actions: &[LeaderAction]) -> Vec<u64> {
    proposals(actions).iter().map(|(_, it)| it.epoch).collect()
}

fn ending(actions: &[LeaderAction]) -> Option<&Ending> {
    actions.iter().find_map(|action| match action {
        LeaderAction::Finish(ending) => Some(&**ending),
        _ => None,
    })
}

#[test]
fn a_node_that_leaves_is_awaited_until_its_workers_are_killed() {
    let mut cluster = Cluster::running(2..=3);
    let actions = cluster.receive(2, ToLeader::Leaving { reason: "disk full".into() });
    assert_eq!(stops(&actions).len(), 2, "the others cannot continue: {actions:?}");
    assert!(proposed(&cluster.fail(9)).is_empty());
    assert!(proposed(&cluster.pass(Times::short().fence() - ms(200))).is_empty());
    assert_eq!(proposed(&cluster.pass(ms(200))), [2, 2]);
}

#[test]
fn a_node_that_leaves_ends_a_run_that_needs_it() {
    let mut cluster = Cluster::new(2..=2);
    cluster.join(0);
    let actions = cluster.receive(0, ToLeader::Leaving { reason: "disk full".into() });
    assert!(matches!(ending(&actions), Some(Ending::NodeLeft { reason, .. }) if reason == "disk full"));
}

#[test]
fn a_node_lost_before_the_start_is_not_awaited() {
    let mut cluster = Cluster::joined(2..=3);
    assert_eq!(stops(&cluster.on(LeaderEvent::Disconnected { from: 2 })).len(), 2);
    cluster.drained(0, Report::empty());
    let actions = cluster.drained(1, Report::empty());
    assert_eq!(proposed(&actions), [2, 2]);
    // Some nodes may have prepared the log folder of the first epoch.
    assert!(proposals(&actions).iter().all(|(_, it)| it.logs == 1), "{actions:?}");
}

#[test]
fn a_fenced_node_sets_no_timer_while_others_stop() {
    let mut cluster = Cluster::running(2..=2);
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    cluster.pass(ms(5000));
    assert_eq!(cluster.leader.deadline(), None, "only the leader's own node is awaited");
}

#[test]
fn the_run_ends_if_the_leaders_own_node_cannot_prepare() {
    let mut cluster = Cluster::joined(2..=2);
    cluster.receive(1, ToLeader::Ready { epoch: 1, listens: None, logs: 0, place: None });
    let mut actions = cluster.pass(ms(30_000));
    actions.extend(cluster.drained(1, Report::empty()));
    assert!(matches!(ending(&actions), Some(Ending::NodeLeft { host, .. }) if host == "n0"), "{actions:?}");
    let decided = ToMember::Decided { code: 4, reason: "late".into() };
    let told = cluster.leader.decide(4, "late".into());
    assert!(told.contains(&LeaderAction::Send { to: OWN, message: decided }), "its own member does not wait");
}

#[test]
fn a_first_node_without_an_address_leaves() {
    let mut cluster = Cluster::joined(1..=1);
    let actions = cluster.receive(0, ToLeader::Ready { epoch: 1, listens: None, logs: 0, place: None });
    let rest = cluster.pass(ms(200));
    assert!(matches!(ending(&[actions, rest].concat()), Some(Ending::NodeLeft { .. })));
}

#[test]
fn a_node_that_comes_after_the_end_gets_the_exit_code() {
    let mut cluster = Cluster::running(2..=2);
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    cluster.receive(0, ToLeader::Asked { signal: TERM, again: false });
    cluster.fail(9);
    assert!(ending(&cluster.pass(ms(2000))).is_some());
    cluster.leader.decide(75, "stopped".into());
    let decided = ToMember::Decided { code: 75, reason: "stopped".into() };
    assert_eq!(cluster.join(101)[0], LeaderAction::Send { to: 101, message: decided });
}

#[test]
fn signals_that_no_attempt_handled_go_to_the_next() {
    let mut cluster = Cluster::running(1..=1);
    let (cause, ends) = (Cause::Failed { rank: 0 }, vec![exited(0, 1, ms(1))]);
    let actions = cluster.drained(0, Report { cause, ends, notices: vec![USR2], ..Report::empty() });
    assert_eq!(proposals(&actions)[0].1.notices, [USR2]);
}

#[test]
fn a_node_that_fails_in_a_row_is_left_out_for_good() {
    let mut cluster = Cluster::running(2..=3);
    for epoch in 1..=3 {
        assert_eq!(cluster.ids().len(), 3, "epoch {epoch}");
        cluster.fail(2);
        cluster.pass(ms(2000));
        cluster.start();
    }
    assert_eq!(cluster.ids(), [0, 1]);
    cluster.fail(1);
    cluster.pass(ms(5000));
    let rejected =
        |action: &LeaderAction| matches!(action, LeaderAction::Tell(LeaderNotice::Rejected { .. }));
    assert!(cluster.join(102).iter().any(rejected), "a failure of another node does not admit it again");
}

#[test]
fn a_node_that_the_run_needs_is_not_left_out() {
    let mut cluster = Cluster::running(2..=3);
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    cluster.fail(9);
    cluster.pass(ms(2000));
    for _ in 0..4 {
        cluster.start();
        cluster.fail(1);
        cluster.pass(ms(20_000));
    }
    assert_eq!(cluster.ids(), [0, 2]);
}

#[test]
fn a_node_that_is_lost_again_and_again_before_the_start_ends_the_run() {
    let mut cluster = Cluster::new(2..=2);
    cluster.join(0);
    for time in 0..3_u64 {
        cluster.join(100 * time + 1);
        cluster.on(LeaderEvent::Disconnected { from: 100 * time + 1 });
        let actions = cluster.drained(0, Report::empty());
        assert_eq!(ending(&actions).is_some(), time == 2, "{actions:?}");
    }
}

#[test]
fn lost_connections_do_not_accumulate() {
    let mut cluster = Cluster::running(2..=3);
    for time in 1..1000 {
        cluster.on(LeaderEvent::Disconnected { from: 100 * (time - 1) + 2 });
        cluster.join(100 * time + 2);
    }
    assert!(cluster.leader.peers.len() <= 5, "{} peers", cluster.leader.peers.len());
}

#[test]
fn a_silent_node_is_blamed_for_the_end_of_the_epoch() {
    let mut cluster = Cluster::running(2..=2);
    for now in [250, 500, 750, 1000] {
        cluster.now = ms(now);
        cluster.on(LeaderEvent::Timer);
    }
    cluster.fail(9);
    let actions = cluster.pass(ms(2000));
    let judged = actions.iter().find_map(|action| match action {
        LeaderAction::Tell(LeaderNotice::Ended { judgement, .. }) => Some(judgement.cause),
        _ => None,
    });
    assert_eq!(judged, Some(ClusterCause::NodeLost { group_rank: 1 }));
}

#[test]
fn a_node_that_joins_is_taken_in_at_a_checkpoint_on_request() {
    let mut cluster = Cluster::new(1..=2);
    cluster.leader.policy.admits_at_checkpoint = true;
    cluster.join(0);
    cluster.pass(ms(1200));
    cluster.start();
    let stopped = cluster.join(1);
    assert_eq!(stops(&stopped), [(0, StopReason::Admit)]);
    let report = Report { cause: Cause::Requeue, ..Report::empty() };
    let next = cluster.drained(0, report);
    assert_eq!((ending(&next), proposed(&next)), (None, vec![2, 2]));
    assert_eq!(cluster.leader.restarts(), 1);
}

#[test]
fn with_min_and_max_a_lost_node_uses_no_restart() {
    let mut cluster = Cluster::running(1..=2);
    cluster.leader.restarts = Restarts::new(RestartPolicy::default());
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    cluster.drained(0, Report { cause: Cause::OthersFailed, ..Report::empty() });
    let next = cluster.pass(ms(4000));
    assert_eq!((ending(&next), proposed(&next)), (None, vec![2]));
}
