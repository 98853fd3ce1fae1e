//! The program whose notes are the figures of `cargo xtask bench launch`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::machine::wait_for;

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_launch-bench"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn worker(folder: &Path, rank: u32, restarts: u32) -> Child {
    bench(&["die", folder.to_str().unwrap(), "20"])
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("TORCHELASTIC_RESTART_COUNT", restarts.to_string())
        .spawn()
        .unwrap()
}

fn noted(folder: &Path, name: &str) -> u64 {
    fs::read_to_string(folder.join(name)).unwrap().parse().unwrap()
}

#[test]
fn what_is_measured_is_the_program_s_time_and_memory_and_its_exit_code_is_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("measured.json");
    for (script, code) in [("sleep 0.05", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let measure = ["measure", file.to_str().unwrap(), "/bin/sh", "-c", script];
        assert_eq!(bench(&measure).status().unwrap().code(), Some(code), "{script}");
        let measured: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let peak = measured["peak_bytes"].as_u64().unwrap();
        assert!((100 << 10..100 << 20).contains(&peak), "{measured}");
        let least = if code == 0 { 50.0 } else { 0.0 };
        assert!(measured["wall_ms"].as_f64().unwrap() > least, "{measured}");
    }
}

#[test]
fn who_stops_the_measuring_stops_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let (file, started) = (folder.path().join("measured.json"), folder.path().join("started"));
    let script = format!("echo > {}; exec sleep 600", started.display());
    let mut measure = bench(&["measure", file.to_str().unwrap(), "/bin/sh", "-c", &script])
        .spawn()
        .unwrap();
    wait_for(|| started.exists().then_some(()));
    kill_process(Pid::from_child(&measure), Signal::TERM).unwrap();
    assert_eq!(measure.wait().unwrap().code(), Some(128 + 15));
    assert!(file.is_file());
}

#[test]
fn a_worker_dies_and_the_other_notes_when_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut other, mut dying) = (worker(folder.path(), 0, 0), worker(folder.path(), 1, 0));
    assert_eq!(dying.wait().unwrap().code(), Some(1));
    assert_eq!(fs::read_to_string(folder.path().join("told.0")).unwrap(), "");
    kill_process(Pid::from_child(&other), Signal::TERM).unwrap();
    assert_eq!(other.wait().unwrap().code(), Some(0));
    let (death, told) = (noted(folder.path(), "died.1"), noted(folder.path(), "told.0"));
    assert!(death < told, "{death} {told}");
    for rank in 0..2 {
        assert_eq!(worker(folder.path(), rank, 1).wait().unwrap().code(), Some(0));
        assert!(told < noted(folder.path(), &format!("again.{rank}")));
    }
}

#[test]
fn so_many_lines_are_printed_and_no_two_alike() {
    let lines = |rank: &str| -> Vec<String> {
        let output = bench(&["lines", "1000"])
            .env("RANK", rank)
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.ends_with('\n'));
        text.lines().map(str::to_owned).collect()
    };
    let both: std::collections::BTreeSet<String> = lines("0").into_iter().chain(lines("1")).collect();
    assert_eq!((lines("0").len(), both.len()), (1000, 2000));
}

#[test]
fn wrong_arguments_are_refused() {
    for args in [
        &[][..],
        &["die"],
        &["lines", "many"],
        &["measure", "file"],
        &["other", "1"],
    ] {
        assert_eq!(
            bench(args).env("RANK", "0").status().unwrap().code(),
            Some(1),
            "{args:?}"
        );
    }
    let outside = bench(&["lines", "1"]).env_remove("RANK").status().unwrap();
    assert_eq!(outside.code(), Some(1));
}
