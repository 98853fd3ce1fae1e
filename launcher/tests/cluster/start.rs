//! Ranks and variables of all workers, and torchrun's forms of the command line.

use crate::harness::{Cluster, ENDPOINT, expect_codes};
use std::collections::BTreeMap;

/// Writes the worker's variables and how it sees its node.
const WRITE: &str = r#"env > "$TEST_DIR/env.$RANK"; cat /proc/sys/kernel/hostname > "$TEST_DIR/host.$RANK""#;

type Vars = BTreeMap<String, String>;

/// Reads the variables of each rank.
fn variables(cluster: &Cluster, world: usize) -> Vec<Vars> {
    let read = |rank| {
        let text = cluster.scene.read(&format!("env.{rank}"));
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().filter_map(pair).collect()
    };
    (0..world).map(read).collect()
}

/// Checks the variables of a run with these numbers of workers on the nodes.
#[track_caller]
fn expect_variables(cluster: &Cluster, workers: &[usize]) {
    let world: usize = workers.iter().sum();
    let found = variables(cluster, world);
    let places = workers.iter().enumerate().flat_map(|(node, n)| (0..*n).map(move |local| (node, local, *n)));
    for (rank, ((node, local, of_node), vars)) in places.zip(&found).enumerate() {
        let number = |name: &str| -> usize { vars[name].parse().unwrap() };
        assert_eq!(cluster.scene.read(&format!("host.{rank}")).trim(), format!("n{node}"), "rank {rank}");
        for (name, value) in [
            ("RANK", rank),
            ("LOCAL_RANK", local),
            ("GROUP_RANK", node),
            ("ROLE_RANK", rank),
            ("WORLD_SIZE", world),
            ("LOCAL_WORLD_SIZE", of_node),
            ("GROUP_WORLD_SIZE", workers.len()),
            ("ROLE_WORLD_SIZE", world),
            ("TORCHELASTIC_RESTART_COUNT", 0),
        ] {
            assert_eq!(number(name), value, "{name} of rank {rank}");
        }
        for name in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"] {
            assert_eq!(vars[name], found[0][name], "{name} of rank {rank}");
        }
        assert!(!vars["MASTER_ADDR"].starts_with("127."), "{}", vars["MASTER_ADDR"]);
    }
}

#[test]
fn workers_are_numbered_over_all_nodes() {
    for workers in [&[1, 1][..], &[2, 1, 3], &[1, 2, 1, 1]] {
        let Ok(cluster) = Cluster::new(workers.len()) else { return };
        let nnodes = workers.len().to_string();
        let start = |(node, workers): (usize, &usize)| {
            cluster.start(node, &nnodes, &["--nproc-per-node", &workers.to_string()], WRITE)
        };
        // The nodes come in any order.
        let launches: Vec<_> = workers.iter().enumerate().rev().map(start).collect();
        expect_codes(&cluster.wait(launches), 0);
        expect_variables(&cluster, workers);
    }
}

#[test]
fn torchruns_static_form_starts_the_nodes_in_the_order_of_their_ranks() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let start = |node: usize| {
        let rank = node.to_string();
        let flags = [
            "--nnodes=3",
            "--nproc_per_node=2",
            "--node_rank",
            &rank,
            "--master_addr=n0",
            "--master_port=29400",
        ];
        cluster.start_with(node, &[&flags[..], &["--no-python", "sh", "-c", WRITE]].concat())
    };
    expect_codes(&cluster.wait([2, 0, 1].map(start)), 0);
    expect_variables(&cluster, &[2, 2, 2]);
}

#[test]
fn torchruns_c10d_form_starts_the_nodes() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let line = [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-id=100",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        ENDPOINT,
    ];
    let start = |node| cluster.start_with(node, &[&line[..], &["--no-python", "sh", "-c", WRITE]].concat());
    expect_codes(&cluster.wait([0, 1].map(start)), 0);
    expect_variables(&cluster, &[2, 2]);
    assert!(variables(&cluster, 4).iter().all(|vars| vars["TORCHELASTIC_RUN_ID"] == "100"));
}

#[test]
fn node_ranks_of_the_user_decide_over_host_names() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let start = |(node, rank)| {
        let line = ["--nnodes=2", "--rdzv-endpoint=n1:29500", "--rdzv-secret=secret", "--node-rank", rank];
        cluster.start_with(node, &[&line[..], &["--", "sh", "-c", WRITE]].concat())
    };
    expect_codes(&cluster.wait([(0, "1"), (1, "0")].map(start)), 0);
    assert_eq!(cluster.scene.read("host.0"), "n1\n");
    assert_eq!(cluster.scene.read("host.1"), "n0\n");
}

#[test]
fn workers_of_all_nodes_meet_at_the_master_address() {
    let Ok(cluster) = Cluster::new(3) else { return };
    // The port is open on rank 0's node only once it listens, or at once if the launcher serves a store there.
    let script = r#"
        if [ "$RANK" = 0 ]; then exec python3 -c "
import os, socket
s = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))
for _ in range(2): s.accept()"; fi
        exec python3 -c "
import os, socket, time
for _ in range(2000):
    try: socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])), 5); break
    except ConnectionRefusedError: time.sleep(0.01)
else: raise SystemExit('rank 0 is not reached')""#;
    let start = |node: usize| {
        let line =
            ["--nnodes=3", "--rdzv-endpoint", ENDPOINT, "--rdzv-secret=secret", "--", "sh", "-c", script];
        let mut command = cluster.command(&line);
        command.env("TORCHELASTIC_USE_AGENT_STORE", "False");
        cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
    };
    expect_codes(&cluster.wait([0, 1, 2].map(start)), 0);
}

#[test]
fn the_leader_writes_the_result_and_all_nodes_end_with_its_code() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let launches: Vec<_> = (0..2)
        .map(|node| {
            let dir = format!("logs-n{node}");
            cluster.start(node, "2", &["--run-dir", &dir], r#"[ "$RANK" = 0 ] || exit 9; sleep 60"#)
        })
        .collect();
    expect_codes(&cluster.wait(launches), 9);
    assert!(cluster.scene.path("logs-n0/result.json").is_file());
    assert!(!cluster.scene.path("logs-n1/result.json").exists());
}
