//! Workers, agents and connections that fail on one of several nodes.

use crate::harness::{Cluster, Launch, WORK, count_lines, expect_codes};
use dtrain_test_kit::freezer::Freezer;
use dtrain_test_kit::need::Skipped;
use dtrain_test_kit::network::Addresses;
use dtrain_test_kit::process::{Signal, kill, signal, wait_until};

/// Seconds for which a node looks for a lost leader.
const SHORT_LOSS: [&str; 2] = ["--rdzv-conf", "join_timeout=5"];

#[test]
fn a_worker_that_fails_on_another_node_stops_all_and_is_named_once() {
    for nodes in [2, 3, 4] {
        let Ok(cluster) = Cluster::new(nodes) else { return };
        let launches = cluster.work(&[]);
        cluster.signal_worker(1, Signal::KILL);
        let done = cluster.wait(launches);
        expect_codes(&done, 128 + 9);
        assert_eq!(count_lines(&done, "failed after"), 1);
        done[0].expect_stderr("rank 1").expect_stderr("n1").expect_stderr("SIGKILL");
        let mut signalled: Vec<_> = cluster.scene.read("signalled").lines().map(str::to_owned).collect();
        signalled.sort();
        let others: Vec<_> = (0..nodes).filter(|rank| *rank != 1).map(|rank| rank.to_string()).collect();
        assert_eq!(signalled, others);
    }
}

#[test]
fn a_failure_on_the_leaders_node_reaches_the_other_nodes() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let launches = cluster.work(&["--nproc-per-node", "1"]);
    cluster.signal_worker(0, Signal::KILL);
    let done = cluster.wait(launches);
    expect_codes(&done, 128 + 9);
    done[0].expect_stderr("rank 0").expect_stderr("SIGKILL");
    for member in &done[1..] {
        member.expect_stderr("rank 0").expect_stderr("n0");
    }
}

#[test]
fn the_first_of_two_failures_is_named_although_clocks_differ() {
    for ahead in [-1_000_000, 1_000_000] {
        // A clock can be set back only as far as the machine runs already: shift the other one.
        let clocks = if ahead < 0 { [-ahead, 0] } else { [0, ahead] };
        let Ok(cluster) = Cluster::with(Addresses::V4, &clocks) else { return };
        let script = r#"
            : > "$TEST_DIR/ready.$RANK"
            until [ -e "$TEST_DIR/ready.0" ] && [ -e "$TEST_DIR/ready.1" ]; do sleep 0.01; done
            if [ "$RANK" = 1 ]; then exit 3; fi
            trap 'exit 4' TERM; while :; do sleep 0.05; done"#;
        let done = cluster.wait(cluster.start_all("2", &[], script));
        expect_codes(&done, 3);
        done[0].expect_stderr("rank 1");
        assert_eq!(count_lines(&done, "ambiguous"), 0);
    }
}

/// Kills a process of the agent on node 1, and expects that node 0 names the node.
#[track_caller]
fn lose_node_1(what: impl Fn(&Cluster, u32)) -> Result<(), Skipped> {
    let cluster = Cluster::new(3)?;
    let mut launches = cluster.work(&[]);
    what(&cluster, launches[1].child.id());
    let lost = launches.remove(1);
    let done = cluster.wait(launches);
    expect_codes(&done, 4);
    done[0].expect_stderr("n1");
    done[1].expect_stderr("n1");
    assert!(lost.wait_leaving_processes().code != Some(0));
    Ok(())
}

#[test]
fn a_killed_guardian_of_an_agent_is_noticed_and_leaves_nothing() {
    let Ok(()) = lose_node_1(|_, guardian| signal(guardian, Signal::KILL)) else { return };
}

#[test]
fn a_killed_agent_is_noticed_and_leaves_nothing() {
    let Ok(()) = lose_node_1(|cluster, _| signal(cluster.launcher(1), Signal::KILL)) else { return };
}

#[test]
fn an_agent_and_its_guardian_killed_together_are_noticed() {
    let Ok(()) = lose_node_1(|cluster, guardian| {
        let launcher = cluster.launcher(1);
        kill(launcher, Signal::KILL);
        kill(guardian, Signal::KILL);
        wait_until("the worker of node 1 to end", || {
            let pid = cluster.worker(1);
            !cluster.network[1].processes().contains(&pid)
        });
    }) else {
        return;
    };
}

#[test]
fn a_silent_partition_stops_both_sides() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.work(&SHORT_LOSS);
    cluster.network.cut(&[2]);
    let lost = launches.remove(2);
    let done = cluster.wait([lost]);
    // It cannot know whether the leader is lost or itself.
    expect_codes(&done, 75);
    let done = cluster.wait(launches);
    expect_codes(&done, 4);
    done[0].expect_stderr("n2");
    cluster.expect_one_writer();
}

#[test]
fn a_lost_leader_ends_all_others_with_75() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.work(&[&["--max-restarts", "3"], &SHORT_LOSS[..]].concat());
    let leader = launches.remove(0);
    leader.signal(Signal::KILL);
    let done = cluster.wait(launches);
    expect_codes(&done, 75);
    for done in &done {
        done.expect_stderr("n0");
    }
    drop(leader);
    cluster.expect_one_writer();
}

#[test]
fn a_leader_behind_a_partition_ends_all_others_with_75() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.work(&SHORT_LOSS);
    cluster.network.cut(&[0]);
    let leader = launches.remove(0);
    let done = cluster.wait(launches);
    expect_codes(&done, 75);
    // The leader has lost its nodes.
    let done = cluster.wait([leader]);
    expect_codes(&done, 4);
    assert!(done[0].stderr.contains("n1") || done[0].stderr.contains("n2"), "{}", done[0].stderr);
}

#[test]
fn a_node_whose_killed_worker_does_not_end_leaves_and_the_others_go_on() {
    let Ok(freezer) = Freezer::new() else { return };
    let Ok(cluster) = Cluster::new(2) else { return };
    let flags = ["--max-restarts", "3", "--shutdown-timeout", "1"];
    let launches = cluster.start_all("1:2", &flags, WORK);
    cluster.wait_for_workers(0..2, 0);
    freezer.freeze(cluster.worker(1));
    cluster.signal_worker(0, Signal::KILL);
    cluster.wait_for_workers([0], 1);
    cluster.finish_work();
    let mut done: Vec<_> = launches.into_iter().map(Launch::wait_leaving_processes).collect();
    drop(freezer);
    cluster.network.wait_until_empty();
    let stuck = done.pop().unwrap();
    stuck.expect_code(4).expect_stderr("dtrain: error: rank 1 (process ");
    stuck.expect_stderr(": state D (disk sleep), in the kernel at ");
    expect_codes(&done, 0);
    done[0].expect_stderr("n1 leaves the run: rank 1 (process ");
}
