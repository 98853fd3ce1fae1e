//! Signals to the launcher.

use crate::harness::{Finished, Scene, result};
use dtrain_test_kit::freezer::Freezer;
use dtrain_test_kit::process::{Signal, kill};
use std::time::{Duration, Instant};

const WAIT_FOR_EVER: &str = r#": > "$TEST_DIR/ready.$RANK"; exec sleep 600"#;
const DEAF: &str = r#"trap '' TERM INT; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.1; done"#;
/// Longer than the time in which two signals count as one request.
const A_WHILE: Duration = Duration::from_millis(400);

const STOP_SIGNALS: [(Signal, &str, i32); 4] = [
    (Signal::INT, "SIGINT", 130),
    (Signal::TERM, "SIGTERM", 143),
    (Signal::HUP, "SIGHUP", 129),
    (Signal::QUIT, "SIGQUIT", 131),
];

/// Starts the launcher as [`Scene::start_sh`], sends it a signal, and waits for its end.
#[track_caller]
fn signalled(scene: &Scene, nproc: usize, flags: &[&str], script: &str, signal: Signal) -> Finished {
    let launch = scene.start_sh(nproc, flags, script);
    launch.signal(signal);
    launch.wait()
}

#[test]
fn stop_signals_are_forwarded_and_give_128_plus_their_number() {
    for (signal, name, code) in STOP_SIGNALS {
        let scene = Scene::new();
        let flags = ["--shutdown-timeout", "600", "--run-dir", "run"];
        let done = signalled(&scene, 2, &flags, WAIT_FOR_EVER, signal);
        done.expect_code(code).expect_stderr(&format!("received {name}, passed on to 2 workers"));
        done.expect_stderr(&format!("dtrain: exit code {code}: stopped by {name}\n"));
        assert!(!done.stderr.contains("failed"), "{}", done.stderr);
        let result = result(&scene);
        assert_eq!(result["exit_code"], code);
        assert_eq!(result["reason"], format!("stopped by {name}"));
    }
}

#[test]
fn a_program_that_handles_the_signal_decides_the_code_unless_it_is_0() {
    for (signal, name, stopped) in STOP_SIGNALS {
        let trap = name.strip_prefix("SIG").unwrap();
        for (code, expected) in [(0, stopped), (7, 7)] {
            let script = format!(
                r#"trap 'echo cleaned up; exit {code}' {trap}; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#
            );
            let done = signalled(&Scene::new(), 1, &["--shutdown-timeout", "600"], &script, signal);
            assert_eq!(done.expect_code(expected).stdout(), "cleaned up\n");
        }
    }
}

#[test]
fn workers_that_ignore_the_signal_are_killed_after_the_timeout() {
    let done = signalled(&Scene::new(), 2, &["--shutdown-timeout", "1"], DEAF, Signal::TERM);
    done.expect_code(143).expect_stderr("dtrain: killing rank 0, 1: still running after 1 s");
}

/// When asked to stop, writes a checkpoint for 4 s, with a heartbeat twice a second.
const WRITES: &str = r#"
    trap 'n=0; while [ $n -lt 10 ]; do echo writing 1<> "$DTRAIN_HEARTBEAT_FILE"; sleep 0.4 || :; n=$((n + 1)); done; : > "$DTRAIN_HEARTBEAT_FILE"; echo written; exit 0' TERM
    : > "$TEST_DIR/ready.$RANK"
    while :; do sleep 0.05 || :; done"#;

#[test]
fn a_checkpoint_that_is_being_written_is_waited_for_beyond_the_timeout() {
    let done = signalled(&Scene::new(), 1, &["--shutdown-timeout", "1"], WRITES, Signal::TERM);
    done.expect_code(143).expect_stderr(
        "dtrain: rank 0 still writes a checkpoint after 1 s (--shutdown-timeout): waiting for it; a second",
    );
    assert_eq!(done.stdout(), "written\n");
}

#[test]
fn a_second_signal_ends_a_checkpoint_that_is_being_written() {
    let scene = Scene::new();
    let script = WRITES.replace("-lt 10", "-lt 10000");
    let launch = scene.start_sh(1, &["--shutdown-timeout", "1"], &script);
    launch.signal(Signal::TERM);
    launch.wait_for_stderr("still writes a checkpoint");
    launch.signal(Signal::TERM);
    launch.wait().expect_code(143).expect_stderr("on request");
}

