//! The cause in the failure report: real processes with real signals and real messages.

use crate::harness::{Finished, Scene, kill, result};
use dtrain_test_kit::cgroup::SmallGroup;
use dtrain_test_kit::need::Skipped;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::process::Command;

fn failure(scene: &Scene) -> Value {
    result(scene)["failure"].clone()
}

/// Runs one worker that must fail, and returns the kind of its cause.
#[track_caller]
fn kind_of(script: &str, code: i32, says: &str) -> String {
    let scene = Scene::new();
    let done = scene.sh(1, &["--run-dir", "run"], script);
    done.expect_code(code).expect_stderr("\n  cause: ").expect_stderr(says);
    let cause = &failure(&scene)["cause"];
    let text = cause["text"].as_str().unwrap();
    done.expect_stderr(&format!("\n  cause: {text}\n"));
    cause["kind"].as_str().unwrap().to_owned()
}

#[test]
fn a_signal_is_explained() {
    for (name, number, kind, says) in [
        ("ILL", 4, "illegal-instruction", "another processor"),
        ("ABRT", 6, "abort", "SIGABRT: "),
        ("BUS", 7, "bus-error", "df -h /dev/shm"),
        ("SEGV", 11, "segmentation-fault", "PYTHONFAULTHANDLER=1"),
        ("PIPE", 13, "broken-pipe", "the reader of its pipe"),
        ("TERM", 15, "killed", "not sent by the launcher"),
        ("XCPU", 24, "killed-by-cpu-time", "ulimit -t"),
        ("XFSZ", 25, "file-size", "ulimit -f"),
        ("USR1", 10, "killed", "SIGUSR1, not from the launcher: another process sent it"),
    ] {
        assert_eq!(kind_of(&format!("kill -{name} $$"), 128 + number, says), kind);
    }
}

#[test]
fn a_signal_that_the_launcher_passed_on_is_named_with_its_sender() {
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        for is_behind_guardian in [true, false] {
            let scene = Scene::new();
            let launch =
                scene.start_sh(1, &["--run-dir", "run"], r#": > "$TEST_DIR/ready.$RANK"; exec sleep 600"#);
            match is_behind_guardian {
                true => launch.signal(signal),
                false => kill(scene.launcher()[0], signal),
            }
            let done = launch.wait();
            let own = std::process::id();
            done.expect_code(128 + signal.as_raw())
                .expect_stderr(&format!("  cause: {name}, which the launcher passed on from PID {own} ("));
            assert_eq!(failure(&scene)["cause"]["kind"], "killed");
        }
    }
}

#[test]
fn a_stack_that_python_has_printed_names_the_place_of_a_crash() {
    let scene = Scene::new();
    let program = "
import ctypes, faulthandler, os, signal, sys
faulthandler.enable()
def crash():
    os.abort() if sys.argv[1] == 'abort' else ctypes.string_at(0)
crash()
";
    fs::write(scene.path("t.py"), program).unwrap();
    for (how, name) in
        [("abort", "SIGABRT: the program ended itself"), ("read", "SIGSEGV: an error in native code")]
    {
        let done = scene.launch(&["--nproc", "1", "t.py", how]);
        done.expect_stderr(&format!("  cause: {name}")).expect_stderr("t.py:5, in crash)\n");
        assert!(!done.stderr.contains("PYTHONFAULTHANDLER"), "{}", done.stderr);
    }
}

#[test]
fn limits_of_the_shell_are_named() {
    // Python ignores this signal, unlike other programs.
    let script = r#"ulimit -f 1; exec python3 -c '
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
open("big", "wb").write(bytes(1 << 20))'"#;
    assert_eq!(kind_of(script, 128 + 25, "ulimit -f"), "file-size");
    // The hard limit would send SIGKILL.
    let script = r#"ulimit -S -t 1; while :; do :; done"#;
    assert_eq!(kind_of(script, 128 + 24, "ulimit -t"), "killed-by-cpu-time");
}

#[test]
fn a_kill_that_nothing_explains_is_not_said_to_be_for_memory() {
    let kind = kind_of("kill -KILL $$", 137, "perhaps by the kernel because memory ran out");
    assert_eq!(kind, "killed");
}

#[test]
fn last_words_are_understood() {
    for (words, kind, says) in [
        ("RuntimeError: Address already in use", "port-in-use", "ss -ltnp"),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
            "cuda-out-of-memory",
            "allocation of 2.00 GiB failed",
        ),
        ("ncclSystemError: System call failed", "nccl", "with ncclSystemError"),
        ("gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:1", "gloo", "other ranks"),
    ] {
        assert_eq!(kind_of(&format!("echo '{words}' >&2; exit 7"), 7, says), kind);
    }
}

