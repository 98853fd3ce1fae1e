//! `dtrain plan`, `dtrain profile` and `dtrain gpu`, with a script as the worker.

use crate::harness::{Finished, Scene, words};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// Builds `dtrain` with these arguments, and the script as the worker.
fn command(scene: &Scene, args: &[&str], worker: &str) -> Command {
    let mut command = scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &[]).into_command(args);
    command.env("FAKE_WORKER", worker);
    command
}

#[track_caller]
fn run(scene: &Scene, args: &[&str], worker: &str) -> Finished {
    scene.start(command(scene, args, worker)).wait()
}

/// Stores the worker's arguments and environment.
const ARGS: &str =
    r#"printf '%s\n' "$@" > "$TEST_DIR/args"; env > "$TEST_DIR/env"; echo the table; echo a note >&2"#;

#[track_caller]
fn job(scene: &Scene) -> (Vec<String>, Value) {
    let args: Vec<String> = scene.read("args").lines().map(str::to_owned).collect();
    let position = args.iter().position(|word| word == "--job").unwrap();
    let job = serde_json::from_str(&args[position + 1]).unwrap();
    (args[..position].to_vec(), job)
}

#[test]
fn a_plan_is_one_job_of_the_worker() {
    let scene = Scene::new();
    let args = words("plan demo --gpu t4,24GiB --nproc 2 --set train.seed=7 --stage all --json --measured");
    let mut plan = command(&scene, &args, ARGS);
    plan.env("RANK", "1").env("WORLD_SIZE", "2");
    let done = scene.start(plan).wait();
    assert_eq!(done.expect_code(0).stdout(), "the table\n");
    assert_eq!(done.stderr, "a note\n");
    let (words, job) = job(&scene);
    assert_eq!(words, ["demo", "--set", "train.seed=7"]);
    assert_eq!(job["job"], "plan");
    assert_eq!(job["gpus"][0]["name"], "t4");
    assert_eq!(job["gpus"][1]["bytes"], 24u64 << 30);
    assert_eq!(
        (&job["nproc"], &job["stage"], &job["json"], &job["way"]),
        (&2.into(), &"all".into(), &true.into(), &"measured".into())
    );
    // The worker runs alone, whatever the launcher inherited.
    let env = scene.read("env");
    assert!(!env.lines().any(|line| line.starts_with("RANK=") || line.starts_with("WORLD_SIZE=")));
}

