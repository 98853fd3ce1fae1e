//! Runs that cannot begin: exit code 5, with the names.

use crate::harness::{Cluster, ENDPOINT, WORK, count_lines, expect_codes, write_secret};
use dtrain_common::env::DTRAIN_RDZV_SECRET;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Seconds to wait for the nodes, in a test of this time.
const SHORT: [&str; 2] = ["--rdzv-conf", "join_timeout=2"];

#[test]
fn too_few_nodes_in_time_are_named() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let flags = |rank| [&SHORT[..], &["--node-rank", rank]].concat();
    let launches = vec![cluster.start(0, "3", &flags("0"), WORK), cluster.start(2, "3", &flags("2"), WORK)];
    let done = cluster.wait(launches);
    expect_codes(&done, 5);
    done[0].expect_stderr("n0").expect_stderr("n2").expect_stderr("node rank 1");
}

#[test]
fn a_node_rank_given_twice_is_refused() {
    let Ok(cluster) = Cluster::new(3) else { return };
    let flags = |rank| [&SHORT[..], &["--node-rank", rank]].concat();
    let first = cluster.start(0, "2", &flags("0"), WORK);
    let second = cluster.start(1, "2", &flags("1"), WORK);
    cluster.wait_for_workers(0..2, 0);
    let third = cluster.start(2, "2", &flags("1"), WORK).wait_leaving_processes();
    third.expect_code(5);
    cluster.finish([first, second]);

    let Ok(cluster) = Cluster::new(3) else { return };
    let start = |(node, rank)| cluster.start(node, "3", &flags(rank), WORK);
    let done = cluster.wait([(0, "0"), (1, "1"), (2, "1")].map(start));
    expect_codes(&done, 5);
    assert_eq!(count_lines(&done[1..], "refused this node: node rank 1 is taken by n"), 1);
    done[0].expect_stderr("node rank 1 is taken by n").expect_stderr("missing: node rank 2");
}

#[test]
fn two_ids_at_one_endpoint_are_refused() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let start = |(node, id)| cluster.start(node, "2", &[&SHORT[..], &["--rdzv-id", id]].concat(), WORK);
    let done = cluster.wait([(0, "mine"), (1, "theirs")].map(start));
    expect_codes(&done, 5);
    done[1].expect_stderr("mine").expect_stderr("theirs").expect_stderr("--rdzv-id");
}

#[test]
fn another_secret_is_refused() {
    let Ok(cluster) = Cluster::new(2) else { return };
    write_secret(&cluster.scene.path("other"), "another secret of the same length");
    let start = |(node, secret)| {
        let line = ["--nnodes=2", "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", secret];
        cluster.start_with(node, &[&line[..], &SHORT, &["--", "sh", "-c", WORK]].concat())
    };
    let done = cluster.wait([(0, "secret"), (1, "other")].map(start));
    expect_codes(&done, 5);
    done[1].expect_stderr("secret");
    done[0].expect_stderr("secret");
}

#[test]
fn a_missing_secret_is_an_error_unless_the_run_is_meant_to_be_open() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let c10d = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint", ENDPOINT];
    let rank = ["--nnodes=2", "--node-rank=0", "--master-addr=n0", "--master-port=29500"];
    let program = ["--no-python", "true"];
    for line in [&c10d, &rank] {
        let mut command = cluster.scene.command(&[&line[..], &program].concat());
        command.env_remove(DTRAIN_RDZV_SECRET);
        let launch = cluster.scene.start_as(".n0", cluster.network[0].enter(&command));
        let done = cluster.wait([launch]);
        expect_codes(&done, 2);
        done[0].expect_stderr("several nodes need a secret").expect_stderr("--rdzv-secret none");
    }
    let open = [&c10d[..], &["--rdzv-secret=none"], &program].concat();
    let done = cluster.wait([0, 1].map(|node| {
        let mut command = cluster.scene.command(&open);
        command.env_remove(DTRAIN_RDZV_SECRET);
        cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
    }));
    expect_codes(&done, 0);
    done[0].expect_stderr("any program that reaches n0:29500 can join the run");
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let Ok(cluster) = Cluster::new(1) else { return };
    fs::set_permissions(cluster.scene.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let done = cluster.wait([cluster.start(0, "2", &SHORT, WORK)]);
    assert!(matches!(done[0].code, Some(2 | 5)), "{:?}", done[0].code);
    done[0].expect_stderr("secret").expect_stderr("chmod 600");
}
