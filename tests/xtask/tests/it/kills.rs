//! `cargo xtask kills` with a dtrain that is none: what it says, and that nothing is left.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::machine::{Machine, wait_for};

fn work(machine: &Machine) -> Vec<PathBuf> {
    let entries = fs::read_dir(machine.root().join("target/kills"))
        .into_iter()
        .flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_run_that_fails_without_a_kill_is_told() {
    let machine = Machine::new();
    machine.script("dtrain", "exit 7");
    let bin = machine.path("bin");
    let outcome = machine.run(&["kills", "--seed", "5", "--bin-dir", bin.to_str().unwrap()], &[]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("seed 5"), "{}", outcome.stderr);
    let words = "the run of 1 ranks that nobody kills ends with exit code 7";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert!(work(&machine).is_empty());

    let outcome = machine.run(&["kills", "--bin-dir", "nowhere"], &[]);
    assert!(
        outcome.stderr.contains("--bin-dir names nowhere"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_signal_ends_it_with_all_that_it_has_started() {
    let machine = Machine::new();
    let pids = machine.path("pids");
    let script = format!(
        "sleep 600 & echo $! > {0}.part; mv {0}.part {0}; wait",
        pids.display()
    );
    machine.script("dtrain", &script);
    let bin = machine.path("bin");
    let kills = machine
        .xtask(&["kills", "--bin-dir", bin.to_str().unwrap()])
        .spawn()
        .unwrap();
    let sleeper = wait_for(|| fs::read_to_string(&pids).ok());
    assert_eq!(work(&machine).len(), 1);
    let told = Command::new("kill")
        .args(["-INT", &kills.id().to_string()])
        .status();
    assert!(told.unwrap().success());
    let output = kills.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(work(&machine).is_empty(), "{stderr}");
    // Dead, whether or not somebody has asked for its status yet.
    let commands = fs::read(format!("/proc/{}/cmdline", sleeper.trim())).unwrap_or_default();
    assert!(commands.is_empty(), "{stderr}");
}