#[test]
fn a_second_signal_kills_at_once() {
    for (first, second, code) in
        [(Signal::INT, Signal::INT, 130), (Signal::TERM, Signal::TERM, 143), (Signal::TERM, Signal::INT, 143)]
    {
        let scene = Scene::new();
        let begun = Instant::now();
        let launch = scene.start_sh(2, &["--shutdown-timeout", "600"], DEAF);
        launch.signal(first);
        launch.wait_for_stderr("received SIG");
        std::thread::sleep(A_WHILE);
        launch.signal(second);
        launch.wait().expect_code(code).expect_stderr("dtrain: killing rank 0, 1: on request");
        assert!(begun.elapsed() < Duration::from_secs(300));
    }
}

#[test]
fn the_echo_of_a_signal_is_not_a_second_one() {
    let scene = Scene::new();
    let script = r#"trap 'sleep 1; echo cleaned up; exit 0' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#;
    let launch = scene.start_sh(1, &["--shutdown-timeout", "600"], script);
    launch.signal(Signal::TERM);
    launch.signal(Signal::TERM);
    assert_eq!(launch.wait().expect_code(143).stdout(), "cleaned up\n");
}

/// A batch system signals both processes of the launcher.
#[test]
fn a_signal_to_the_launcher_and_later_to_its_guardian_is_one_request() {
    let scene = Scene::new();
    let script = r#"trap 'sleep 2; echo cleaned up; exit 0' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#;
    let launch = scene.start_sh(1, &["--shutdown-timeout", "600"], script);
    kill(scene.launcher()[0], Signal::TERM);
    std::thread::sleep(A_WHILE);
    launch.signal(Signal::TERM);
    let done = launch.wait();
    assert_eq!(done.expect_code(143).stdout(), "cleaned up\n");
    assert!(!done.stderr.contains("killing"), "{}", done.stderr);
}

