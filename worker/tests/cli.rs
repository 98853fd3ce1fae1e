//! The worker's command line: what it answers and refuses before it trains. Its existence also makes `cargo test` build
//! the program, which the end-to-end tests start.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use dtrain_common::env::WorkerEnv;

fn worker(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain-worker"));
    for (name, _) in WorkerEnv::single().vars() {
        command.env_remove(name);
    }
    let folder = tempfile::tempdir().unwrap();
    command.args(args).envs(env.iter().copied()).current_dir(folder.path());
    let output = command.output().unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "a refused run writes nothing");
    output
}

fn refused(args: &[&str], env: &[(&str, &str)], words: &[&str]) {
    let output = worker(args, env);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn it_names_its_version_and_explains_itself() {
    let output = worker(&["--version"], &[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim(), concat!("dtrain-worker ", env!("CARGO_PKG_VERSION")));
    let help = String::from_utf8(worker(&["--help"], &[]).stdout).unwrap();
    assert!(
        ["--run-dir", "--set", "--resume", "Exit codes"].iter().all(|word| help.contains(word)),
        "{help}"
    );
}

#[test]
fn wrong_usage_is_refused() {
    refused(&[], &[], &["RECIPE"]);
    refused(&["demo", "--nproc", "2"], &[], &["--nproc"]);
    refused(&["no-such-recipe"], &[], &["no-such-recipe", "demo"]);
    refused(&["demo", "--set", "train.epoch=1"], &[], &["train.epoch", "epochs"]);
    refused(&["demo", "--set", "optim.lr=-1"], &[], &["optim.lr"]);
}

#[test]
fn a_broken_environment_names_what_is_missing() {
    refused(&["demo"], &[("RANK", "0")], &["WORLD_SIZE"]);
    refused(
        &["demo"],
        &[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")],
        &["RANK"],
    );
}

#[test]
fn an_error_goes_into_the_error_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("error.json");
    let env = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_ERROR_FILE", file.to_str().unwrap()),
    ];
    let output = worker(&["demo", "--set", "train.seed=-1"], &env);
    assert_eq!(output.status.code(), Some(2));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(json["message"]["message"].as_str().unwrap().contains("train.seed"), "{json}");
    assert!(json["message"]["extraInfo"]["timestamp"].is_string(), "{json}");
}
