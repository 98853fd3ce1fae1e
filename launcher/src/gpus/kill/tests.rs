#![allow(clippy::unwrap_used)]

use super::super::fake::{FakeDriver, machine, process};
use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

fn args() -> KillArgs {
    KillArgs { yes: true, gpu_ids: None, grace: 10.0 }
}

/// Starts a process and waits until it is ready for signals.
fn started(script: &str) -> Child {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{script}; echo ready; while :; do sleep 0.05; done")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    io::BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn code(done: &ExitCode) -> String {
    format!("{done:?}")
}

#[test]
fn own_processes_end_by_term_or_else_by_kill() {
    let (mut soft, mut hard) = (started(":"), started("trap '' TERM"));
    let mut driver = FakeDriver::new(machine(vec![process(soft.id()), process(hard.id())]));
    let quick = KillArgs { grace: 0.5, ..args() };
    // `run` does not wait until the parent reaps them; their end is enough.
    let done = run(&mut driver, &quick).unwrap();
    assert_eq!(code(&done), code(&ExitCode::SUCCESS));
    assert_eq!(soft.wait().unwrap().signal(), Some(15));
    assert_eq!(hard.wait().unwrap().signal(), Some(9));
}

#[test]
fn kill_is_limited_to_the_named_gpus() {
    let mut child = started(":");
    let mut driver = FakeDriver::new(machine(vec![process(child.id())]));
    for (ids, ends) in [("1", false), ("GPU-aa1", false), ("GPU-aa0", true)] {
        let there = KillArgs { gpu_ids: Some(ids.parse().unwrap()), ..args() };
        run(&mut driver, &there).unwrap();
        assert_eq!(child.try_wait().unwrap().is_some(), ends, "{ids}");
    }
    let wrong = |ids: &str| {
        let args = KillArgs { gpu_ids: Some(ids.parse().unwrap()), ..args() };
        run(&mut driver, &args).unwrap_err().to_string()
    };
    let mut wrong = wrong;
    assert!(wrong("7").contains("`7` is not a GPU of this machine"));
    assert!(wrong("GPU-aa").contains("several UUIDs"));
    assert!(wrong("none").contains("names no GPU"));
}

#[test]
fn foreign_and_missing_processes_are_left_alone() {
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id();
    gone.wait().unwrap();
    // The command leaves its own process alone, whatever the driver reports.
    let mut status = machine(vec![process(pid), process(std::process::id())]);
    // A process counts once.
    status.gpus[1].processes = vec![process(pid)];
    let found = find(&status, &args()).unwrap();
    assert_eq!(found.own.len(), 0);
    assert_eq!(found.text, "2 other processes are left alone: of another user, or not visible from here.\n");
    let done = run(&mut FakeDriver::new(status), &args()).unwrap();
    assert_eq!(code(&done), code(&ExitCode::SUCCESS));
}

#[test]
fn a_process_on_two_gpus_is_ended_once() {
    let mut child = started(":");
    let mut status = machine(vec![process(child.id())]);
    status.gpus[1].processes = vec![process(child.id())];
    let found = find(&status, &args()).unwrap();
    assert_eq!(found.own.len(), 1);
    assert_eq!(found.text.matches(&child.id().to_string()).count(), 2, "{}", found.text);
    assert!(found.text.contains("sh -c"), "{}", found.text);
    assert!(end(found.own, Duration::from_secs(10)).unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[test]
fn yes_is_required_without_a_terminal() {
    let refused = confirm(2, false).unwrap_err().to_string();
    assert_eq!(
        refused,
        "cannot ask before ending these 2 processes: standard input is not a terminal; give --yes"
    );
}
