//! Nodes that fail, and strangers, while a run waits for its nodes.

use crate::harness::{Cluster, ENDPOINT, Launch, WORK, expect_codes};

/// Starts a launcher on node 1 whose program does not exist, and waits for its end.
fn fail_on_node_1(cluster: &Cluster, nnodes: &str, flags: &[&str]) {
    let before = ["--nnodes", nnodes, "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
    let done =
        cluster.start_with(1, &[&before, flags, &["--", "./missing"]].concat()).wait_leaving_processes();
    done.expect_stderr("missing");
    assert!(matches!(done.code, Some(2 | 127)), "{:?}", done.code);
}

/// Starts the leader, and waits until it has joined.
fn lead<'a>(cluster: &'a Cluster, nnodes: &str, flags: &[&str]) -> Launch<'a> {
    let leader = cluster.start(0, nnodes, flags, WORK);
    leader.wait_for_stderr("n0 joined");
    leader
}

#[test]
fn a_run_waits_for_another_node_in_place_of_one_that_failed() {
    for nnodes in ["2", "2:3"] {
        let Ok(cluster) = Cluster::new(3) else { return };
        let flags = ["--rdzv-conf", "last_call_timeout=1"];
        let leader = lead(&cluster, nnodes, &flags);
        fail_on_node_1(&cluster, nnodes, &flags);
        leader.wait_for_stderr("n1 leaves the run: ");
        let other = cluster.start(2, nnodes, &flags, WORK);
        cluster.wait_for_workers(0..2, 0);
        cluster.finish([leader, other]);
    }
}

#[test]
fn a_run_without_enough_nodes_names_those_that_failed() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let leader = lead(&cluster, "2", &["--rdzv-conf", "join_timeout=4"]);
    fail_on_node_1(&cluster, "2", &[]);
    let done = cluster.wait([leader]);
    expect_codes(&done, 5);
    done[0].expect_stderr("only 1 of 2 nodes joined in time (n0)").expect_stderr("n1 cannot take part: ");
}

#[test]
fn a_stranger_that_fails_does_not_end_a_run() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let own = ["--rdzv-id", "own"];
    let leader = lead(&cluster, "2", &own);
    fail_on_node_1(&cluster, "2", &["--rdzv-id", "strange"]);
    leader.wait_for_stderr("refused n1: its --rdzv-id is strange, and the leader's is own");
    let stranger = cluster.start(1, "2", &["--rdzv-id", "other"], WORK).wait_leaving_processes();
    stranger.expect_code(5).expect_stderr("its --rdzv-id is other, and the leader's is own");
    let other = cluster.start(2, "2", &own, WORK);
    cluster.wait_for_workers(0..2, 0);
    cluster.finish([leader, other]);
}
