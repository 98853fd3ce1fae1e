//! Requests while no worker runs, and runs that cannot restart.

use crate::ckpt::checkpoint;
use crate::harness::{Finished, Launch, Scene, add_to_path, executable, repeat, result, wait_until, words};
use dtrain_test_kit::need::{self, Need};
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

/// Fails three times; the pause after that is 2 s.
const FAIL_THREE_TIMES: &str = "if [ $TORCHELASTIC_RESTART_COUNT -lt 3 ]; then exit 9; fi";
const PAUSE: &str = "in 2 s (restart 3 of 100)";
const RESTARTS: [&str; 2] = ["--max-restarts", "100"];

/// Starts a training with this script as its worker.
fn train<'a>(scene: &'a Scene, worker: &str) -> Launch<'a> {
    train_with(scene, &["--nproc", "1"], worker)
}

/// Starts a training with these flags.
fn train_with<'a>(scene: &'a Scene, flags: &[&str], worker: &str) -> Launch<'a> {
    let mut command = scene.command(&["demo", "--run-dir", "run"]);
    command.args(RESTARTS).args(flags).env("FAKE_WORKER", worker);
    scene.start(command)
}

fn program<'a>(scene: &'a Scene, flags: &[&str], script: &str) -> Launch<'a> {
    let mut command = scene.command(&["--nproc", "1"]);
    command.args(RESTARTS).args(flags).args(["--", "sh", "-c", script]);
    scene.start(command)
}

/// Sends the signal `after` milliseconds into the pause of 2 s.
fn signalled_in_the_pause(launch: Launch<'_>, signal: Signal, after: usize) -> Finished {
    launch.wait_for_stderr(PAUSE);
    std::thread::sleep(Duration::from_millis(after as u64));
    launch.signal(signal);
    launch.wait()
}

#[test]
fn a_request_in_the_pause_of_a_training_that_has_a_checkpoint_ends_with_75() {
    for signal in [Signal::USR1, Signal::TERM] {
        repeat(1, |n| {
            let scene = Scene::new();
            checkpoint(&scene.path("made"), 10, |_, _| {});
            // This recipe rejects another recipe's checkpoint, so it is added at the last moment.
            let worker = format!(
                "if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then cp -r made/checkpoints run/; fi; {FAIL_THREE_TIMES}"
            );
            let done = signalled_in_the_pause(train(&scene, &worker), signal, n * 97 % 1500);
            done.expect_code(75).expect_stderr("--run-dir run");
            assert_eq!(result(&scene)["exit_code"], 75);
            assert_eq!(result(&scene)["restarts"], 3);
        });
    }
}

#[test]
fn a_notice_in_the_pause_of_a_leader_that_has_a_checkpoint_ends_with_75() {
    let scene = Scene::new();
    checkpoint(&scene.path("made"), 10, |_, _| {});
    let worker = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then cp -r made/checkpoints run/; fi; {FAIL_THREE_TIMES}"
    );
    let nodes = "--nproc 1 --nnodes 1:2 --rdzv-endpoint 127.0.0.1:29377 --rdzv-conf last_call_timeout=1";
    let launch = train_with(&scene, &words(nodes), &worker);
    let done = signalled_in_the_pause(launch, Signal::USR1, 300);
    done.expect_code(75).expect_stderr("--run-dir run");
    assert_eq!(result(&scene)["restarts"], 3);
}

#[test]
fn a_notice_in_the_pause_of_a_training_without_a_checkpoint_reaches_the_next_attempt() {
    repeat(1, |n| {
        let scene = Scene::new();
        // Before it has a handler, it would die of the signal, like every program.
        let worker =
            format!("{FAIL_THREE_TIMES}; sleep 0.3; trap 'exit 75' USR1; while :; do sleep 0.05 || :; done");
        signalled_in_the_pause(train(&scene, &worker), Signal::USR1, n * 97 % 3000).expect_code(75);
    });
}

#[test]
fn a_termination_in_the_pause_of_a_training_without_a_checkpoint_ends_it() {
    let scene = Scene::new();
    signalled_in_the_pause(train(&scene, "exit 9"), Signal::TERM, 0).expect_code(128 + 15);
}

#[test]
fn a_user_signal_in_the_pause_of_a_program_reaches_the_next_attempt() {
    repeat(1, |n| {
        let scene = Scene::new();
        let script = format!(
            "{FAIL_THREE_TIMES}; sleep 0.3; trap 'echo heard; exit 0' USR1; while :; do sleep 0.05 || :; done"
        );
        let done = signalled_in_the_pause(program(&scene, &[], &script), Signal::USR1, n * 97 % 1000);
        assert_eq!(done.expect_code(0).stdout(), "heard\n");
    });
}

