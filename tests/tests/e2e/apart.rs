//! Trainings by the launcher on two nodes that share no files: two agents of this machine, each in its own folder.

use std::fs;

use dtrain_common::env::DTRAIN_FAULT;
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::process::{Signal, signal, wait_until};
use dtrain_test_kit::scene::{Finished, Launch, Scene};
use dtrain_tests::programs;
use dtrain_tests::ranks::free_port;
use dtrain_tests::runs::{Run, Sandbox, gpt};

/// Half a step is one micro-batch of one rank. The optimizer's state is in parts, so that ranks send theirs.
const PARTS: &str = r#"
[memory]
micro_batch = 4
shard_optimizer = true
[ema]
decay = 0.9
[checkpoint]
every = "2 steps"
keep = 2
[test]
"#;

/// Starts the agents with `FLAGS recipe.toml`, each with the run directory `run` in its own folder.
fn start<'a>(scene: &'a Scene, flags: &[&str], vars: &[(&str, &str)]) -> Vec<Launch<'a>> {
    let port = free_port().to_string();
    let agent = |node: usize| {
        let folder = scene.path(&format!("node-{node}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("recipe.toml"), gpt(6, PARTS)).unwrap();
        let mut command = programs::launch();
        scene.mark(&mut command);
        command.current_dir(folder).env("CUDA_VISIBLE_DEVICES", "").envs(vars.iter().copied());
        command.args(["--nproc", "1", "--nnodes", "2", "--master-port", &port, "--run-dir", "run"]);
        command.args(["--node-rank", &node.to_string()]).args(flags).arg("recipe.toml");
        scene.start_as(&format!(".node-{node}"), command)
    };
    (0..2).map(agent).collect()
}

fn wait(launches: Vec<Launch<'_>>) -> Vec<Finished> {
    launches.into_iter().map(Launch::wait_leaving_processes).collect()
}

fn run(scene: &Scene, node: usize) -> Run {
    Run(RunDir::new(scene.path(&format!("node-{node}/run"))))
}

#[test]
fn a_run_continues_by_itself_after_a_new_start_and_after_a_killed_worker() {
    let scene = Scene::new();
    for done in wait(start(&scene, &[], &[])) {
        done.expect_code(0);
    }
    let launches = start(&scene, &["--set", "train.steps=100", "--max-restarts", "1"], &[]);
    let later = run(&scene, 0).0.checkpoint(10);
    wait_until("a checkpoint of the second start", || later.exists());
    let folder = fs::canonicalize(scene.path("node-1")).unwrap();
    let is_there = |pid: &&u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
    let workers = scene.workers();
    signal(*workers.iter().find(is_there).unwrap(), Signal::KILL);
    let done = wait(launches);
    for done in &done {
        done.expect_code(0);
    }
    done[0]
        .expect_stderr("resumed from run/checkpoints/step-00000006 after step 6")
        .expect_stderr("restarting all 2");
    let texts = done[0].stderr.matches("resumed from run/checkpoints/").count();
    assert_eq!(texts, 2, "{}", done[0].stderr);
    // Undisturbed, on nodes that share files.
    let sandbox = Sandbox::new(&gpt(100, PARTS));
    let whole = super::nodes::train(&sandbox, &[1, 1], "whole", &[]);
    let resumed = run(&scene, 0);
    assert_eq!(whole.per_step("loss"), resumed.per_step("loss"));
    assert!(whole.weights() == resumed.weights(), "the weights differ");
    assert_eq!(resumed.result().nproc, Some(2));
    let mut names: Vec<_> =
        fs::read_dir(run(&scene, 1).0.root()).unwrap().flatten().map(|it| it.file_name()).collect();
    names.sort();
    assert_eq!(names, ["logs", "recipe.toml"]);
}

#[test]
fn a_full_disk_of_rank_0_is_the_named_cause() {
    let scene = Scene::new();
    let full = [(DTRAIN_FAULT, "write:rank=0,after=40000,error=ENOSPC")];
    let done = wait(start(&scene, &[], &full));
    for done in &done {
        done.expect_code(4);
    }
    done[0].expect_stderr("dtrain: rank 0 (pid").expect_stderr("No space left on device");
    let failure = run(&scene, 0).result().failure.unwrap();
    assert_eq!(failure.rank, 0, "{failure:?}");
}
