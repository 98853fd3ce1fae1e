//! Launchers that are asked to stop, on one node or on all.

use crate::harness::{Cluster, WORK, count_lines, expect_codes};
use dtrain_test_kit::process::{Signal, kill};
use std::time::Duration;

#[test]
fn a_signal_to_one_launcher_stops_all_nodes() {
    for node in [0, 2] {
        let Ok(cluster) = Cluster::new(3) else { return };
        let launches = cluster.work(&["--max-restarts", "3"]);
        launches[node].signal(Signal::TERM);
        let done = cluster.wait(launches);
        expect_codes(&done, 128 + 15);
        let mut signalled: Vec<_> = cluster.scene.read("signalled").lines().map(str::to_owned).collect();
        signalled.sort();
        assert_eq!(signalled, ["0", "1", "2"]);
    }
}

#[test]
fn a_signal_to_all_launchers_stops_all_nodes() {
    for signal in [Signal::INT, Signal::TERM] {
        let Ok(cluster) = Cluster::new(3) else { return };
        let launches = cluster.work(&["--max-restarts", "3"]);
        for launch in &launches {
            kill(launch.child.id(), signal);
        }
        expect_codes(&cluster.wait(launches), 128 + signal.as_raw());
    }
}

/// Saves for a second when asked to stop, and ends with code 0.
const SAVES: &str = r#"
    trap 'sleep 1; echo "$RANK" >> "$TEST_DIR/saved"; exit 0' TERM
    : > "$TEST_DIR/ready.$RANK.0"
    while :; do sleep 0.05 || :; done"#;

/// As by a batch system, which signals all processes of all nodes, one node after the other.
#[test]
fn signals_that_reach_the_nodes_one_after_the_other_are_one_request() {
    for order in [[0, 1], [1, 0]] {
        let Ok(cluster) = Cluster::new(2) else { return };
        let launches = cluster.start_all("2", &["--shutdown-timeout", "600"], SAVES);
        cluster.wait_for_workers(0..2, 0);
        for node in order {
            kill(cluster.launcher(node), Signal::TERM);
            std::thread::sleep(Duration::from_millis(400));
            kill(launches[node].child.id(), Signal::TERM);
        }
        expect_codes(&cluster.wait(launches), 128 + 15);
        let mut saved: Vec<_> = cluster.scene.read("saved").lines().map(str::to_owned).collect();
        saved.sort();
        assert_eq!(saved, ["0", "1"]);
    }
}

#[test]
fn a_second_signal_to_a_node_kills_the_workers_of_all() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches =
        cluster.start_all("2", &["--shutdown-timeout", "600"], &SAVES.replace("sleep 1", "sleep 600"));
    cluster.wait_for_workers(0..2, 0);
    for _ in 0..2 {
        launches[1].signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(400));
    }
    let done = cluster.wait(launches);
    expect_codes(&done, 128 + 15);
    assert_eq!(count_lines(&done, "on request"), 2);
}

#[test]
fn a_launcher_that_waits_for_the_others_stops_at_once() {
    let Ok(cluster) = Cluster::new(2) else { return };
    for node in [0, 1] {
        let launch = cluster.start(node, "2", &[], WORK);
        if node == 0 {
            launch.wait_for_stderr("n0");
        } else {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        launch.signal(Signal::INT);
        expect_codes(&cluster.wait([launch]), 128 + 2);
    }
}
