//! `dtrain doctor` on several nodes: processes of one machine, and network namespaces.

use crate::doctor;
use crate::harness::{Finished, Launch, Scene};
use dtrain_test_kit::network::{Network, Node};
use dtrain_test_kit::ranks::free_port;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

fn command(scene: &Scene, args: &[&str]) -> Command {
    doctor::command(scene, &[&["--json"], args].concat(), doctor::TRAINER)
}

/// Returns `LEVEL WHAT: VALUE` of each row.
fn rows(done: &Finished) -> Vec<String> {
    let rows: serde_json::Value = serde_json::from_str(&done.stdout()).unwrap();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| format!("{} {}: {}", text(row, "level"), text(row, "what"), text(row, "value"))).collect()
}

#[track_caller]
fn expect_row(done: &Finished, begin: &str, part: &str) {
    let rows = rows(done);
    assert!(rows.iter().any(|row| row.starts_with(begin) && row.contains(part)), "{begin} {part}: {rows:#?}");
}

/// Runs the doctor on nodes of one machine, the leader first, each with these flags.
fn on_one_machine(flags: &[&[&str]]) -> Vec<Finished> {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let count = flags.len().to_string();
    let scenes: Vec<Scene> = flags.iter().map(|_| Scene::new()).collect();
    let start = |(index, scene): (usize, &Scene)| -> Command {
        let leads = format!("is_host={},join_timeout=5", index == 0);
        let all = ["--nnodes", &count, "--rdzv-endpoint", &endpoint, "--rdzv-conf", &leads];
        command(scene, &[&all, flags[index]].concat())
    };
    let commands: Vec<Command> = scenes.iter().enumerate().map(start).collect();
    let started: Vec<Launch<'_>> = scenes.iter().zip(commands).map(|(scene, it)| scene.start(it)).collect();
    started.into_iter().map(Launch::wait).collect()
}

