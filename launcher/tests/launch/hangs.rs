//! Workers that run without progress.

use crate::harness::{Scene, add_to_path, kill, repeat, result, wait_until};
use dtrain_test_kit::need::{self, Need};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// Beats for a while. Then rank 1 stops first, and rank 0 waits for it, as ranks do.
const STUCK: &str = r#"
    for n in 1 2 3 4 5 6; do : > "$DTRAIN_HEARTBEAT_FILE"; touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done
    if [ $RANK = 0 ]; then for n in 1 2 3; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done; fi
    exec sleep 600"#;

#[test]
fn workers_that_stop_beating_are_found_and_where_they_are_is_kept() {
    let scene = Scene::new();
    let done = scene.sh(2, &["--hang-timeout", "3", "--run-dir", "run"], STUCK);
    done.expect_code(4)
        .expect_stderr("dtrain: no progress: no heartbeat from rank 1 for ")
        .expect_stderr("dtrain: thread stacks of rank 0: run/logs/attempt_0/rank_0/stacks.txt")
        .expect_stderr("killed by SIGABRT");
    for rank in 0..2 {
        let stacks = scene.read(&format!("run/logs/attempt_0/rank_{rank}/stacks.txt"));
        assert!(stacks.contains("sleep: S (sleeping)"), "{stacks}");
    }
    let result = result(&scene);
    assert_eq!(result["failure"]["rank"], 1);
    assert!(result["reason"].as_str().unwrap().starts_with("no progress, rank 1"), "{result}");
}

#[test]
fn workers_that_go_on_while_they_are_inspected_are_not_stopped() {
    repeat(1, |_| {
        let scene = Scene::new();
        // The last beat before the end must not matter.
        let script = r#"
            n=0
            while [ $n -lt 25 ]; do : > "$DTRAIN_HEARTBEAT_FILE"; sleep 0.1; n=$((n + 1)); done
            until [ -e "$TEST_DIR/go" ]; do sleep 0.05; done
            if [ $RANK = 0 ]; then : > "$DTRAIN_HEARTBEAT_FILE"; sleep 0.2; fi
            echo went on"#;
        let mut command = scene.command(&["--nproc", "2", "--hang-timeout", "2", "--", "sh", "-c", script]);
        // A debugger that prints nothing for 600 s.
        add_to_path(&scene, &mut command, "py-spy", "#!/bin/sh\nexec sleep 600\n");
        let launch = scene.start(command);
        launch.wait_for_stderr("no progress");
        std::fs::write(scene.path("go"), "").unwrap();
        let done = launch.wait();
        done.expect_code(0);
        assert_eq!(done.stdout().matches("went on").count(), 2);
    });
}

#[test]
fn the_rank_that_was_silent_first_is_named_however_soon_the_other_followed() {
    let script = r#"
        n=0
        while [ $n -lt 40 ]; do : > "$DTRAIN_HEARTBEAT_FILE"; sleep 0.05; n=$((n + 1)); done
        : > "$TEST_DIR/stopped.$RANK"
        if [ $RANK = 0 ]; then
            until [ -e "$TEST_DIR/stopped.1" ]; do : > "$DTRAIN_HEARTBEAT_FILE"; done
            sleep 0.05
            : > "$DTRAIN_HEARTBEAT_FILE"
        fi
        exec sleep 600"#;
    for _ in 0..2 {
        Scene::new()
            .sh(2, &["--hang-timeout", "2", "--shutdown-timeout", "1"], script)
            .expect_code(4)
            .expect_stderr("no heartbeat from rank 1 for ");
    }
}

#[test]
fn the_time_between_two_looks_is_not_taken_for_that_of_a_step() {
    let script = r#"
        n=0
        while [ $n -lt 60 ]; do : > "$DTRAIN_HEARTBEAT_FILE"; sleep 0.02; n=$((n + 1)); done
        exec sleep 600"#;
    let done = Scene::new().sh(1, &["--hang-timeout", "3", "--shutdown-timeout", "1"], script);
    done.expect_code(4);
    // With looks every half second counted as steps, the limit would be 20 of these: 10 s.
    let soon = (3..8).any(|seconds| {
        let text = format!("no heartbeat from rank 0 for {seconds} s;");
        done.stderr.contains(&text)
    });
    assert!(soon, "{}", done.stderr);
}

