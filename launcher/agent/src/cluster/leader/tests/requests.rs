//! Signals to the launchers.

use super::*;

fn term(again: bool) -> ToLeader {
    ToLeader::Asked { signal: TERM, again }
}

/// Returns a cluster of a user, not of a batch system.
fn elastic(nodes: RangeInclusive<usize>) -> Cluster {
    let mut cluster = Cluster::running(nodes);
    cluster.leader.policy.nodes_may_leave = true;
    cluster.leader.restarts = Restarts::new(RestartPolicy::default());
    cluster
}

fn requeued() -> Report {
    Report { cause: Cause::Requeue, has_checkpoint: true, ..Report::empty() }
}

fn decided(actions: &[LeaderAction]) -> Vec<(MemberId, u8)> {
    let decided = |action: &LeaderAction| match action {
        LeaderAction::Send { to, message: ToMember::Decided { code, .. } } => Some((*to, *code)),
        _ => None,
    };
    actions.iter().filter_map(decided).collect()
}

fn placed(actions: &[LeaderAction]) -> Vec<MemberId> {
    let propose = |action: &LeaderAction| match action {
        LeaderAction::Send { to, message: ToMember::Propose(_) } => Some(*to),
        _ => None,
    };
    actions.iter().filter_map(propose).collect()
}

#[test]
fn only_a_nodes_second_request_is_a_second_request() {
    let mut cluster = Cluster::running(3..=3);
    let asked = |again| StopReason::Asked { signal: INT, again };
    let first = cluster.receive(1, ToLeader::Asked { signal: INT, again: false });
    assert_eq!(stops(&first), [(0, asked(false)), (2, asked(false))]);
    // A node that connects anew repeats its request.
    for node in [2, 1] {
        assert_eq!(cluster.receive(node, ToLeader::Asked { signal: INT, again: false }), []);
    }
    let second = cluster.receive(2, ToLeader::Asked { signal: INT, again: true });
    assert_eq!(stops(&second), [(0, asked(true)), (1, asked(true))]);
}

#[test]
fn a_node_that_gets_term_leaves_and_the_others_continue() {
    let mut cluster = elastic(2..=3);
    assert_eq!(stops(&cluster.receive(2, term(false))), [(0, StopReason::Admit), (1, StopReason::Admit)]);
    let mut actions = Vec::new();
    for id in [2, 0, 1] {
        actions.extend(cluster.drained(id, requeued()));
    }
    assert_eq!((ending(&actions), decided(&actions)), (None, vec![(2, 75)]));
    assert!(placed(&actions).is_empty(), "another node may be signalled within the lease");
    let later = cluster.pass(Times::short().length);
    assert_eq!((ending(&later), placed(&later)), (None, vec![0, 1]));
    assert_eq!(cluster.leader.restarts(), 1);
}

#[test]
fn signals_to_two_nodes_within_a_lease_stop_the_run() {
    let lease = Times::short().length;
    for (gap, stops_run) in [(ms(300), true), (lease - ms(1), true), (lease, false)] {
        let mut cluster = elastic(1..=3);
        cluster.receive(2, term(false));
        let mut actions = cluster.pass(gap);
        actions.extend(cluster.receive(1, term(false)));
        let is_stop = stops(&actions).contains(&(0, StopReason::Asked { signal: TERM, again: false }));
        assert_eq!(is_stop, stops_run, "{gap:?}");
        for id in [2, 1, 0] {
            actions.extend(cluster.drained(id, requeued()));
        }
        actions.extend(cluster.pass(lease * 2));
        assert_eq!(ending(&actions).is_some(), stops_run, "{gap:?}");
    }
}

#[test]
fn the_second_signal_stops_the_run_also_after_the_first_node_has_left() {
    let mut cluster = elastic(1..=3);
    cluster.receive(2, term(false));
    for id in [2, 0, 1] {
        cluster.drained(id, requeued());
    }
    cluster.pass(ms(200));
    let actions = cluster.receive(1, term(false));
    assert!(matches!(ending(&actions), Some(Ending::StoppedEarly { signal: TERM })), "{actions:?}");
}

