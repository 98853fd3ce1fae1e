//! Nodes that leave and come.

use crate::harness::{Cluster, WORK, expect_codes};
use dtrain_test_kit::process::{Signal, wait_until};

/// [`WORK`] that writes its number of workers first.
fn counting() -> String {
    format!(r#"echo "$WORLD_SIZE" > "$TEST_DIR/world.$TORCHELASTIC_RESTART_COUNT"; {WORK}"#)
}

fn world(cluster: &Cluster, attempt: u32) -> String {
    cluster.scene.read(&format!("world.{attempt}")).trim().to_owned()
}

#[test]
fn the_others_go_on_without_a_killed_node() {
    for (nodes, nnodes) in [(2, "1:2"), (3, "2:3")] {
        let Ok(cluster) = Cluster::new(nodes) else { return };
        let mut launches = cluster.start_all(nnodes, &["--max-restarts", "3"], &counting());
        cluster.wait_for_workers(0..nodes, 0);
        launches.remove(nodes - 1).signal(Signal::KILL);
        cluster.wait_for_workers(0..nodes - 1, 1);
        assert_eq!(world(&cluster, 1), (nodes - 1).to_string());
        cluster.finish(launches);
        cluster.expect_one_writer();
    }
}

#[test]
fn a_node_that_comes_back_takes_part_after_the_next_failure() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let flags = ["--max-restarts", "5"];
    let script = counting();
    let mut launches = cluster.start_all("2:3", &flags, &script);
    cluster.wait_for_workers(0..3, 0);
    let killed = launches.remove(2);
    killed.signal(Signal::KILL);
    killed.wait_leaving_processes();
    cluster.wait_for_workers(0..2, 1);
    launches.push(cluster.start(2, "2:3", &flags, &script));
    wait_until("n2 to join again", || launches[0].stderr().matches("n2 joined").count() == 2);
    cluster.signal_worker(0, Signal::KILL);
    cluster.wait_for_workers(0..3, 2);
    assert_eq!(["0", "1", "2"].map(|n| world(&cluster, n.parse().unwrap())), ["3", "2", "3"]);
    cluster.finish(launches);
    cluster.expect_one_writer();
}

#[test]
fn a_cut_half_is_fenced_before_the_other_goes_on() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches =
        cluster.start_all("2:3", &["--max-restarts", "3", "--rdzv-conf", "join_timeout=5"], WORK);
    cluster.wait_for_workers(0..3, 0);
    cluster.network.cut(&[2]);
    let apart = launches.remove(2);
    cluster.wait_for_workers(0..2, 1);
    let pid = cluster.worker(2);
    assert!(!cluster.network[2].processes().contains(&pid), "the cut node's worker still runs");
    expect_codes(&[apart.wait_leaving_processes()], 75);
    cluster.finish(launches);
    cluster.expect_one_writer();
}

#[test]
fn a_run_that_may_be_smaller_starts_without_the_absent() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let start = |node| cluster.start(node, "2:3", &["--rdzv-conf", "last_call_timeout=1"], &counting());
    let launches: Vec<_> = (0..2).map(start).collect();
    cluster.wait_for_workers(0..2, 0);
    assert_eq!(world(&cluster, 0), "2");
    cluster.finish(launches);
}

#[test]
fn a_node_that_gets_term_leaves_and_the_others_go_on() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.start_all("2:3", &[], &counting());
    cluster.wait_for_workers(0..3, 0);
    let leaving = launches.remove(2);
    leaving.signal(Signal::TERM);
    cluster.wait_for_workers(0..2, 1);
    assert_eq!(world(&cluster, 1), "2");
    let left = leaving.wait_leaving_processes();
    let text = "dtrain: exit code 143: n2 left the run, which continues without it";
    left.expect_code(143).expect_stderr(text);
    let done = cluster.finish(launches);
    done[0].expect_stderr("dtrain: n2 leaves the run: it was stopped by SIGTERM");
    cluster.expect_one_writer();
}

#[test]
fn a_surplus_node_waits_and_replaces_a_killed_one() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let flags = ["--max-restarts", "3"];
    let mut launches: Vec<_> = (0..2).map(|node| cluster.start(node, "2", &flags, WORK)).collect();
    cluster.wait_for_workers(0..2, 0);
    launches.push(cluster.start(2, "2", &flags, WORK));
    launches[2].wait_for_stderr("dtrain: this node waits as a spare until another node is lost or leaves");
    launches.remove(1).signal(Signal::KILL);
    cluster.wait_for_workers(0..2, 1);
    let done = cluster.finish(launches);
    done[0].expect_stderr("dtrain: n2 waits as a spare: 2 nodes take part already");
    cluster.expect_one_writer();
}