#[test]
fn without_a_visible_gpu_the_usual_sizes_are_planned() {
    let scene = Scene::new();
    run(&scene, &["plan", "demo"], ARGS).expect_code(0);
    let (_, job) = job(&scene);
    let names: Vec<_> =
        job["gpus"].as_array().unwrap().iter().map(|gpu| gpu["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["8 GiB", "12 GiB", "16 GiB", "24 GiB", "40 GiB", "48 GiB", "80 GiB"]);
    assert_eq!((&job["nproc"], &job["way"]), (&1.into(), &"symbolic".into()));
}

#[test]
fn a_profile_is_one_job_of_the_worker() {
    let scene = Scene::new();
    run(&scene, &["profile", "demo", "--find-optimal"], ARGS).expect_code(0);
    let (words, job) = job(&scene);
    assert_eq!(words, ["demo"]);
    assert_eq!(
        (&job["job"], &job["stage"], &job["find_optimal"]),
        (&"profile".into(), &"all".into(), &true.into())
    );
}

#[test]
fn a_suggestion_is_a_short_plan_and_needs_a_gpu() {
    let scene = Scene::new();
    let args = ["gpu", "suggest-batch-size", "demo"];
    run(&scene, &[&args[..], &["--gpu", "h200"]].concat(), ARGS).expect_code(0);
    assert_eq!(job(&scene).1["brief"], true);
    run(&scene, &args, ARGS).expect_code(2).expect_stderr("name GPUs with --gpu, such as --gpu t4,24GiB");
}

#[test]
fn the_workers_exit_code_is_passed_through() {
    let scene = Scene::new();
    for code in [0, 1, 2, 3] {
        run(&scene, &["plan", "demo"], &format!("exit {code}")).expect_code(code);
    }
}

#[test]
fn a_signal_is_the_workers() {
    let scene = Scene::new();
    let worker = r#"trap 'exit 130' INT; : > "$TEST_DIR/ready.0"; while :; do sleep 0.02; done"#;
    let plan = scene.start(command(&scene, &["plan", "demo"], worker));
    scene.wait_for_ready(1);
    plan.signal(Signal::INT);
    plan.wait().expect_code(130);
}

#[test]
fn mistakes_are_reported_before_the_start() {
    let worker = r#": > "$TEST_DIR/started""#;
    let refused = |args: &[&str], message: &str| {
        let scene = Scene::new();
        run(&scene, args, worker).expect_code(2).expect_stderr(message);
        scene.expect_nothing_written();
    };
    refused(&["plan"], "<RECIPE>");
    refused(&["plan", "no-such-recipe"], "no-such-recipe");
    refused(&["plan", "demo", "--set", "train.epochs=x"], "train.epochs");
    refused(&["plan", "demo", "--gpu", "a100-44gb"], "did you mean a100-40gb");
    refused(&["plan", "demo", "--gpu", "16"], "not a GPU's memory");
    refused(&["plan", "demo", "--nproc", "0"], "--nproc");
    refused(
        &["plan", "demo", "--nproc", "3", "--set", "train.effective_batch=2"],
        "an effective batch of 2 cannot be shared by 3 ranks",
    );
    refused(&["profile", "cifar100", "--set", "data.root=nowhere"], "nowhere");
    refused(&["gpu"], "Usage: dtrain gpu");
    refused(&["gpu", "monitor", "--interval", "0"], "give seconds from 0.1");
    refused(&["gpu", "kill", "--gpu-ids", "x"], "`x` is not a GPU; give numbers");
}

/// With or without a driver, each command works or fails with one sentence.
#[test]
fn without_a_driver_each_command_says_so() {
    let scene = Scene::new();
    let runtime = scene.path(".runtime");
    for args in [
        &["gpu", "info"][..],
        &["gpu", "monitor", "--count", "1"],
        &["gpu", "kill", "--yes", "--gpu-ids", "0"],
        &["gpu", "clear"],
    ] {
        let mut command = command(&scene, args, "");
        command.env("XDG_RUNTIME_DIR", &runtime);
        let done = scene.start(command).wait();
        if std::path::Path::new("/proc/driver/nvidia").exists() || args[1] == "clear" && done.code == Some(0)
        {
            // The machine has a driver, or other tests of this user run workers.
            continue;
        }
        done.expect_code(2).expect_stderr("no NVIDIA driver is loaded on this machine");
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
}

/// The help of the commands in a terminal of 100 columns. To update the file after a change of the command
/// line, use the output of this test.
#[test]
fn the_help_is_what_its_file_says() {
    let scene = Scene::new();
    let mut all = String::new();
    for words in [
        &["plan"][..],
        &["profile"],
        &["data"],
        &["eval"],
        &["predict"],
        &["ckpt"],
        &["ckpt", "ls"],
        &["ckpt", "show"],
        &["ckpt", "verify"],
        &["ckpt", "prune"],
        &["ckpt", "export"],
        &["ckpt", "average"],
        &["gpu"],
        &["gpu", "info"],
        &["gpu", "monitor"],
        &["gpu", "suggest-batch-size"],
        &["gpu", "clear"],
        &["gpu", "kill"],
        &["runs"],
        &["runs", "watch"],
        &["diff"],
        &["report"],
        &["trace"],
        &["new"],
        &["completions"],
        &["doctor"],
        &["batch"],
    ] {
        let mut command = command(&scene, words, "");
        command.arg("--help").env("COLUMNS", "100");
        let help = scene.start(command).wait().expect_code(0).stdout();
        all.push_str(&format!("$ dtrain {} --help\n", words.join(" ")));
        all.extend(help.lines().flat_map(|line| [line.trim_end(), "\n"]));
        all.push('\n');
    }
    assert!(
        all == include_str!("help-memory.txt"),
        "the help has changed; if that is meant, this belongs into tests/launch/help-memory.txt:\n{all}"
    );
}
