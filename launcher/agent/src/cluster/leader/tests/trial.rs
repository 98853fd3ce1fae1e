//! The trial of the connections before a start.

use super::*;
use crate::cluster::trial::{FailedTry, Fault};

impl Cluster {
    /// Returns a cluster whose nodes have joined and try each other.
    fn trying(nodes: RangeInclusive<usize>) -> (Self, Vec<LeaderAction>) {
        let mut cluster = Self::joined(nodes);
        let actions = cluster.ready(cluster.ids());
        (cluster, actions)
    }

    /// Lets these nodes be ready for tries.
    fn ready(&mut self, ids: Vec<MemberId>) -> Vec<LeaderAction> {
        let place = |id: MemberId| Some(Place::closed([10, 0, 0, id as u8].into()));
        ids.into_iter().flat_map(|id| self.node_is_ready(id, 0, place(id))).collect()
    }

    /// Lets all nodes answer; these pairs fail.
    fn tried(&mut self, failed: &[(u64, usize)]) -> Vec<LeaderAction> {
        let epoch = self.leader.epoch;
        let failure = FailedTry { fault: Fault::Silent, port: 1, other_works: false };
        let mut all = Vec::new();
        for id in self.ids() {
            let of_node = failed.iter().filter(|(from, _)| *from == id);
            let failures = of_node.map(|(_, to)| (*to, failure)).collect();
            all.extend(self.receive(id, ToLeader::Tried { epoch, failures }));
        }
        all
    }
}

fn tries(actions: &[LeaderAction]) -> Vec<(MemberId, Vec<usize>)> {
    let tries = |action: &LeaderAction| match action {
        LeaderAction::Send { to, message: ToMember::Try { places, .. } } => {
            Some((*to, places.iter().map(|(rank, _)| *rank).collect()))
        }
        _ => None,
    };
    actions.iter().filter_map(tries).collect()
}

#[test]
fn nodes_try_each_other_before_the_first_start_and_with_each_new_node() {
    let (mut cluster, actions) = Cluster::trying(2..=2);
    assert_eq!(tries(&actions), [(0, vec![1]), (1, vec![0])]);
    cluster.tried(&[]);
    assert!(matches!(cluster.leader.phase, Phase::Running { .. }));
    let has_trial = |actions: &[LeaderAction]| proposals(actions).first().map(|(_, it)| it.has_trial);
    let again = cluster.fail(0);
    assert_eq!(has_trial(&[again, cluster.pass(ms(5000))].concat()), Some(false));
    cluster.start();
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    cluster.drained(0, Report { cause: Cause::OthersFailed, ..Report::empty() });
    cluster.pass(ms(5000));
    assert_eq!(has_trial(&cluster.join(101)), Some(true));
}

#[test]
fn connections_that_fail_end_the_run_or_leave_out_a_node() {
    let (mut cluster, _) = Cluster::trying(3..=3);
    let actions = cluster.tried(&[(1, 2), (0, 2)]);
    let Some(Ending::Unconnected { failed }) = ending(&actions) else { panic!("{actions:?}") };
    let pairs: Vec<_> = failed.iter().map(|it| (it.from.as_str(), it.to.as_str())).collect();
    assert_eq!(pairs, [("n0", "n2"), ("n1", "n2")]);

    let (mut cluster, _) = Cluster::trying(2..=3);
    let actions = cluster.tried(&[(1, 2)]);
    assert!(ending(&actions).is_none());
    let left_out = |action: &LeaderAction| matches!(action, LeaderAction::Tell(LeaderNotice::Unconnected { host, .. }) if host == "n2");
    assert!(actions.iter().any(left_out), "{actions:?}");
    assert_eq!(cluster.ids(), [0, 1]);
    for id in cluster.ids() {
        cluster.drained(id, Report::empty());
    }
    cluster.ready(cluster.ids());
    cluster.tried(&[]);
    assert!(matches!(cluster.leader.phase, Phase::Running { .. }));

    // The leader's node can be left out by nobody.
    let (mut cluster, _) = Cluster::trying(2..=3);
    assert!(ending(&cluster.tried(&[(1, 0), (2, 0)])).is_some());
}

#[test]
fn a_node_that_is_lost_during_the_trial_begins_another_epoch() {
    let (mut cluster, _) = Cluster::trying(2..=3);
    assert!(stops(&cluster.on(LeaderEvent::Disconnected { from: 2 })).contains(&(1, StopReason::Regroup)));
    let old = ToLeader::Tried { epoch: 1, failures: vec![] };
    cluster.drained(0, Report::empty());
    let actions = cluster.drained(1, Report::empty());
    assert_eq!(proposed(&actions), [2, 2]);
    let actions = cluster.ready(vec![0, 1]);
    assert_eq!(tries(&actions).len(), 2);
    for id in [0, 1] {
        cluster.receive(id, old.clone());
    }
    assert!(matches!(cluster.leader.phase, Phase::Trying { .. }));
    // A node that does not answer is lost in the end.
    cluster.receive(0, ToLeader::Tried { epoch: 2, failures: vec![] });
    assert!(!stops(&cluster.pass(ms(31_000))).is_empty());
}

#[test]
fn nodes_on_one_machine_do_not_try_its_loopback_address() {
    let mut cluster = Cluster::joined(2..=2);
    for id in [0, 1] {
        cluster.node_is_ready(id, 0, Some(Place::closed([127, 0, 0, 1].into())));
    }
    assert!(matches!(cluster.leader.phase, Phase::Running { .. }));
}
