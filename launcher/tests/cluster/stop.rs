//! Launchers that are asked to stop, on one node or on all.

use crate::harness::{Cluster, WORK, expect_codes};
use dtrain_test_kit::process::{Signal, kill};

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
