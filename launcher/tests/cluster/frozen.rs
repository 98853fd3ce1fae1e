//! Agents and workers that stand still, as on a suspended machine.

use crate::harness::{Cluster, count_lines, expect_codes};
use dtrain_test_kit::process::{Signal, signal, wait_until};

/// Freezes all processes of dtrain on a node, as a hypervisor does, but not its workers.
#[track_caller]
fn freeze_agent(cluster: &Cluster, node: usize, guardian: u32) -> Vec<u32> {
    let pids = vec![guardian, cluster.launcher(node)];
    for pid in &pids {
        signal(*pid, Signal::STOP);
    }
    pids
}

fn thaw(pids: &[u32]) {
    for pid in pids {
        dtrain_test_kit::process::kill(*pid, Signal::CONT);
    }
}

#[test]
fn a_frozen_agent_ends_the_run_and_stops_its_workers_once_it_wakes() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let mut launches = cluster.work(&[]);
    let frozen = launches.remove(1);
    let pids = freeze_agent(&cluster, 1, frozen.child.id());
    let done: Vec<_> = launches.into_iter().map(|launch| launch.wait_leaving_processes()).collect();
    expect_codes(&done, 4);
    done[0].expect_stderr("n1");
    thaw(&pids);
    assert_ne!(cluster.wait([frozen])[0].code, Some(0));
}

#[test]
fn a_frozen_launcher_is_fenced_before_the_others_start_again() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches = cluster.start_all("1:2", &["--max-restarts", "3"], crate::harness::WORK);
    cluster.wait_for_workers(0..2, 0);
    // Only the launcher: its guardian sees that it stands still.
    signal(cluster.launcher(1), Signal::STOP);
    cluster.wait_for_workers([0], 1);
    let pid = cluster.worker(1);
    assert!(!cluster.network[1].processes().contains(&pid), "the frozen node's worker still runs");
    cluster.finish_work();
    let mut launches = launches.into_iter();
    expect_codes(&[launches.next().unwrap().wait_leaving_processes()], 0);
    cluster.expect_one_writer();
    for pid in cluster.network[1].processes() {
        dtrain_test_kit::process::kill(pid, Signal::CONT);
    }
    cluster.wait(launches);
}

#[test]
fn a_short_pause_of_an_agent_disturbs_nothing() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches = cluster.work(&[]);
    let pids = freeze_agent(&cluster, 1, launches[1].child.id());
    std::thread::sleep(std::time::Duration::from_millis(300));
    thaw(&pids);
    cluster.finish(launches);
}

/// With the usual lease: switches that restart a port, and machines whose CPU time is used up.
#[test]
fn silence_of_a_network_and_of_an_agent_for_two_seconds_disturbs_nothing() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches = cluster.work(&["--rdzv-conf", "keep_alive_max_attempt=25"]);
    let silence = std::time::Duration::from_secs(2);
    cluster.network.cut(&[1]);
    std::thread::sleep(silence);
    cluster.network.heal();
    // The systems send again what was lost after pauses that double.
    std::thread::sleep(silence);
    for node in [0, 1] {
        let pids = freeze_agent(&cluster, node, launches[node].child.id());
        std::thread::sleep(silence);
        thaw(&pids);
    }
    std::thread::sleep(silence);
    let lost = launches.iter().map(|launch| launch.stderr()).find(|text| text.contains("lost"));
    assert_eq!(lost, None);
    cluster.finish(launches);
}

#[test]
fn a_frozen_leader_ends_all_others_with_75_and_starts_nothing_when_it_wakes() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.work(&["--max-restarts", "3"]);
    let leader = launches.remove(0);
    let pids = freeze_agent(&cluster, 0, leader.child.id());
    std::thread::sleep(std::time::Duration::from_secs(3));
    thaw(&pids);
    launches.insert(0, leader);
    let done = cluster.wait(launches);
    expect_codes(&done, 75);
    done[0].expect_stderr("n0, the leader, stood still for 3.");
    assert_eq!(count_lines(&done, "lost n"), 0, "{}", done[0].stderr);
    cluster.expect_one_writer();
}

#[test]
fn a_leader_that_wakes_after_the_others_have_ended_ends_too() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let mut launches = cluster.work(&["--max-restarts", "3", "--rdzv-conf", "join_timeout=3"]);
    let leader = launches.remove(0);
    let pids = freeze_agent(&cluster, 0, leader.child.id());
    let done: Vec<_> = launches.into_iter().map(|launch| launch.wait_leaving_processes()).collect();
    expect_codes(&done, 75);
    thaw(&pids);
    expect_codes(&cluster.wait([leader]), 75);
    cluster.expect_one_writer();
}

#[test]
fn a_frozen_worker_is_stopped_with_the_others() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches = cluster.work(&["--shutdown-timeout", "1"]);
    cluster.signal_worker(1, Signal::STOP);
    cluster.signal_worker(0, Signal::KILL);
    let done = cluster.wait(launches);
    expect_codes(&done, 128 + 9);
    done[0].expect_stderr("rank 0");
    wait_until("the frozen worker to end", || cluster.network[1].processes().is_empty());
}
