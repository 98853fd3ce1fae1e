//! Ends before the start, usage errors of workers, logs with equal numbers, results, and limits.

use crate::harness::{Cluster, ENDPOINT, Launch, WORK, count_lines, expect_codes};
use dtrain_test_kit::process::{Signal, wait_until};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Nodes that wait for the leader end within this time after it, on a busy machine.
const SOON: Duration = Duration::from_secs(8);

/// Starts `dtrain launch FLAGS demo` on each node, with this script as the trainer.
fn train<'a>(cluster: &'a Cluster, nnodes: &str, flags: &[&str], worker: &str) -> Vec<Launch<'a>> {
    let start = |node: usize| {
        let before = ["--nnodes", nnodes, "--nproc", "1", "--rdzv-endpoint", ENDPOINT];
        let mut command = cluster.command(&[&before, flags, &["demo", "--run-dir", "run"]].concat());
        command.env("FAKE_WORKER", worker);
        cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
    };
    (0..cluster.network.nodes().len()).map(start).collect()
}

#[test]
fn a_leader_that_is_stopped_during_its_checks_ends_the_waiting_nodes() {
    for signal in [Signal::INT, Signal::TERM] {
        let Ok(cluster) = Cluster::new(2) else { return };
        // Reading this recipe never ends.
        let made = Command::new("mkfifo").arg(cluster.scene.path("endless.toml")).status().unwrap();
        assert!(made.success());
        let member = cluster.start(1, "2", &[], WORK);
        let flags = ["--nnodes", "2", "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret", "endless.toml"];
        let leader = cluster.start_with(0, &flags);
        member.wait_for_stderr("joins the run at");
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        leader.signal(signal);
        let done = cluster.wait([leader, member]);
        expect_codes(&done, 128 + signal.as_raw());
        done[1].expect_stderr("the leader, n0, ended before the start: stopped by SIG");
        assert!(begun.elapsed() < SOON, "the nodes ended after {:?}", begun.elapsed());
    }
}

#[test]
fn a_leader_that_cannot_begin_ends_the_waiting_nodes_with_its_code() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let member = cluster.start(1, "2", &[], WORK);
    let begun = Instant::now();
    let leader = cluster.start(0, "2", &["--rdzv-conf", "admit=checkpoint"], WORK);
    let done = cluster.wait([leader, member]);
    expect_codes(&done, 2);
    done[1].expect_stderr("admit=checkpoint is for recipes");
    assert!(begun.elapsed() < SOON, "the nodes ended after {:?}", begun.elapsed());
}

#[test]
fn a_worker_that_rejects_the_recipe_has_not_failed() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let worker = r#"if [ $RANK = 1 ]; then echo '{"message":"no such layer"}' > "$TORCHELASTIC_ERROR_FILE"; exit 2; fi; exec sleep 60"#;
    let done = cluster.wait(train(&cluster, "2", &[], worker));
    expect_codes(&done, 2);
    done[0].expect_stderr("dtrain: error: no such layer");
    done[1].expect_stderr("dtrain: exit code 2: no such layer");
    assert_eq!(count_lines(&done, "failed"), 0, "{}\n{}", done[0].stderr, done[1].stderr);
}

#[test]
fn logs_of_one_attempt_have_one_number_on_all_nodes() {
    let Ok(cluster) = Cluster::new(2) else { return };
    // Logs of earlier runs, on one node only.
    for number in 0..2 {
        fs::create_dir_all(cluster.scene.path(&format!("logs1/attempt_{number}/rank_1"))).unwrap();
    }
    let fails = r#"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 0 ] || exit 7; sleep 0.3"#;
    let start = |node: usize| {
        let logs = format!("logs{node}");
        cluster.start(node, "2", &["--log-dir", &logs, "--max-restarts", "1"], fails)
    };
    expect_codes(&cluster.wait([0, 1].map(start)), 0);
    for number in 0..5 {
        let has = |node| cluster.scene.path(&format!("logs{node}/attempt_{number}/rank_{node}")).exists();
        assert_eq!(has(0), [2, 3].contains(&number), "attempt {number} on n0");
        assert_eq!(has(1), number < 4, "attempt {number} on n1");
    }
}

#[test]
fn the_result_counts_the_workers_of_all_nodes() {
    let Ok(cluster) = Cluster::new(2) else { return };
    expect_codes(&cluster.wait(train(&cluster, "2", &[], "sleep 0.1")), 0);
    let result: serde_json::Value = serde_json::from_str(&cluster.scene.read("run/result.json")).unwrap();
    assert_eq!((&result["nproc"], &result["nodes"]), (&2.into(), &2.into()));
}

#[test]
fn the_leader_raises_its_limit_of_open_files_and_not_that_of_workers() {
    let Ok(cluster) = Cluster::new(1) else { return };
    let script = format!(r#"ulimit -Sn > "$TEST_DIR/limit"; {WORK}"#);
    let args = ["--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1", "--rdzv-endpoint", ENDPOINT];
    let launch = cluster.command(&[&args[..], &["--", "sh", "-c", &script]].concat());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", r#"ulimit -Sn 300; exec "$0" "$@""#])
        .arg(launch.get_program())
        .args(launch.get_args());
    limited.current_dir(launch.get_current_dir().unwrap());
    for (name, value) in launch.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let launch = cluster.scene.start_as(".n0", cluster.network[0].enter(&limited));
    cluster.wait_for_workers([0], 0);
    assert_eq!(cluster.scene.read("limit").trim(), "300");
    let limits = fs::read_to_string(format!("/proc/{}/limits", cluster.launcher(0))).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = files.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft > 500, "{files}");
    cluster.finish([launch]);
}

#[test]
fn sixteen_agents_of_one_machine_choose_one_leader() {
    let Ok(cluster) = Cluster::new(1) else { return };
    let start = |n: usize| {
        let flags =
            ["--nnodes", "16", "--nproc", "1", "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
        let command = cluster.command(&[&flags[..], &["--", "sh", "-c", WORK]].concat());
        cluster.scene.start_as(&format!(".{n}"), cluster.network[0].enter(&command))
    };
    let launches: Vec<_> = (0..16).map(start).collect();
    cluster.wait_for_workers(0..16, 0);
    let done = cluster.finish(launches);
    assert_eq!(count_lines(&done, "leads the run at"), 1);
    // Equal hosts: the messages name each agent.
    assert_eq!(count_lines(&done, "dtrain: n0 joined"), 1, "{}", done[0].stderr);
    assert_eq!(count_lines(&done, "dtrain: n0 ("), 15);
    wait_until("all processes to end", || cluster.network[0].processes().is_empty());
}
