//! Names of nodes, numbers of their logs, and their checkpoints.

use super::*;
use crate::cluster::message::Blame;
use dtrain_common::result;

fn joined(actions: &[LeaderAction]) -> Vec<&str> {
    let name = |action| match action {
        &LeaderAction::Tell(LeaderNotice::Joined { ref host, .. }) => Some(host.as_str()),
        _ => None,
    };
    actions.iter().filter_map(name).collect()
}

#[test]
fn nodes_with_equal_hosts_have_different_names() {
    let mut cluster = Cluster::new(5..=5);
    let clone = || "clone".to_owned();
    assert_eq!(joined(&cluster.join_as(0, clone(), None)), ["clone"]);
    assert_eq!(joined(&cluster.join_as(1, clone(), Some("10.0.0.2"))), ["clone (10.0.0.2)"]);
    assert_eq!(joined(&cluster.join_as(2, clone(), Some("10.0.0.3"))), ["clone (10.0.0.3)"]);
    assert_eq!(joined(&cluster.join_as(3, clone(), Some("10.0.0.3"))), ["clone (agent 3)"]);
    cluster.join_as(4, "other".to_owned(), Some("10.0.0.3"));
    let names = ["clone (the leader)", "clone (10.0.0.2)", "clone (agent 2)", "clone (agent 3)", "other"];
    assert_eq!(cluster.leader.hosts(), names);
    cluster.start();
    let failure = result::Failure { rank: 1, host: clone(), ..Default::default() };
    let banner = vec!["dtrain: rank 1 failed after 0.1 s on clone: exit code 1".to_owned()];
    let blame = Blame { failure, ended: String::new(), reported: None, banner };
    let (blame, cause) = (Some(Box::new(blame)), Cause::Failed { rank: 1 });
    let report = Report { blame, cause, ends: vec![exited(1, 1, cluster.now)], ..Report::empty() };
    let mut actions = cluster.drained(1, report);
    assert!(stops(&actions).iter().all(|(_, reason)| matches!(reason,
        StopReason::WorkerFailed { host, .. } if host == "clone (10.0.0.2)")));
    for id in [0, 2, 3, 4] {
        actions.extend(cluster.drained(id, Report { cause: Cause::OthersFailed, ..Report::empty() }));
    }
    let ended = actions.iter().find_map(|action| match action {
        LeaderAction::Tell(LeaderNotice::Ended { nodes, .. }) => Some(nodes),
        _ => None,
    });
    let node = ended.unwrap().iter().find(|node| node.host == "clone (10.0.0.2)").unwrap();
    let blame = node.report.as_ref().unwrap().blame.as_ref().unwrap();
    assert_eq!(blame.failure.host, "clone (10.0.0.2)");
    assert_eq!(blame.banner, ["dtrain: rank 1 failed after 0.1 s on clone (10.0.0.2): exit code 1"]);
}

#[test]
fn all_nodes_use_the_same_number_of_the_log_folder() {
    let numbers =
        |actions: &[LeaderAction]| -> Vec<u32> { proposals(actions).iter().map(|(_, it)| it.logs).collect() };
    let mut cluster = Cluster::new(2..=2);
    cluster.join(0);
    assert_eq!(numbers(&cluster.join(1)), [0, 0]);
    cluster.node_is_ready(0, 0, None);
    // An earlier run has left logs on this node.
    let other = cluster.receive(1, ToLeader::Ready { epoch: 1, listens: None, logs: 4, place: None });
    assert_eq!(stops(&other), [(0, StopReason::Regroup), (1, StopReason::Regroup)]);
    cluster.drained(0, Report::empty());
    assert_eq!(numbers(&cluster.drained(1, Report::empty())), [4, 4]);
    cluster.start();
    assert_eq!(numbers(&cluster.fail(0)), [5, 5]);
}

#[test]
fn a_signal_for_a_training_before_a_restart_ends_the_run_if_there_is_a_checkpoint() {
    for has_checkpoint in [false, true] {
        let mut cluster = Cluster::running(1..=1);
        let policy = RestartPolicy { max_restarts: 9, training: true, ..RestartPolicy::default() };
        cluster.leader.restarts = Restarts::new(policy);
        let notices = vec![crate::signals::USR1];
        let report = Report { cause: Cause::Hung { rank: 0 }, has_checkpoint, notices, ..Report::empty() };
        let actions = cluster.drained(0, report);
        let stopped = Ending::StoppedEarly { signal: crate::signals::USR1 };
        assert_eq!(ending(&actions), has_checkpoint.then_some(&stopped), "{actions:?}");
        assert_eq!(proposed(&actions).is_empty(), has_checkpoint);
    }
}

#[test]
fn a_worker_that_rejects_the_recipe_has_not_failed() {
    for (code, is_told) in [(2, false), (1, true)] {
        let mut cluster = Cluster::running(2..=2);
        let end = exited(1, code, cluster.now);
        let actions = cluster.receive(1, ToLeader::Failed { epoch: 1, end });
        assert_eq!(stops(&actions).len(), 1);
        let failed =
            |action: &LeaderAction| matches!(action, LeaderAction::Tell(LeaderNotice::Failed { .. }));
        assert_eq!(actions.iter().any(failed), is_told);
    }
}
