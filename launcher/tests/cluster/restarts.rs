//! Restarts of all nodes together.

use crate::harness::{Cluster, WORK, expect_codes};
use dtrain_test_kit::process::{Signal, signal};

#[test]
fn all_nodes_restart_together_with_one_attempt_number() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let launches = cluster.work(&["--max-restarts", "3", "--nproc-per-node", "1"]);
    for attempt in 0..3 {
        cluster.wait_for_workers(0..3, attempt);
        // Another node each time.
        cluster.signal_worker(attempt as usize, Signal::KILL);
    }
    cluster.wait_for_workers(0..3, 3);
    cluster.finish(launches);
    cluster.expect_one_writer();
}

#[test]
fn restarts_are_counted_over_all_nodes() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let script = r#"echo "$RANK $TORCHELASTIC_RESTART_COUNT" >> "$TEST_DIR/starts"; [ "$RANK" = 0 ] || exit 6; sleep 60"#;
    let done = cluster.wait(cluster.start_all("2", &["--max-restarts", "2"], script));
    expect_codes(&done, 6);
    let mut starts: Vec<_> = cluster.scene.read("starts").lines().map(str::to_owned).collect();
    starts.sort();
    assert!(starts.iter().filter(|line| line.starts_with('1')).eq(["1 0", "1 1", "1 2"]), "{starts:?}");
}

#[test]
fn a_reset_connection_is_a_lost_node_that_may_come_back() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches = cluster.work(&["--max-restarts", "3"]);
    cluster.network[1].reset_connections();
    cluster.wait_for_workers(0..2, 1);
    let done = cluster.finish(launches);
    done[0].expect_stderr("n1");
    cluster.expect_one_writer();
}

#[test]
fn a_healed_partition_continues_in_the_next_attempt() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let launches = cluster.work(&["--max-restarts", "3"]);
    cluster.network.cut(&[1]);
    launches[0].wait_for_stderr("lost n1");
    cluster.network.heal();
    cluster.wait_for_workers(0..3, 1);
    cluster.finish(launches);
    cluster.expect_one_writer();
}

#[test]
fn a_launcher_that_was_killed_may_be_started_again() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let flags = ["--max-restarts", "3"];
    let mut launches = cluster.work(&flags);
    let killed = launches.remove(1);
    signal(killed.child.id(), Signal::KILL);
    killed.wait_leaving_processes();
    launches[0].wait_for_stderr("lost n1");
    launches.push(cluster.start(1, "2", &flags, WORK));
    cluster.wait_for_workers(0..2, 1);
    cluster.finish(launches);
    cluster.expect_one_writer();
}
