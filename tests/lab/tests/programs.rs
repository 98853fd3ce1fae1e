//! Tests of the lab and of `launch-bench`, whose notes give the figures of `cargo xtask bench launch`.
//! Because of this file, `cargo test` builds both programs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Stdio};

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_launch-bench"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn measure_records_time_and_memory_and_returns_the_exit_code() {
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
fn lines_prints_the_given_number_of_different_lines() {
    let lines = |rank: &str| -> Vec<String> {
        let output = bench(&["lines", "1000"]).env("RANK", rank).stdout(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.ends_with('\n'));
        text.lines().map(str::to_owned).collect()
    };
    let both: std::collections::BTreeSet<String> = lines("0").into_iter().chain(lines("1")).collect();
    assert_eq!((lines("0").len(), both.len()), (1000, 2000));
}

#[test]
fn kills_reports_a_run_that_fails_without_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["kills", "--moments", "1", "--bin-dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot start dtrain"), "{stderr}");
}