#[test]
fn a_notice_that_comes_while_a_failure_is_handled_reaches_the_next_attempt() {
    let scene = Scene::new();
    let worker = r#"
        if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
            trap '' USR1 TERM
            if [ $RANK = 1 ]; then exit 9; fi
            until [ -e "$TEST_DIR/go" ]; do sleep 0.05; done
            exit 1
        fi
        trap 'exit 75' USR1; while :; do sleep 0.05 || :; done"#;
    let launch = train_with(&scene, &["--nproc", "2"], worker);
    launch.wait_for_stderr("stopping the other 1 of 2 workers");
    launch.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(300));
    fs::write(scene.path("go"), "").unwrap();
    launch.wait().expect_code(75);
}

#[test]
fn a_request_while_a_failure_of_a_training_with_a_checkpoint_is_handled_ends_with_75() {
    let scene = Scene::new();
    checkpoint(&scene.path("made"), 10, |_, _| {});
    let worker = r#"
        if [ $RANK = 1 ]; then cp -r made/checkpoints run/; exit 9; fi
        trap '' TERM
        until [ -e "$TEST_DIR/go" ]; do sleep 0.05; done
        exit 1"#;
    let launch = train_with(&scene, &["--nproc", "2"], worker);
    launch.wait_for_stderr("stopping the other 1 of 2 workers");
    launch.signal(Signal::TERM);
    launch.wait_for_stderr("received SIGTERM");
    fs::write(scene.path("go"), "").unwrap();
    let done = launch.wait();
    done.expect_code(75).expect_stderr("rank 1 (pid ").expect_stderr("--run-dir run");
    assert_eq!(result(&scene)["restarts"], 0);
}

/// Starts a training and waits until it asks the batch system, which answers when `answer` exists.
fn train_with_slow_squeue<'a>(scene: &'a Scene, worker: &str) -> Launch<'a> {
    let script = r#"#!/bin/sh
: > "$TEST_DIR/.asked"; until [ -e "$TEST_DIR/answer" ]; do sleep 0.05; done; echo 1:00:00"#;
    let mut command = scene.command(&["demo", "--nproc", "1", "--run-dir", "run"]);
    add_to_path(scene, &mut command, "squeue", script);
    command.env("SLURM_JOB_ID", "7").env_remove("SLURM_JOB_END_TIME").env("FAKE_WORKER", worker);
    let launch = scene.start(command);
    wait_until("squeue to be asked", || scene.path(".asked").exists());
    launch
}

#[test]
fn a_request_before_anything_is_started_ends_the_launch() {
    for is_answered in [false, true] {
        let scene = Scene::new();
        let launch = train_with_slow_squeue(&scene, ": > started; sleep 600");
        launch.signal(Signal::TERM);
        if is_answered {
            fs::write(scene.path("answer"), "").unwrap();
        }
        launch
            .wait()
            .expect_code(128 + 15)
            .expect_stderr("dtrain: exit code 143: stopped by SIGTERM (no worker was started)");
        assert!(!scene.path("started").exists());
    }
}

#[test]
fn a_notice_before_anything_is_started_reaches_the_first_attempt() {
    let scene = Scene::new();
    let worker = "sleep 0.3; trap 'exit 75' USR1; while :; do sleep 0.05 || :; done";
    let launch = train_with_slow_squeue(&scene, worker);
    launch.signal(Signal::USR1);
    fs::write(scene.path("answer"), "").unwrap();
    launch.wait().expect_code(75);
}

/// A batch system signals every process of a job, also a worker that has just started.
#[test]
fn a_notice_that_kills_a_worker_before_it_has_a_handler_reaches_the_next_attempt() {
    for nodes in [
        &[][..],
        &["--nnodes", "1:2", "--rdzv-endpoint", "127.0.0.1:29378", "--rdzv-conf", "last_call_timeout=1"],
    ] {
        let scene = Scene::new();
        let worker = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && kill -USR1 $$
            trap 'exit 75' USR1; while :; do sleep 0.05 || :; done";
        let mut command = scene.command(&["demo", "--nproc", "1", "--run-dir", "run"]);
        command.args(nodes).env("FAKE_WORKER", worker);
        scene.start(command).wait().expect_code(75);
    }
}

