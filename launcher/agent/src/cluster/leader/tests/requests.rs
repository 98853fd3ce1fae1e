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
    proposals(actions).iter().map(|(to, _)| *to).collect()
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
    let ends = vec![exited(0, 1, cluster.now)];
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

/// Another node must not wait for a checkpoint that the leaving node cannot write any more.
#[test]
fn a_node_that_fails_while_it_leaves_stops_the_others() {
    let lost = StopReason::NodeLost { host: "n2".into() };
    let died = Report { cause: Cause::Stopped { signal: TERM }, ..Report::empty() };
    for is_connected in [true, false] {
        let mut cluster = elastic(2..=3);
        cluster.receive(2, term(false));
        let actions = match is_connected {
            true => cluster.drained(2, died.clone()),
            false => cluster.on(LeaderEvent::Disconnected { from: 2 }),
        };
        assert_eq!(stops(&actions), [(0, lost.clone()), (1, lost.clone())], "{is_connected}");
        for id in [0, 1] {
            cluster.drained(id, Report { cause: Cause::OthersFailed, ..Report::empty() });
        }
        let next = cluster.pass(ms(9000));
        assert_eq!((ending(&next), placed(&next)), (None, vec![0, 1]), "{is_connected}");
    }
}

#[test]
fn a_worker_that_fails_while_a_node_leaves_or_joins_stops_the_others() {
    let end = exited(1, 1, ms(1));
    let mut cluster = elastic(2..=3);
    cluster.receive(2, term(false));
    let epoch = cluster.leader.epoch;
    let actions = cluster.receive(1, ToLeader::Failed { epoch, end });
    let failed = StopReason::WorkerFailed { rank: 1, host: "n1".into() };
    assert_eq!(stops(&actions), [(0, failed.clone()), (2, failed)]);
}

#[test]
fn a_leaving_node_that_connects_anew_repeats_its_signal_and_leaves_alone() {
    let mut cluster = elastic(2..=3);
    cluster.receive(2, term(false));
    cluster.on(LeaderEvent::Disconnected { from: 2 });
    cluster.join(102);
    let again = cluster.receive(102, term(false));
    assert_eq!((stops(&again), decided(&again)), (vec![], vec![]), "its workers may still run");
    for id in [0, 1] {
        cluster.drained(id, requeued());
    }
    let next = cluster.pass(ms(9000));
    assert_eq!((ending(&next), decided(&next), placed(&next)), (None, vec![(102, 75)], vec![0, 1]));
}

#[test]
fn term_after_hang_up_reaches_the_other_nodes() {
    let mut cluster = Cluster::running(2..=2);
    cluster.receive(0, ToLeader::Asked { signal: crate::signals::HUP, again: false });
    let actions = cluster.receive(0, term(false));
    assert_eq!(stops(&actions), [(1, StopReason::Asked { signal: TERM, again: false })]);
    assert_eq!(cluster.receive(1, term(false)), []);
}

#[test]
fn a_spare_replaces_a_lost_node_without_a_restart_of_the_user() {
    for has_spare in [true, false] {
        let mut cluster = Cluster::running(2..=2);
        cluster.leader.restarts = Restarts::new(RestartPolicy::default());
        if has_spare {
            cluster.join(2);
        }
        cluster.on(LeaderEvent::Disconnected { from: 1 });
        // The lost node comes back, and is no spare.
        cluster.join(101);
        let mut actions = cluster.drained(0, Report { cause: Cause::OthersFailed, ..Report::empty() });
        actions.extend(cluster.pass(Times::short().fence() + ms(4000)));
        assert_eq!(ending(&actions).is_none(), has_spare, "{actions:?}");
    }
}

#[test]
fn the_time_limit_of_a_programs_node_is_that_of_the_run() {
    let mut cluster = Cluster::running(2..=2);
    cluster.leader.policy.requeue_code = None;
    let actions = cluster.drained(0, Report { cause: Cause::Requeue, ..Report::empty() });
    assert_eq!(stops(&actions), [(1, StopReason::Asked { signal: TERM, again: false })]);
    let stopped = Report { cause: Cause::Stopped { signal: TERM }, ..Report::empty() };
    let actions = cluster.drained(1, stopped);
    assert!(
        matches!(ending(&actions), Some(Ending::Judged { judgement, .. })
            if judgement.cause == ClusterCause::Workers(Cause::Requeue)),
        "{actions:?}"
    );
}
