//! `dtrain runs` beside real launches.

use crate::harness::{Finished, Scene, kill};
use crate::pty::Pty;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::Command;

fn command(scene: &Scene, args: &[&str]) -> Command {
    scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["runs"]).into_command(args)
}

/// Runs the command beside the scene's other processes, for which `wait` of a scene would wait too.
#[track_caller]
fn runs(scene: &Scene, args: &[&str]) -> Finished {
    let output = command(scene, args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Finished { code: output.status.code(), stdout: output.stdout, stderr }
}

/// Returns the only run of `runs`.
#[track_caller]
fn only(scene: &Scene) -> Value {
    let list: Value = serde_json::from_slice(&runs(scene, &["--json"]).stdout).unwrap();
    assert_eq!(list["runs"].as_array().map(Vec::len), Some(1), "{list}");
    list["runs"][0].clone()
}

const WAITS: &str = "touch $TEST_DIR/ready.$RANK; sleep 1000";

/// Returns a launch of a program in `runs/a`, in a Slurm job.
fn launch(scene: &Scene, script: &str) -> Command {
    let mut command = scene.command(&["--nproc", "1", "--run-dir", "runs/a", "--", "sh", "-c", script]);
    command.env("SLURM_JOB_ID", "77");
    command
}

#[test]
fn a_run_is_running_until_its_launcher_is_killed_and_then_lost() {
    let scene = Scene::new();
    let launch = scene.start(launch(&scene, WAITS));
    scene.wait_for_ready(1);
    let run = only(&scene);
    assert_eq!(run["state"], "running");
    assert_eq!((&run["name"], &run["attempt"], &run["nproc"]), (&json!("a"), &json!(0), &json!(1)));
    assert_eq!(run["job"], json!({"system": "Slurm", "id": "77"}));
    let about = run["about"].as_str().unwrap();
    assert_eq!(about, format!("on {}", run["host"].as_str().unwrap()));
    scene.launcher().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    drop(launch);
    scene.wait_until_gone("a process of the run", Scene::alive);
    let run = only(&scene);
    assert_eq!(run["state"], "lost");
    assert!(run["about"].as_str().unwrap().contains("ended without a result"), "{run}");
}

#[test]
fn the_end_of_a_run_is_its_state() {
    for (script, state, about) in [
        ("exit 0", "succeeded", "took "),
        ("exit 75", "requeue", "stopped on request"),
        ("exit 9", "failed", "rank 0 failed: exit code 9"),
    ] {
        let scene = Scene::new();
        scene.start(launch(&scene, script)).wait();
        let run = only(&scene);
        assert_eq!(run["state"], state, "{run}");
        assert!(run["about"].as_str().unwrap().starts_with(about), "{run}");
        let table = runs(&scene, &["runs/a", "--state", state]);
        assert!(table.expect_code(0).stdout().contains(&format!("runs/a  {state} ")), "{}", table.stdout());
        assert_eq!(runs(&scene, &["--state", "lost"]).stdout(), "runs: no run in this state\n");
    }
}

#[test]
fn a_watch_prints_changes_as_lines_and_ends_well_with_ctrl_c() {
    let scene = Scene::new();
    let run = scene.start(launch(
        &scene,
        "touch $TEST_DIR/ready.$RANK; while [ ! -e $TEST_DIR/go ]; do sleep 0.01; done",
    ));
    scene.wait_for_ready(1);
    let watch = scene.start_as("watch", command(&scene, &["watch", "--interval", "0.1"]));
    watch.wait_for_stdout(" a: running (on ");
    std::fs::write(scene.path("go"), "").unwrap();
    // The watch is a process of the scene too.
    run.wait_leaving_processes().expect_code(0);
    watch.wait_for_stdout(" a: succeeded (took ");
    std::fs::remove_dir_all(scene.path("runs/a")).unwrap();
    watch.wait_for_stdout("runs/a: removed\n");
    watch.signal(Signal::INT);
    let done = watch.wait();
    assert_eq!(done.expect_code(0).stderr, "");
    assert_eq!(done.stdout().lines().count(), 3, "{}", done.stdout());
}

#[test]
fn a_watch_redraws_a_terminal() {
    let scene = Scene::new();
    scene.start(launch(&scene, "exit 0")).wait().expect_code(0);
    let pty = Pty::new(60);
    let mut watch = command(&scene, &["watch", "--interval", "0.1", "--count", "2"]);
    watch.env("TERM", "xterm");
    pty.attach(&mut watch);
    let (shown, code) = pty.run(watch);
    assert_eq!(code, Some(0));
    let shown = String::from_utf8(shown).unwrap();
    let (first, second) = shown.split_once("\u{1b}[4A\r\u{1b}[J").unwrap();
    assert!(
        first.contains("  runs: 1 run: 1 succeeded\r\n") && second.contains("a    succeeded "),
        "{shown}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let scene = Scene::new();
    for args in [&["absent"][..], &["watch", "absent"], &[]] {
        runs(&scene, args).expect_code(2).expect_stderr("name the folder that holds your run directories");
    }
    runs(&scene, &["--state", "sleeping"]).expect_code(2).expect_stderr("sleeping");
}