#[test]
fn the_leader_prints_one_table_and_all_end_with_the_same_code() {
    let begun = Instant::now();
    let done = on_one_machine(&[&[], &[], &[]]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    expect_row(&done[0], "ok connections", "6 work, round trips up to ");
    assert_eq!(rows(&done[0]).iter().filter(|row| row.contains("127.0.0.1 on lo (MTU ")).count(), 3);
    let code = i32::from(rows(&done[0]).iter().any(|row| row.starts_with("fail")));
    for node in &done {
        node.expect_code(code);
    }
    for member in &done[1..] {
        assert_eq!(member.stdout(), "");
        member.expect_stderr(" prints the table\n");
    }
    let done = on_one_machine(&[&["--run-dir", "/proc/run"], &[]]);
    expect_row(&done[0], "fail ", ": run directory: cannot write to /proc");
    assert_eq!([done[0].code, done[1].code], [Some(1), Some(1)]);
}

#[test]
fn a_node_that_may_not_join_says_why_and_the_leader_names_who_came() {
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("a long secret, {name}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, two) = (secret("one"), secret("two"));
    let done = on_one_machine(&[&["--rdzv-secret", &one], &["--rdzv-secret", &two]]);
    expect_row(&done[0], "fail rendezvous: 1 of 2 nodes came within 5 s: ", "");
    expect_row(&done[0], "warn rendezvous: 127.0.0.1: ", "secret");
    done[0].expect_code(1).expect_stderr("dtrain: 1 of 2 nodes came; waiting ");
    expect_row(&done[1], "fail rendezvous: ", "its secret differs");
    done[1].expect_code(1);
    let done = on_one_machine(&[&["--rdzv-id", "a"], &["--rdzv-id", "b"]]);
    expect_row(&done[0], "fail rendezvous: ", " belongs to the run b");
    done[1]
        .expect_code(1)
        .expect_stderr(" leads the run a here, and --rdzv-id is b; give each run its own port");
}

#[test]
fn without_a_leader_a_node_says_so() {
    let scene = Scene::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let flags =
        ["--nnodes", "2", "--rdzv-endpoint", &endpoint, "--rdzv-conf", "is_host=false,join_timeout=3"];
    let done = scene.start(command(&scene, &flags)).wait();
    expect_row(
        &done,
        "fail rendezvous: cannot reach the leader at 127.0.0.1",
        "no process listens at that port",
    );
    done.expect_code(1).expect_stderr("no process listens at that port; waiting ");
    let flags = ["--nnodes", "2", "--rdzv-endpoint", "no-such.invalid", "--rdzv-conf", "join_timeout=3"];
    let done = scene.start(command(&scene, &flags)).wait();
    expect_row(&done, "fail rendezvous: ", "its name cannot be resolved");
}

/// Runs the doctor on all nodes; the first leads.
fn on_nodes(network: &Network, flags: &[&str]) -> Vec<Finished> {
    let count = network.nodes().len().to_string();
    let scenes: Vec<Scene> = network.nodes().map(|_| Scene::new()).collect();
    let all = ["--nnodes", &count, "--rdzv-endpoint", "n0", "--rdzv-conf", "join_timeout=6"];
    let run = |(scene, node): (&Scene, &Node)| node.enter(&command(scene, &[&all, flags].concat()));
    let commands: Vec<Command> = scenes.iter().zip(network.nodes()).map(run).collect();
    let started: Vec<Launch<'_>> = scenes.iter().zip(commands).map(|(scene, it)| scene.start(it)).collect();
    started.into_iter().map(Launch::wait).collect()
}

#[test]
fn planted_faults_between_nodes_are_named() {
    let Ok(network) = Network::new(3) else { return };
    let done = on_nodes(&network, &[]);
    expect_row(&done[0], "ok n1: 10.77.0.2 on eth0 (MTU 1500)", "");
    expect_row(&done[0], "ok connections", "6 work");

    network[1].block_ports(20_000..=32_767);
    let done = on_nodes(&network, &[]);
    expect_row(&done[0], "fail n0, n2 -> n1: ", "a firewall blocks some ports");
    assert!(done.iter().all(|node| node.code == Some(1)), "{done:?}");
    network[1].unblock();

    network[2].lose_large_packets(1000);
    let done = on_nodes(&network, &[]);
    expect_row(&done[0], "fail n0, n1 -> n2: ", "packets above the MTU of the path are lost");
    network[2].unblock();

    network[1].set_mtu(1400);
    let done = on_nodes(&network, &[]);
    expect_row(&done[0], "warn MTU: differs: 1400 on n1; 1500 on n0, n2", "");
    network[1].set_mtu(1500);

    network[0].block_ports(29_400..=29_400);
    let done = on_nodes(&network, &[]);
    expect_row(&done[0], "fail rendezvous: 1 of 3 nodes came", "n0");
    expect_row(&done[1], "fail rendezvous: ", "it does not answer; a firewall may block the port");
    network[0].unblock();

    network.add_second_interface(2);
    let scene = Scene::new();
    let flags = ["--nodes", "n1,n9", "--port", "29400"];
    let done = scene.start(network[0].enter(&command(&scene, &flags))).wait();
    expect_row(&done, "ok n1: 10.77.0.2 by eth0 (MTU 1500): up; no program listens at port 29400", "");
    expect_row(&done, "fail n9: the name does not resolve", "");
    done.expect_code(1);
}

#[test]
fn the_wrong_interface_of_one_node_is_named() {
    let Ok(network) = Network::new(2) else { return };
    network.add_second_interface(1);
    let scenes = [Scene::new(), Scene::new()];
    let all = ["--nnodes", "2", "--rdzv-endpoint", "n0", "--rdzv-conf", "join_timeout=6"];
    let one = network[0].enter(&command(&scenes[0], &all));
    let flags = [&all[..], &["--local-addr", "192.168.77.2"]].concat();
    let two = network[1].enter(&command(&scenes[1], &flags));
    let started = [scenes[0].start(one), scenes[1].start(two)];
    let done = started.map(Launch::wait);
    let rows: serde_json::Value = serde_json::from_str(&done[1].stdout()).unwrap();
    let last = rows.as_array().unwrap().last().unwrap();
    let remedy =
        "192.168.77.2 (--rdzv-interface or --local-addr) may not lead there: leave it out, to use 10.77.0.2";
    assert_eq!(last["remedy"], remedy, "{last}");
    expect_row(&done[0], "fail rendezvous: 1 of 2 nodes came", "");
    assert_eq!([done[0].code, done[1].code], [Some(1), Some(1)]);
}
