//! Scripts of systems that are not installed here: stand-ins submit them, and start them with the system's
//! environment on two nodes.

use crate::harness::{Finished, Scene};
use std::path::Path;
use std::process::Command;

/// Every worker asks once to be started again.
const PROGRAM: &str = "mkdir again.$RANK 2>/dev/null || { echo rank $RANK of $WORLD_SIZE; exit 0; }
until [ -d again.0 ] && [ -d again.1 ]; do sleep 0.05; done
exit 75";

/// Starts a command with the stand-ins in `PATH`.
fn start(scene: &Scene, mut command: Command, variables: &[(&str, &str)]) -> Finished {
    let systems = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launch/batch/systems");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", systems.display())).env("SPOOL", scene.path(".spool"));
    command.envs(variables.iter().copied()).current_dir(scene.path("."));
    scene.start(command).wait()
}

fn submit(scene: &Scene, args: &[&str], variables: &[(&str, &str)]) -> Finished {
    std::fs::create_dir_all(scene.path(".spool")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    // The flag stands before `--`.
    command.args(["batch", args[0], "--submit"]).args(&args[1..]);
    start(scene, command, variables)
}

fn drive(scene: &Scene, system: &str, index: &str) -> Finished {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launch/batch/systems/driver");
    start(scene, Command::new(driver), &[("SYSTEM", system), ("INDEX", index)])
}

/// Returns the lines of the job's starts.
fn codes(done: &Finished) -> Vec<String> {
    done.stdout().lines().filter(|line| line.starts_with("code ")).map(str::to_owned).collect()
}

#[test]
fn jobs_of_two_nodes_start_again_after_code_75() {
    for (system, id) in [("pbs", "0.server"), ("lsf", "71"), ("flux", "f0")] {
        let scene = Scene::new();
        let args =
            [system, "--nodes", "2", "--name", "two", "--max-requeues", "3", "--", "sh", "-c", PROGRAM];
        let submitted = submit(&scene, &args, &[]);
        submitted.expect_code(0).expect_stderr("watch it with `");
        assert_eq!(submitted.stdout().trim(), id);
        let done = drive(&scene, system, "");
        done.expect_code(0).expect_stderr("dtrain: requeue 1 of 3");
        assert_eq!(codes(&done), ["code 75", "code 0"], "{system}");
        for rank in ["rank 0 of 2", "rank 1 of 2"] {
            assert!(done.stdout().contains(rank), "{system} {rank}:\n{}", done.stdout());
        }
        assert!(!scene.path("runs/two/requeues.json").exists(), "{system}");
    }
}

#[test]
fn requeues_have_a_bound_and_other_codes_have_none() {
    for (system, last) in [("pbs", "code 75"), ("lsf", "code 1"), ("flux", "code 75")] {
        let scene = Scene::new();
        let args = [system, "--max-requeues", "2", "--name", "bound", "--", "sh", "-c", "exit 75"];
        submit(&scene, &args, &[]).expect_code(0);
        let done = drive(&scene, system, "");
        done.expect_code(0).expect_stderr("it was requeued 2 times");
        assert_eq!(codes(&done), ["code 75", "code 75", last], "{system}");
        let scene = Scene::new();
        submit(&scene, &[system, "--name", "wrong", "--", "sh", "-c", "exit 7"], &[]).expect_code(0);
        assert_eq!(codes(&drive(&scene, system, "")), ["code 7"], "{system}");
    }
}

#[test]
fn a_run_of_an_array_starts_again_alone() {
    for system in ["pbs", "lsf"] {
        let scene = Scene::new();
        let program = "mkdir again 2>/dev/null && exit 75; exit 0";
        let args = [system, "--array", "3", "--name", "runs", "--", "sh", "-c", program];
        submit(&scene, &args, &[]).expect_code(0);
        let done = drive(&scene, system, "2");
        done.expect_code(0);
        assert_eq!(codes(&done), ["code 75", "code 0"], "{system}");
        assert!(scene.path("runs/runs/2").is_dir(), "{system}");
        assert!(!scene.path("runs/runs/0").exists(), "{system}");
    }
}

#[test]
fn a_refusal_has_the_words_of_the_system() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        let refused = submit(&scene, &[system, "demo", "--queue", "none"], &[("REFUSE", "Unknown queue")]);
        refused.expect_code(2).expect_stderr("refused the job: ").expect_stderr("Unknown queue");
    }
}
