//! Restarts of all workers after a failure.

use crate::harness::{Scene, executable, wait_until};
use rustix::process::Signal;

#[test]
fn restarted_workers_know_the_restart_count() {
    let scene = Scene::new();
    let script = r#"
        echo "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS on $MASTER_PORT" >> "$TEST_DIR/seen.$RANK"
        if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo whole; exit 0; fi
        if [ $RANK = 1 ]; then echo broken >&2; exit 9; fi
        exec sleep 600"#;
    let done = scene.sh(3, &["--max-restarts", "3", "--run-dir", "out"], script);
    done.expect_code(0)
        .expect_stderr("dtrain: rank 1 (pid ")
        .expect_stderr("dtrain: restarting all 3 workers (restart 1 of 3)");
    assert_eq!(done.stdout().matches("whole").count(), 3);
    let mut ports = Vec::new();
    for rank in 0..3 {
        let seen = scene.read(&format!("seen.{rank}"));
        let lines: Vec<&str> = seen.lines().collect();
        // A peer can be stopped before it has written a line.
        let (last, before) = lines.split_last().unwrap();
        assert!(last.starts_with("1 of 3 on "), "{seen}");
        assert!(before.iter().all(|line| line.starts_with("0 of 3 on ")), "{seen}");
        ports.push(last.rsplit(' ').next().unwrap().to_owned());
    }
    ports.dedup();
    assert_eq!(ports.len(), 1, "one port for all of an attempt");
    assert_eq!(scene.read("out/logs/attempt_0/rank_1/stderr.log"), "broken\n");
    assert_eq!(scene.read("out/logs/attempt_1/rank_1/stdout.log"), "whole\n");
    let result: serde_json::Value = serde_json::from_str(&scene.read("out/result.json")).unwrap();
    assert_eq!((&result["restarts"], &result["exit_code"]), (&1.into(), &0.into()));
}

#[test]
fn the_last_failure_is_the_runs() {
    let scene = Scene::new();
    let script = r#"echo x >> "$TEST_DIR/starts"; exit $((5 + TORCHELASTIC_RESTART_COUNT))"#;
    let done = scene.sh(1, &["--max-restarts", "1"], script);
    done.expect_code(6)
        .expect_stderr("dtrain: restarting the worker (restart 1 of 1)")
        .expect_stderr("dtrain: not restarted: no restart is left");
    assert_eq!(scene.read("starts"), "x\nx\n");
}

#[test]
fn a_program_that_cannot_be_started_is_not_restarted() {
    let scene = Scene::new();
    executable(&scene, "tool", "#!/no/such/interpreter\n");
    let done = scene.launch(&["--nproc", "2", "--max-restarts", "5", "--", "./tool"]);
    done.expect_code(2).expect_stderr("cannot start `./tool`");
    assert!(!done.stderr.contains("restart"), "{}", done.stderr);
}

#[test]
fn a_request_to_stop_ends_the_pause_before_a_restart() {
    let scene = Scene::new();
    let script = r#": > "$TEST_DIR/start.$TORCHELASTIC_RESTART_COUNT"; exit 1"#;
    // The third restart in a row waits for 2 s, the tenth for a minute.
    let launch =
        scene.start(scene.command(&["--nproc", "1", "--max-restarts", "100", "--", "sh", "-c", script]));
    wait_until("a pause", || scene.path("start.2").exists());
    launch.wait_for_stderr("in 2 s (restart 3 of 100)");
    launch.signal(Signal::TERM);
    launch.wait().expect_code(128 + 15).expect_stderr("stopped by SIGTERM");
    assert!(!scene.path("start.3").exists());
}

#[test]
fn a_request_to_stop_while_the_others_are_being_stopped_is_no_reason_to_restart() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK = 1 ]; then until [ -e "$TEST_DIR/ready.0" ]; do sleep 0.01; done; exit 9; fi
        trap ': > "$TEST_DIR/asked"' TERM INT
        : > "$TEST_DIR/ready.0"
        while [ ! -e "$TEST_DIR/go" ]; do sleep 0.01; done"#;
    let launch =
        scene.start(scene.command(&["--nproc", "2", "--max-restarts", "5", "--", "sh", "-c", script]));
    wait_until("rank 0 to be asked", || scene.path("asked").exists());
    launch.signal(Signal::INT);
    launch.wait_for_stderr("received SIGINT");
    std::fs::write(scene.path("go"), "").unwrap();
    launch
        .wait()
        .expect_code(130)
        .expect_stderr("rank 1 (pid ")
        .expect_stderr("dtrain: not restarted: the launcher was asked to stop");
}

#[test]
fn a_port_that_somebody_else_took_costs_no_restart() {
    let scene = Scene::new();
    let script = r#"
        echo $MASTER_PORT >> "$TEST_DIR/ports"
        if [ $(wc -l < "$TEST_DIR/ports") = 1 ]; then
            echo "The server socket has failed to listen. port: $MASTER_PORT, name: EADDRINUSE" >&2
            exit 1
        fi"#;
    let done = scene.sh(1, &[], script);
    done.expect_code(0).expect_stderr("starting again at another port");
    let ports = scene.read("ports");
    let ports: Vec<&str> = ports.lines().collect();
    assert_eq!(ports.len(), 2);
    assert_ne!(ports[0], ports[1]);
}
