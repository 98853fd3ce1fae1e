//! `dtrain launch` as process 1 of a PID namespace, as in a container without an init.

use crate::harness::{Finished, Launch, Scene, wait_until};
use dtrain_test_kit::need::{self, Need, Skipped};
use rustix::process::Signal;
use std::fs;
use std::process::Command;

/// Runs a program as process 1. `unshare` returns its exit code.
const AS_PROCESS_1: [&str; 6] =
    ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_dtrain")];

/// Skips the test where a user may not create namespaces.
fn can_be_process_1() -> Result<(), Skipped> {
    let [flags @ .., _] = AS_PROCESS_1;
    let done = need::output(Need::Mount, Command::new("unshare").args(flags).arg("true"))?;
    let why = String::from_utf8_lossy(&done.stderr);
    need::require(Need::Mount, done.status.success().then_some(()).ok_or(why))
}

fn as_process_1(scene: &Scene, args: &[&str]) -> Command {
    let command = scene.adapt(Command::new("unshare"), &AS_PROCESS_1);
    command.into_command(&[&["launch"], args].concat())
}

/// Returns the children of a process, also ended ones.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&parent.to_string())
    };
    pids.filter(is_child).collect()
}

/// Returns process 1 of the namespace, as this namespace numbers it.
fn process_1(launch: &Launch<'_>) -> u32 {
    let children = children_of(launch.child.id());
    assert_eq!(children.len(), 1, "{children:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", children[0])).unwrap();
    let number = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    assert_eq!(number.split_whitespace().last(), Some("1"), "{status}");
    children[0]
}

#[test]
fn process_1_reaps_the_orphans_of_workers_and_of_programs_that_enter_the_container() {
    let Ok(()) = can_be_process_1() else { return };
    let scene = Scene::new();
    // The orphan of the worker is a child of the launcher, that of the other program one of process 1.
    let script = r#"
        (sh -c ': > "$TEST_DIR/orphan.0"; until [ -e "$TEST_DIR/end" ]; do sleep 0.01; done' &)
        until [ -e "$TEST_DIR/orphan.0" ]; do sleep 0.01; done
        : > "$TEST_DIR/ready.0"
        until [ -e "$TEST_DIR/go" ]; do sleep 0.01; done
        exit 9"#;
    let launch = scene.start(as_process_1(&scene, &["--nproc", "1", "--", "sh", "-c", script]));
    scene.wait_for_ready(1);
    let first = process_1(&launch);
    let launcher = scene.launcher()[0];
    assert_eq!((children_of(first).len(), children_of(launcher).len()), (1, 2));
    let mut enter = Command::new("nsenter");
    let target = first.to_string();
    enter.args(["--target", &target, "--user", "--preserve-credentials", "--pid", "--mount", "sh", "-c"]);
    // The working folder is lost with the other mount namespace.
    enter
        .arg(r#"for i in $(seq 20); do (sh -c 'until [ -e "$TEST_DIR/end" ]; do sleep 0.01; done' &); done"#);
    scene.mark(&mut enter).env("TEST_DIR", scene.path(""));
    assert!(enter.status().unwrap().success());
    wait_until("orphans of process 1", || children_of(first).len() == 1 + 20);
    fs::write(scene.path("end"), "").unwrap();
    wait_until("process 1 to reap its orphans", || children_of(first) == [launcher]);
    wait_until("the launcher to reap its orphan", || children_of(launcher).len() == 1);
    fs::write(scene.path("go"), "").unwrap();
    launch.wait().expect_code(9).expect_stderr("dtrain: rank 0 (pid ");
}

/// Returns the lines that do not depend on processes, times, or which worker ends first.
fn end(done: &Finished) -> Vec<&str> {
    let is_of_all = |line: &&str| line.contains("passed on to") || line.starts_with("dtrain: exit code");
    done.stderr.lines().filter(is_of_all).collect()
}

#[test]
fn process_1_ends_as_any_other_launcher() {
    let Ok(()) = can_be_process_1() else { return };
    const SLEEP: &str = r#"(setsid sleep 600 &); : > "$TEST_DIR/ready.$RANK"; exec sleep 600"#;
    const CLEAN_UP: &str =
        r#"trap 'exit 0' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05 || :; done"#;
    const DEAF: &str = r#"trap '' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.1; done"#;
    for (script, signal, code) in [
        (SLEEP, Some(Signal::TERM), 143),
        (SLEEP, Some(Signal::INT), 130),
        (CLEAN_UP, Some(Signal::TERM), 143),
        (DEAF, Some(Signal::TERM), 143),
        ("exit 7", None, 7),
        ("kill -KILL $$", None, 137),
        ("exit 0", None, 0),
    ] {
        let args = ["--nproc", "2", "--shutdown-timeout", "2", "--", "sh", "-c", script];
        let [outside, inside] = [false, true].map(|is_first| {
            let scene = Scene::new();
            let command = if is_first { as_process_1(&scene, &args) } else { scene.command(&args) };
            let launch = scene.start(command);
            if let Some(signal) = signal {
                scene.wait_for_ready(2);
                let guardian = if is_first { process_1(&launch) } else { launch.child.id() };
                crate::harness::kill(guardian, signal);
            }
            launch.wait()
        });
        inside.expect_code(code);
        outside.expect_code(code);
        assert_eq!(end(&inside), end(&outside), "{script}: {}", inside.stderr);
    }
}