/// Stops every process of the scene, also those started meanwhile.
fn freeze(scene: &Scene) {
    // A shell whose child has not yet executed its program cannot be stopped: it is in state D.
    let is_stopped = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| "TtDZX".contains(state))
    };
    wait_until("all to be stopped", || {
        let alive = scene.alive();
        alive.iter().for_each(|pid| kill(*pid, Signal::STOP));
        alive.iter().all(is_stopped) && scene.alive().iter().all(is_stopped)
    });
}

#[test]
fn a_job_that_is_frozen_as_a_whole_goes_on_when_it_thaws() {
    // Each step is a sleep, whose time also passes while its process is stopped.
    let script = r#"
        n=0
        : > "$TEST_DIR/ready.$RANK"
        while [ $n -lt 120 ]; do : > "$DTRAIN_HEARTBEAT_FILE"; sleep 0.05; n=$((n + 1)); done
        echo whole"#;
    repeat(1, |n| {
        let scene = Scene::new();
        let launch = scene.start_sh(2, &["--hang-timeout", "2"], script);
        // By then the usual time between beats is known.
        std::thread::sleep(Duration::from_millis(2500 + n as u64 * 61 % 2000));
        freeze(&scene);
        std::thread::sleep(Duration::from_secs(4));
        scene.alive().iter().for_each(|pid| kill(*pid, Signal::CONT));
        let done = launch.wait();
        done.expect_code(0);
        assert!(!done.stderr.contains("no progress"), "{}", done.stderr);
        done.expect_stderr("dtrain: the launcher did not run for ");
        assert_eq!(done.stdout().matches("whole").count(), 2);
    });
}

#[test]
fn a_hang_is_restarted_like_a_failure() {
    let scene = Scene::new();
    let script = format!("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; {STUCK}");
    scene
        .sh(2, &["--hang-timeout", "2", "--max-restarts", "1"], &script)
        .expect_code(0)
        .expect_stderr("dtrain: thread stacks of rank 1:\n    threads of process ")
        .expect_stderr("restarting all 2 workers (restart 1 of 1)");
}

#[test]
fn a_stopped_worker_is_a_hang_too() {
    let script = r#"
        for n in 1 2 3 4 5 6; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done
        kill -STOP $$"#;
    Scene::new()
        .sh(1, &["--hang-timeout", "2", "--shutdown-timeout", "1"], script)
        .expect_code(4)
        .expect_stderr("T (stopped)")
        .expect_stderr("dtrain: killing rank 0: still running after 1 s");
}

#[test]
fn workers_without_heartbeats_or_watch_are_left_alone() {
    Scene::new().sh(1, &["--hang-timeout", "1"], "sleep 4").expect_code(0);
    let beats = r#"for n in 1 2 3 4 5 6; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done; sleep 4"#;
    Scene::new().sh(1, &["--hang-timeout", "0"], beats).expect_code(0);
}

#[test]
fn python_says_where_every_thread_is() {
    let Ok(_) = need::output(Need::Python, Command::new("python3").arg("--version")) else { return };
    let scene = Scene::new();
    let program = "import os, pathlib, time\n\
                   def stuck_here():\n    time.sleep(600)\n\
                   beat = pathlib.Path(os.environ['DTRAIN_HEARTBEAT_FILE'])\n\
                   for _ in range(6):\n    beat.touch()\n    time.sleep(0.6)\n\
                   stuck_here()\n";
    std::fs::write(scene.path("t.py"), program).unwrap();
    scene
        .launch(&["--nproc", "1", "--hang-timeout", "2", "--", "python3", "t.py"])
        .expect_code(4)
        .expect_stderr("in stuck_here");
}
