//! Nodes that fail while the run waits for nodes, and agents whose end is known.

use super::*;

fn cannot(host: &str) -> ToLeader {
    ToLeader::CannotJoin { host: host.into(), run_id: None, reason: "no such program".into(), signal: None }
}

#[test]
fn another_node_takes_the_place_of_one_that_cannot_join() {
    for nodes in [2..=2, 2..=3] {
        let mut cluster = Cluster::new(nodes.clone());
        cluster.join(0);
        let actions = cluster.receive(1, cannot("n1"));
        assert!(actions.contains(&LeaderAction::Close { member: 1 }));
        assert_eq!(ending(&actions), None, "{actions:?}");
        assert_eq!(ending(&cluster.pass(ms(599_000))), None);
        for id in 2..=*nodes.end() as u64 {
            cluster.join(id);
        }
        cluster.start();
    }
}

#[test]
fn nodes_that_failed_are_named_when_too_few_have_come() {
    let mut cluster = Cluster::new(3..=3);
    cluster.join(0);
    cluster.receive(1, cannot("n1"));
    cluster.receive(2, cannot("n2"));
    cluster.join(102);
    let actions = cluster.pass(ms(600_000));
    let Some(Ending::TooFewNodes { failed, .. }) = ending(&actions) else { panic!("{actions:?}") };
    assert_eq!(*failed, [("n1".to_owned(), "no such program".to_owned())], "n2 has come after all");
}

#[test]
fn a_job_that_replaces_no_node_ends_when_too_few_can_come() {
    let mut cluster = Cluster::new(2..=3);
    cluster.leader.policy.nodes_of_job = Some(3);
    cluster.join(0);
    assert_eq!(ending(&cluster.receive(1, cannot("n1"))), None);
    assert_eq!(ending(&cluster.receive(1, cannot("n1"))), None, "the same node");
    let actions = cluster.receive(2, cannot("n2"));
    assert!(matches!(ending(&actions), Some(Ending::NodeLeft { host, .. }) if host == "n1"), "{actions:?}");
}

#[test]
fn a_node_that_cannot_prepare_leaves_its_place_to_another() {
    let mut cluster = Cluster::joined(2..=2);
    let mut actions = cluster.receive(1, ToLeader::Leaving { reason: "disk full".into() });
    actions.extend(cluster.drained(0, Report::empty()));
    assert_eq!(ending(&actions), None, "{actions:?}");
    assert_eq!(proposed(&cluster.join(2)), [2, 2]);
}

#[test]
fn a_failure_before_the_start_does_not_count_after_it() {
    let mut running = Cluster::running(2..=2);
    running.receive(7, cannot("n7"));
    running.on(LeaderEvent::Disconnected { from: 1 });
    running.drained(0, Report { cause: Cause::OthersFailed, ..Report::empty() });
    assert_eq!(ending(&running.pass(ms(4000))), None, "it waits for the lost node");
    assert!(running.leader.failed.is_empty());
}

#[test]
fn a_stranger_that_cannot_join_is_refused_and_ends_no_run() {
    let mut cluster = Cluster::new(2..=2);
    cluster.leader.policy.nodes_of_job = Some(2);
    cluster.join(0);
    let strange = ToLeader::CannotJoin {
        host: "n1".into(),
        run_id: Some("other".into()),
        reason: "no program".into(),
        signal: None,
    };
    let actions = cluster.receive(1, strange);
    let [LeaderAction::Send { to: 1, message: ToMember::Rejected { reason } }, rest @ ..] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert!(reason.contains("its --rdzv-id is other, and the leader's is not given"), "{reason}");
    assert_eq!((ending(rest), rest[0].clone()), (None, LeaderAction::Close { member: 1 }));
}

#[test]
fn a_stranger_does_not_get_the_end_of_the_run() {
    let mut cluster = Cluster::running(2..=2);
    cluster.leader.decide(0, "done".into());
    let Some(peer) = cluster.leader.peers.get(&1) else { panic!() };
    let node = Node { run_id: Some("other".into()), instance: 9, ..peer.node.clone() };
    let actions = cluster.receive(50, ToLeader::Join { version: VERSION, node });
    assert!(
        matches!(&actions[..], [LeaderAction::Send { message: ToMember::Rejected { .. }, .. }, _]),
        "{actions:?}"
    );
}

#[test]
fn nobody_waits_for_the_lease_of_an_agent_whose_guardian_reports_its_end() {
    let end = ToLeader::Gone { instance: 1 };
    // The connection may end first.
    for is_closed in [false, true] {
        let mut cluster = Cluster::running(1..=2);
        if is_closed {
            cluster.on(LeaderEvent::Disconnected { from: 1 });
        }
        let actions = cluster.receive(50, end.clone());
        assert!(actions.contains(&LeaderAction::Close { member: 50 }), "{actions:?}");
        let next = cluster.drained(0, Report { cause: Cause::OthersFailed, ..Report::empty() });
        assert_eq!((ending(&next), proposed(&next)), (None, vec![2]));
    }
}

#[test]
fn an_end_of_another_agent_or_of_the_leader_itself_is_not_believed() {
    let mut cluster = Cluster::running(1..=2);
    for instance in [0, 7] {
        let actions = cluster.receive(50, ToLeader::Gone { instance });
        assert_eq!(actions, [LeaderAction::Close { member: 50 }]);
    }
    assert!(stops(&cluster.on(LeaderEvent::Timer)).is_empty());
}

#[test]
fn a_signal_during_the_checks_of_a_node_is_one_to_the_run_in_a_job() {
    let cannot = |run_id: Option<&str>| ToLeader::CannotJoin {
        host: "n1".into(),
        run_id: run_id.map(str::to_owned),
        reason: "stopped by SIGTERM".into(),
        signal: Some(TERM),
    };
    let mut job = Cluster::new(2..=2);
    job.leader.policy.nodes_of_job = Some(2);
    job.join(0);
    assert_eq!(ending(&job.receive(7, cannot(Some("other")))), None, "a stranger");
    assert_eq!(ending(&job.receive(1, cannot(None))), Some(&Ending::StoppedEarly { signal: TERM }));
    let mut alone = Cluster::new(2..=2);
    alone.leader.policy.nodes_may_leave = true;
    alone.join(0);
    assert_eq!(ending(&alone.receive(1, cannot(None))), None);
}
