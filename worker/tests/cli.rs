//! The worker's command line before a training. This file also makes `cargo test` build the program, which the end-to-end
//! tests start.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

use dtrain_common::env::WorkerEnv;
use dtrain_common::question::Unresolved;
use dtrain_common::recipe::Source;

fn worker(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain-worker"));
    for (name, _) in WorkerEnv::single().vars() {
        command.env_remove(name);
    }
    let folder = tempfile::tempdir().unwrap();
    command.args(args).envs(env.iter().copied()).current_dir(folder.path());
    let output = command.output().unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "an invalid run writes nothing");
    output
}

fn expect_usage_error(args: &[&str], env: &[(&str, &str)], words: &[&str]) {
    let output = worker(args, env);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn version_and_help_are_printed() {
    let output = worker(&["--version"], &[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(concat!("dtrain-worker ", env!("CARGO_PKG_VERSION"))));
    // For `dtrain doctor`.
    let libtorch = lines.next().and_then(|line| line.strip_prefix("libtorch ")).unwrap();
    let (version, folder) = libtorch.split_once(" in ").unwrap();
    assert!(
        version.starts_with("2.") && std::path::Path::new(folder).join("libtorch_cpu.so").is_file(),
        "{text}"
    );
    let help = String::from_utf8(worker(&["--help"], &[]).stdout).unwrap();
    assert!(
        ["--run-dir", "--set", "--resume", "Exit codes"].iter().all(|word| help.contains(word)),
        "{help}"
    );
}

#[test]
fn wrong_usage_is_an_error() {
    expect_usage_error(&[], &[], &["RECIPE"]);
    expect_usage_error(&["demo", "--nproc", "2"], &[], &["--nproc"]);
    expect_usage_error(&["no-such-recipe"], &[], &["no-such-recipe", "demo"]);
    expect_usage_error(&["demo", "--set", "train.epoch=1"], &[], &["train.epoch", "epochs"]);
    expect_usage_error(&["demo", "--set", "optim.lr=-1"], &[], &["optim.lr"]);
}

/// The launcher asks dtrain-recipes in place of dtrain-worker.
#[test]
fn both_programs_answer_the_same_about_recipes() {
    let answer = |program: &str, question: &str, asked: &Unresolved| {
        let mut command = Command::new(program);
        command.args(["recipe", "--job", question]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The schema needs no recipe: the program may have ended.
        drop(serde_json::to_writer(child.stdin.take().unwrap(), asked));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program} {question}");
        String::from_utf8(output.stdout).unwrap()
    };
    let demo = Source::find("demo").unwrap();
    let wrong = Source {
        name: "wrong.toml".to_owned(),
        text: "task = \"classify\"\n[data]\nclases = 3\n".to_owned(),
    };
    for (source, overrides) in [(&demo, vec![]), (&demo, vec!["data.classes=7".to_owned()]), (&wrong, vec![])]
    {
        let asked = Unresolved { source: source.clone(), overrides };
        for question in [r#"{"job":"resolve","check_paths":true}"#, r#"{"job":"schema"}"#] {
            let programs = [env!("CARGO_BIN_EXE_dtrain-worker"), env!("CARGO_BIN_EXE_dtrain-recipes")];
            let [one, other] = programs.map(|program| answer(program, question, &asked));
            assert!(one.len() > 100 && one == other, "{question}: {one}\n{other}");
        }
    }
}

#[test]
fn an_incomplete_environment_names_the_variable() {
    expect_usage_error(&["demo"], &[("RANK", "0")], &["WORLD_SIZE"]);
    expect_usage_error(
        &["demo"],
        &[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")],
        &["RANK"],
    );
}

#[test]
fn errors_are_also_written_to_the_error_file() {
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
