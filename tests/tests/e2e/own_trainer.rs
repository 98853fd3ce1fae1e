//! The example of docs/own-trainer.md: it starts in both ways, learns, and is exact.

use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_common::question::CheckAnswer;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::programs::{launch, own_trainer, without_outer_run};
use dtrain_tests::runs::{Run, Sandbox, assert_close};
use serde_json::json;

fn recipe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/own-trainer/recipe.toml")
}

/// `dtrain launch --nproc N -- own-trainer recipe.toml --run-dir RUN`.
fn as_program(sandbox: &Sandbox, nproc: usize, run: &str) -> Run {
    let output = launch()
        .env_remove("DTRAIN_WORKER")
        .args(["--nproc", &nproc.to_string(), "--"])
        .arg(own_trainer())
        .arg(recipe())
        .args(["--run-dir", run])
        .current_dir(sandbox.path(""))
        .output()
        .unwrap();
    expect_exit_code(&output, 0);
    sandbox.run(run)
}

/// `DTRAIN_WORKER=own-trainer dtrain launch --nproc N --run-dir RUN recipe.toml`.
fn as_worker(sandbox: &Sandbox, nproc: usize, run: &str, sets: &[&str]) -> std::process::Output {
    launch()
        .env("DTRAIN_WORKER", own_trainer())
        .args(["--nproc", &nproc.to_string(), "--run-dir", run])
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .arg(recipe())
        .current_dir(sandbox.path(""))
        .output()
        .unwrap()
}

#[test]
fn own_trainer_learns_equally_on_one_and_two_ranks() {
    let sandbox = Sandbox::new("");
    let two = as_program(&sandbox, 2, "two");
    let losses = two.per_step("loss");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert_eq!(losses.len(), 400);
    assert!(mean(&losses[380..]) < 0.2 * mean(&losses[..10]), "{losses:?}");

    expect_exit_code(&as_worker(&sandbox, 1, "one", &["memory.micro_batch=27"]), 0);
    let one = sandbox.run("one");
    assert_close(&losses, &one.per_step("loss"), 1e-5);
    let result = one.result();
    assert_eq!((result.exit_code, result.nproc), (Some(0), Some(1)));
    let close = result.final_metrics["close"];
    assert!(close > 0.8, "{close}");
    let evaluation = &two.evaluations()[1];
    assert_eq!(evaluation["samples"].as_u64(), Some(250));
    assert!((evaluation["close"].as_f64().unwrap() - close).abs() < 0.01);
}

#[test]
fn a_mistyped_custom_setting_is_named() {
    let sandbox = Sandbox::new("");
    let text = expect_exit_code(&as_worker(&sandbox, 2, "run", &["custom.widht=3"]), 2);
    assert!(text.contains("custom.widht") && text.contains("`width`"), "{text}");
    // The launcher has asked the trainer before it wrote anything.
    assert!(!sandbox.path("run").exists());
}

#[test]
fn the_worker_names_the_program_of_a_custom_task() {
    let sandbox = Sandbox::new("");
    let mut command = launch();
    command.args(["--nproc", "1", "--run-dir", "run"]).arg(recipe()).current_dir(sandbox.path(""));
    let text = expect_exit_code(&command.output().unwrap(), 2);
    assert!(text.contains("DTRAIN_WORKER"), "{text}");
}

/// `dtrain import` asks the trainer that DTRAIN_WORKER names, which then has no recipe.
#[test]
fn own_trainer_checks_programs_without_a_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let job = json!({ "job": "check", "folders": [folder.path()] }).to_string();
    let mut command = Command::new(own_trainer());
    without_outer_run(&mut command);
    let output = command.args(["check", "--job", &job]).output().unwrap();
    let text = expect_exit_code(&output, 0);
    let answer: CheckAnswer = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer.error.is_some_and(|error| error.contains("check.json")), "{text}");
}

#[test]
fn a_try_makes_no_prediction_of_data_that_the_trainer_makes() {
    let sandbox = Sandbox::new("");
    let mut command = launch();
    command.env("DTRAIN_WORKER", own_trainer()).args(["--nproc", "2", "--try"]).arg(recipe());
    let text = expect_exit_code(&command.current_dir(sandbox.path("")).output().unwrap(), 0);
    assert!(
        text.contains("same weights, bit by bit") && text.contains("the trainer has its own data"),
        "{text}"
    );
}