#[test]
fn a_python_exception_is_told_with_its_place_and_without_its_traceback() {
    let scene = Scene::new();
    let program = "
import json
def load(depth):
    if depth: load(depth - 1)
    json.loads('{bad')
load(9)
";
    fs::write(scene.path("train.py"), program).unwrap();
    let done = scene.launch(&["--nproc", "1", "--run-dir", "run", "--", "python3", "train.py"]);
    done.expect_code(1)
        .expect_stderr("  cause: the program raised json.decoder.JSONDecodeError: Expecting property name")
        .expect_stderr("log: run/logs/attempt_0/rank_0/stderr.log");
    done.expect_stderr("train.py:5, in load)\n");
    let banner = &done.stderr[done.stderr.find("\n  cause: ").unwrap()..];
    assert!(banner.contains(" lines left out; raised at "), "{banner}");
    assert!(!banner.contains("load(depth - 1)"), "{banner}");
    assert!(scene.read("run/logs/attempt_0/rank_0/stderr.log").contains("load(depth - 1)"));
    assert_eq!(failure(&scene)["cause"]["kind"], "python-exception");
}

#[test]
fn a_module_and_a_library_that_are_missing_are_named() {
    let module = "python3 -c 'import no_such_module_anywhere'";
    assert_eq!(kind_of(module, 1, "the module `no_such_module_anywhere`"), "module-not-found");
    let library = "python3 -c 'import ctypes; ctypes.CDLL(\"libnowhere.so.7\")'";
    assert_eq!(kind_of(library, 1, "the shared library libnowhere.so.7 is missing"), "missing-library");
}

#[test]
fn a_port_that_is_taken_is_told_of_by_python() {
    let program = r#"exec python3 -c '
import socket
a = socket.socket(); a.bind(("127.0.0.1", 0)); a.listen()
socket.socket().bind(a.getsockname())'"#;
    assert_eq!(kind_of(program, 1, "another process uses the port"), "port-in-use");
}

#[test]
fn the_error_files_call_stack_names_the_place() {
    let scene = Scene::new();
    let script = r#"
        printf '%s' '{"message":{"message":"ValueError: no","extraInfo":{"py_callstack":"Traceback (most recent call last):\n  File \"a.py\", line 3, in main\n    x\nValueError: no\n"}}}' > "$TORCHELASTIC_ERROR_FILE"
        exit 1"#;
    let done = scene.sh(1, &["--run-dir", "run"], script);
    done.expect_code(1).expect_stderr(
        "  cause: the program raised ValueError: no (at a.py:3, in main)\n    ValueError: no\n",
    );
}

#[test]
fn a_rank_that_only_lost_its_peer_yields_to_the_one_with_the_cause() {
    // Rank 1 reports its failure but ends a moment later, like a Python program at its exit. Rank 0 has lost
    // its connection by then and is seen first.
    let script = |winds_up: &str| {
        format!(
            r#"
        if [ $RANK = 1 ]; then
            {winds_up}
            printf 'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    x\n' >&2
            echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1' >&2
            : > "$TEST_DIR/closed"
            while :; do sleep 0.01; done
        fi
        until [ -e "$TEST_DIR/closed" ]; do sleep 0.01; done
        echo 'RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7860' >&2
        exit 9"#
        )
    };
    for (winds_up, ended) in
        [("", "killed by SIGTERM from the launcher"), ("trap 'exit 5' TERM", "exit code 5")]
    {
        let scene = Scene::new();
        let done = scene.sh(2, &["--run-dir", "run"], &script(winds_up));
        done.expect_code(9)
            .expect_stderr("dtrain: rank 1 (pid ")
            .expect_stderr(&format!(": {ended} (the cause; rank 0 failed because of it, but ended first)\n"))
            .expect_stderr("  cause: the GPU's memory ran out (allocation of 1.00 GiB failed)")
            .expect_stderr("  failed as a consequence: rank 0 (exit code 9)\n");
        let failure = failure(&scene);
        assert_eq!(failure["rank"], 1);
        assert_eq!(failure["cause"]["kind"], "cuda-out-of-memory");
    }
}