#[test]
fn a_launcher_whose_run_directory_another_run_has_taken_kills_its_workers_and_writes_nothing() {
    let scene = Scene::new();
    let launch = train(&scene, r#": > "$TEST_DIR/ready.0"; trap '' TERM; while :; do sleep 0.1; done"#);
    scene.wait_for_ready(1);
    let other = "process 1 on elsewhere\nbegan 2 in other/pid:[3]\nbeat 00000000000000000004\n";
    fs::write(scene.path("run/.new"), other).unwrap();
    fs::rename(scene.path("run/.new"), scene.path("run/.lock.lease")).unwrap();
    launch
        .wait()
        .expect_code(4)
        .expect_stderr("dtrain: another run has taken run, because")
        .expect_stderr("dtrain: exit code 4: another run has taken the run directory");
    assert_eq!(scene.read("run/.lock.lease"), other);
    assert!(!scene.path("run/result.json").exists());
}

#[test]
fn a_launcher_that_loses_its_run_directory_between_two_attempts_writes_nothing_more() {
    let scene = Scene::new();
    // The pause before the fourth restart is from second 3 to 7; the lease is checked in second 5.
    let launch = train(&scene, r#"echo >> "$TEST_DIR/starts"; : > "$TEST_DIR/ready.0"; exit 9"#);
    scene.wait_for_ready(1);
    let other = "process 1 on elsewhere\nbegan 2 in other/pid:[3]\nbeat 00000000000000000004\n";
    fs::write(scene.path("run/.new"), other).unwrap();
    fs::rename(scene.path("run/.new"), scene.path("run/.lock.lease")).unwrap();
    launch
        .wait()
        .expect_code(4)
        .expect_stderr("dtrain: exit code 4: another run has taken the run directory");
    let attempts = fs::read_dir(scene.path("run/logs")).unwrap().count();
    assert_eq!(attempts, scene.read("starts").lines().count());
    assert_eq!(scene.read("run/.lock.lease"), other);
}

#[test]
fn a_request_while_the_name_of_an_address_is_looked_up_ends_the_launch() {
    let scene = Scene::new();
    let mut command = std::process::Command::new("unshare");
    // Name lookup first opens this file, which blocks.
    let script = r#"mkfifo hosts && mount --bind hosts /etc/hosts && : > mounted && exec "$0" "$@""#;
    command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_dtrain")]);
    let args = ["--nproc", "1", "--master-addr", "nobody.invalid", "--", "true"];
    let launch = scene.start(scene.adapt(command, &["launch"]).into_command(&args));
    let begun = std::time::Instant::now();
    let is_mounted = || scene.path("mounted").exists();
    while !is_mounted() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mounted = is_mounted().then_some(()).ok_or("nothing can be mounted here");
    let Ok(()) = need::require(Need::Mount, mounted) else { return launch.signal(Signal::KILL) };
    wait_until("the launcher to run", || scene.launcher().len() == 1);
    launch.signal(Signal::TERM);
    launch
        .wait()
        .expect_code(128 + 15)
        .expect_stderr("dtrain: exit code 143: stopped by SIGTERM (no worker was started)");
}

#[test]
fn a_training_that_is_terminated_before_its_first_step_loses_nothing() {
    let scene = Scene::new();
    checkpoint(&scene.path("made"), 10, |_, _| {});
    let worker = r#"cp -r made/checkpoints run/; : > "$TEST_DIR/ready.0"; exec sleep 600"#;
    let launch = train(&scene, worker);
    scene.wait_for_ready(1);
    launch.signal(Signal::TERM);
    launch.wait().expect_code(75);
}

#[test]
fn a_restart_that_cannot_start_keeps_the_failure_and_its_code() {
    let scene = Scene::new();
    let script = "#!/bin/sh\n[ $RANK = 1 ] || exec sleep 600\nrm \"$0\"\necho broken >&2\nexit 7\n";
    executable(&scene, "tool", script);
    let args = ["--nproc", "2", "--max-restarts", "3", "--run-dir", "run", "--", "./tool"];
    let done = scene.launch(&args);
    done.expect_code(7).expect_stderr("dtrain: cannot restart: cannot start `").expect_stderr("broken");
    let result = result(&scene);
    assert_eq!(result["exit_code"], 7);
    assert_eq!(result["failure"]["exit_code"], 7);
}

#[test]
fn a_pause_that_outlasts_the_time_limit_ends_the_run() {
    let scene = Scene::new();
    let flags = ["--time-limit", "5", "--time-margin", "2"];
    let done = program(&scene, &flags, r#"echo x >> "$TEST_DIR/starts"; exit 9"#).wait();
    done.expect_code(9).expect_stderr("dtrain: not restarted: the time limit is too near");
    assert!(!done.stderr.contains("was asked to stop"), "{}", done.stderr);
    assert!(scene.read("starts").lines().count() <= 4);
}

#[test]
fn a_start_that_the_system_has_no_room_for_is_a_failure_that_names_the_limits() {
    let scene = Scene::new();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"ulimit -n 60; exec "$0" "$@""#, env!("CARGO_BIN_EXE_dtrain")]);
    let args = ["--nproc", "40", "--max-restarts", "1", "--", "sleep", "600"];
    let command = scene.adapt(shell, &["launch"]).into_command(&args);
    let done = scene.start(command).wait();
    // Not a usage error: a later try can succeed.
    done.expect_code(4)
        .expect_stderr("restarting all 40 workers (restart 1 of 1)")
        .expect_stderr("cannot start `")
        .expect_stderr("`ulimit -n`");
}