#[test]
fn a_worker_that_stands_still_is_stopped_without_waiting_for_the_timeout() {
    let scene = Scene::new();
    let launch = scene.start_sh(1, &["--shutdown-timeout", "600"], WAIT_FOR_EVER);
    for worker in scene.workers() {
        kill(worker, Signal::STOP);
    }
    let begun = Instant::now();
    launch.signal(Signal::TERM);
    launch.wait().expect_code(143);
    assert!(begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn user_signals_are_passed_on_and_stop_nothing() {
    let scene = Scene::new();
    // A process of the worker, such as a data loader, has no handler.
    let script = r#"
        sleep 600 & child=$!
        trap ': > "$TEST_DIR/usr1.$RANK"' USR1
        trap ': > "$TEST_DIR/usr2.$RANK"' USR2
        : > "$TEST_DIR/ready.$RANK"
        until [ -e "$TEST_DIR/usr1.$RANK" ] && [ -e "$TEST_DIR/usr2.$RANK" ]; do sleep 0.05 || exit 3; done
        kill -0 $child || exit 4"#;
    let launch = scene.start_sh(2, &[], script);
    launch.signal(Signal::USR1);
    launch.signal(Signal::USR2);
    launch.wait().expect_code(0);
}

#[test]
fn a_signal_during_a_failures_stop_keeps_the_failures_code() {
    let scene = Scene::new();
    let script = r#"
        trap '' TERM
        : > "$TEST_DIR/ready.$RANK"
        if [ $RANK = 1 ]; then until [ -e "$TEST_DIR/ready.0" ]; do sleep 0.01; done; exit 9; fi
        while :; do sleep 0.1; done"#;
    let launch = scene.start_sh(2, &["--shutdown-timeout", "600"], script);
    launch.wait_for_stderr("rank 1 failed (exit code 9)");
    launch.signal(Signal::INT);
    launch.wait().expect_code(9).expect_stderr("dtrain: rank 1 (pid ");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    // As under nohup.
    let scene = Scene::new();
    let shell = std::process::Command::new("sh");
    let exec = r#"trap '' HUP; exec "$0" "$@""#;
    let words = [env!("CARGO_BIN_EXE_dtrain"), "launch", "--nproc", "1", "--", "sh", "-c"];
    let words: Vec<&str> = words.into_iter().chain([WAIT_FOR_EVER]).collect();
    let launch = scene.start(scene.adapt(shell, &["-c", exec]).into_command(&words));
    scene.wait_for_ready(1);
    launch.signal(Signal::HUP);
    std::thread::sleep(A_WHILE);
    assert_eq!((scene.launcher().len(), scene.workers().len()), (1, 1), "both go on");
    launch.signal(Signal::TERM);
    let done = launch.wait();
    done.expect_code(143);
    assert!(!done.stderr.contains("SIGHUP"), "{}", done.stderr);
}

#[test]
fn a_launcher_whose_parent_ignores_the_end_of_children_still_learns_exit_codes() {
    let scene = Scene::new();
    let shell = std::process::Command::new("sh");
    let words = [env!("CARGO_BIN_EXE_dtrain"), "launch", "--nproc", "2", "--", "sh", "-c", "exit 42"];
    let exec = r#"trap '' CHLD; exec "$0" "$@""#;
    scene.start(scene.adapt(shell, &["-c", exec]).into_command(&words)).wait().expect_code(42);
}

#[test]
fn a_killed_worker_that_does_not_end_is_named_and_not_awaited() {
    let Ok(freezer) = Freezer::new() else { return };
    let scene = Scene::new();
    let script = r#"echo $$ > "$TEST_DIR/pid.$RANK"; : > "$TEST_DIR/ready.$RANK"; exec sleep 600"#;
    let launch = scene.start_sh(2, &["--shutdown-timeout", "1", "--max-restarts", "3"], script);
    let pid = scene.read("pid.1");
    freezer.freeze(pid.trim().parse().unwrap());
    let asked = Instant::now();
    launch.signal(Signal::TERM);
    let done = launch.wait_leaving_processes();
    assert!(asked.elapsed() < Duration::from_secs(40), "{:?}", asked.elapsed());
    let named = format!("dtrain: rank 1 (process {}: state D (disk sleep), in the kernel at ", pid.trim());
    done.expect_code(143).expect_stderr(&named).expect_stderr("did not end within 10 s after SIGKILL");
}

/// Ends with its own code when asked to stop.
const OWN_CODE: &str = r#"trap 'exit 3' TERM INT; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#;

#[test]
fn a_program_that_ends_with_its_own_code_on_request_was_stopped_and_has_not_failed() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let scene = Scene::new();
        let done = signalled(&scene, 2, &["--run-dir", "run"], OWN_CODE, signal);
        done.expect_code(3)
            .expect_stderr(&format!(": exit code 3 after {name} from the launcher\n"))
            .expect_stderr("  stopped too: rank ");
        for word in ["failed", "nothing on standard error", "cause"] {
            assert!(!done.stderr.contains(word), "{word}: {}", done.stderr);
        }
        let result = scene.read("run/result.json");
        assert!(
            result
                .contains(&format!(" was stopped: exit code 3 after {name} from the launcher; the program")),
            "{result}"
        );
    }
    let scene = Scene::new();
    let limit = ["--time-limit", "60s", "--time-margin", "59s"];
    let done = scene.sh(1, &limit, OWN_CODE);
    done.expect_code(3)
        .expect_stderr(" was stopped after ")
        .expect_stderr("exit code 3 after SIGTERM from the launcher");
}

#[test]
fn a_program_that_fails_while_it_stops_has_failed_unless_its_peer_stopped_first() {
    let on_request = |message: &str| {
        let script = format!(
            r#"trap 'if [ $RANK = 0 ]; then exit 0; fi; sleep 0.3; printf "{message}" >&2; exit 1' TERM
            : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#
        );
        let done = signalled(&Scene::new(), 2, &[], &script, Signal::TERM);
        done.expect_code(1);
        done
    };
    let raised = on_request(r#"  File \"a.py\", line 3, in save\n    x\nValueError: no\n"#);
    raised
        .expect_stderr(" failed after ")
        .expect_stderr("  cause: the program raised ValueError: no (at a.py:3, in save)");
    let lost = on_request(
        r#"  File \"a.py\", line 3, in save\n    x\nRuntimeError: gloo: Connection closed by peer\n"#,
    );
    lost.expect_stderr(" was stopped after ").expect_stderr("  cause: another rank had stopped first");
}

#[test]
fn workers_that_are_killed_because_the_guardian_died_are_told_so() {
    let scene = Scene::new();
    let launch = scene.start_sh(2, &[], WAIT_FOR_EVER);
    launch.signal(Signal::KILL);
    // The guardian ends before the launcher's last words.
    launch.wait_for_stderr("exit code 137");
    let done = launch.wait();
    let says = "the first process of `dtrain launch` was killed";
    done.expect_stderr(&format!("dtrain: killing rank 0, 1: {says}, which supervises the run\n"))
        .expect_stderr(&format!("dtrain: exit code 137: {says}\n"));
}