#[test]
fn a_rank_that_leaves_the_group_and_then_fails_by_itself_is_the_cause() {
    let scene = Scene::new();
    // Rank 1's message is no known error, but it and the exit code are rank 1's own.
    let script = r#"
        if [ $RANK = 1 ]; then
            echo 'the data of shard 3 is broken' >&2
            : > "$TEST_DIR/closed"
            until [ -e "$TEST_DIR/lost" ]; do sleep 0.01; done
            sleep 0.4
            exit 7
        fi
        until [ -e "$TEST_DIR/closed" ]; do sleep 0.01; done
        echo 'RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7860' >&2
        : > "$TEST_DIR/lost"
        sleep 0.2
        exit 1"#;
    scene
        .sh(2, &["--run-dir", "run"], script)
        .expect_code(7)
        .expect_stderr("dtrain: rank 1 (pid ")
        .expect_stderr(": exit code 7 (the cause; rank 0 failed because of it, but ended first)\n")
        .expect_stderr("the data of shard 3 is broken")
        .expect_stderr("  failed as a consequence: rank 0 (exit code 1)\n");
    assert_eq!(failure(&scene)["rank"], 1);
    assert_eq!(failure(&scene)["exit_code"], 7);
}

#[test]
fn a_rank_that_lost_its_peer_is_named_where_no_other_has_a_cause() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK = 1 ]; then exec sleep 600; fi
        echo 'RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7860' >&2
        exit 9"#;
    let done = scene.sh(2, &["--run-dir", "run"], script);
    done.expect_code(9)
        .expect_stderr("dtrain: rank 0 (pid ")
        .expect_stderr("  cause: another rank went away");
    assert_eq!(failure(&scene)["rank"], 0);
}

#[test]
fn a_rank_that_ended_well_before_the_others_were_done_is_named() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK != 1 ]; then : > "$TEST_DIR/ended.$RANK"; exit 0; fi
        until [ -e "$TEST_DIR/ended.0" ] && [ -e "$TEST_DIR/ended.2" ]; do sleep 0.01; done
        sleep 0.3
        echo 'RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7860' >&2
        exit 9"#;
    let done = scene.sh(3, &["--run-dir", "run"], script);
    done.expect_code(9)
        .expect_stderr("dtrain: rank 1 (pid ")
        .expect_stderr("  cause: ranks 0, 2 ended with exit code 0 while rank 1 was still communicating; ");
    assert!(!done.stderr.contains("failed as") && !done.stderr.contains("it failed"), "{}", done.stderr);
    assert_eq!(failure(&scene)["cause"]["kind"], "gloo");
}

/// Runs the launcher in a new group with 100 MB. The workers of `arguments`
/// must run `$FILL`, which needs more memory in rank 1.
fn out_of_memory(scene: &Scene, name: &str, arguments: &[&str]) -> Result<Finished, Skipped> {
    let group = SmallGroup::new(name, 100_000_000)?;
    let fill = r#"
        if [ $RANK = 0 ]; then exec sleep 600; fi
        exec python3 -c 'x = bytearray(b"x") * 1_000_000_000'"#;
    let enter = group.enter();
    let launcher = ["-c", &enter, "sh", env!("CARGO_BIN_EXE_dtrain"), "launch"];
    let mut command = scene.adapt(Command::new("sh"), &launcher).into_command(arguments);
    command.env("FILL", fill).env("FAKE_WORKER", fill);
    Ok(scene.start(command).wait())
}

#[test]
fn a_worker_that_the_kernel_killed_for_memory_is_told_as_such() {
    let scene = Scene::new();
    let program = ["--nproc", "2", "--run-dir", "run", "--", "sh", "-c", "eval \"$FILL\""];
    let Ok(done) = out_of_memory(&scene, "program", &program) else {
        return;
    };
    done.expect_code(137)
        .expect_stderr("dtrain: rank 1 (pid ")
        .expect_stderr("  cause: the kernel killed the worker because memory ran out");
    assert_eq!(failure(&scene)["cause"]["kind"], "out-of-memory-killed");
    assert_eq!(failure(&scene)["signal"], "SIGKILL");
}

#[test]
fn a_process_of_a_worker_that_the_kernel_killed_is_counted_in_the_group() {
    let scene = Scene::new();
    // The shell passes the code on; the kernel's log names a process unknown to the launcher.
    let script = r#"sh -c "$FILL"; exit $?"#;
    let program = ["--nproc", "2", "--run-dir", "run", "--", "sh", "-c", script];
    let Ok(done) = out_of_memory(&scene, "child", &program) else {
        return;
    };
    done.expect_code(137).expect_stderr(
        "  cause: the kernel killed a child process of the worker because memory ran out: its control group",
    );
    assert_eq!(failure(&scene)["cause"]["kind"], "out-of-memory-killed");
}

#[test]
fn a_trainer_that_the_kernel_killed_is_still_a_failed_worker() {
    let scene = Scene::new();
    let Ok(done) = out_of_memory(&scene, "recipe", &["--nproc", "2", "--run-dir", "run", "demo"]) else {
        return;
    };
    done.expect_code(4).expect_stderr("  cause: the kernel killed the worker because memory ran out");
    assert_eq!(failure(&scene)["cause"]["kind"], "out-of-memory-killed");
}