#[test]
fn a_second_signal_to_a_node_that_leaves_kills_no_worker_of_others() {
    let mut cluster = elastic(2..=3);
    cluster.receive(2, term(false));
    assert_eq!(cluster.receive(2, term(true)), []);
}

#[test]
fn term_stops_the_run_in_a_batch_job_at_the_leader_and_below_min() {
    let is_stop = |cluster: &mut Cluster, node| {
        let to = if node == 0 { 1 } else { 0 };
        stops(&cluster.receive(node, term(false)))
            .contains(&(to, StopReason::Asked { signal: TERM, again: false }))
    };
    assert!(is_stop(&mut Cluster::running(1..=3), 2));
    assert!(is_stop(&mut elastic(1..=3), 0));
    assert!(is_stop(&mut elastic(3..=3), 2));
    let mut interrupted = elastic(1..=3);
    let actions = interrupted.receive(2, ToLeader::Asked { signal: INT, again: false });
    assert_eq!(stops(&actions).len(), 2, "{actions:?}");
    assert!(stops(&actions).iter().all(|(_, reason)| matches!(reason, StopReason::Asked { .. })));
}

#[test]
fn a_program_restarts_without_the_node_that_leaves() {
    let mut cluster = elastic(1..=2);
    cluster.leader.policy.requeue_code = None;
    let stopped = cluster.receive(1, term(false));
    assert!(matches!(stops(&stopped)[..], [(0, StopReason::NodeLost { .. })]), "{stopped:?}");
    let stopped = Report { cause: Cause::Stopped { signal: TERM }, ..Report::empty() };
    let mut actions = cluster.drained(1, stopped);
    // Its peer fails before it is stopped, with a message that names no lost peer.
    let at = Moment::exact(cluster.now);
    let ends = vec![WorkerEnd { rank: 0, outcome: Outcome::Exited(1), at, sent: vec![], lost_peer: false }];
    actions.extend(cluster.drained(0, Report { cause: Cause::Failed { rank: 0 }, ends, ..Report::empty() }));
    actions.extend(cluster.pass(ms(2000)));
    actions.extend(cluster.pass(Times::short().length));
    assert_eq!((ending(&actions), decided(&actions)), (None, vec![(1, 143)]));
    assert_eq!(placed(&actions), [0]);
}

#[test]
fn surplus_nodes_are_spares_and_replace_a_node_that_is_lost() {
    let mut cluster = Cluster::running(2..=2);
    let joined = cluster.join(2);
    let is_spare = |action: &LeaderAction| {
        matches!(action, LeaderAction::Send { to: 2, message: ToMember::Welcome { is_spare: true, .. } })
    };
    assert!(joined.iter().any(is_spare), "{joined:?}");
    assert!(joined.contains(&LeaderAction::Tell(LeaderNotice::Spare { host: "n2".into(), most: 2 })));
    // A restart keeps the nodes of the epoch before.
    assert_eq!(placed(&cluster.fail(1)), [0, 1]);
    cluster.start();
    cluster.on(LeaderEvent::Disconnected { from: 1 });
    let report = Report { cause: Cause::OthersFailed, ..Report::empty() };
    let mut actions = cluster.drained(0, report);
    actions.extend(cluster.pass(Times::short().fence() + ms(4000)));
    assert_eq!((ending(&actions), placed(&actions)), (None, vec![0, 2]));
}

#[test]
fn a_spare_leaves_alone_and_stops_no_worker() {
    let mut cluster = elastic(2..=2);
    cluster.join(2);
    let actions = cluster.receive(2, term(false));
    assert_eq!((stops(&actions), ending(&actions), decided(&actions)), (vec![], None, vec![(2, 143)]));
    assert_eq!(cluster.ids(), [0, 1]);
}

#[test]
fn the_good_end_is_announced_before_the_leader_concludes() {
    let mut cluster = Cluster::running(2..=2);
    cluster.drained(1, Report::empty());
    let actions = cluster.drained(0, Report::empty());
    let announced = LeaderAction::Send { to: 1, message: ToMember::EndedWell };
    let at = |wanted: &dyn Fn(&LeaderAction) -> bool| actions.iter().position(wanted).unwrap();
    assert!(at(&|it| *it == announced) < at(&|it| matches!(it, LeaderAction::Finish(_))));
}
