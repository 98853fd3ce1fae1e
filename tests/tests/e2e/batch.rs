//! Trainings by scripts and manifests of `dtrain batch`, on stand-ins of the systems: a start is stopped, the job
//! starts again by its own means, and ends with the weights of a run without the stop.

use std::fs;
use std::path::Path;

use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::scene::Scene;
use dtrain_test_kit::systems::Queue;
use dtrain_test_kit::systems::pods::{Cluster, End};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{Signal, wait_until};
use dtrain_tests::programs;
use dtrain_tests::runs::{Run, gpt};

/// More steps than any start takes.
const ENDLESS: u64 = 10_000_000;
/// Steps of the second start.
const MORE: u64 = 20;
/// No checkpoint but those of a stop and of the end; and half a step is one micro-batch of one rank.
const RARE: &str = "[checkpoint]\nevery = \"10000000 steps\"\n[memory]\nmicro_batch = 4\n";
const JOB: [&str; 5] = ["recipe.toml", "--nodes", "2", "--name", "job"];

fn write_recipe(folder: &Path, steps: u64) {
    fs::write(folder.join("recipe.toml"), gpt(steps, RARE)).unwrap();
}

fn run(folder: &Path, name: &str) -> Run {
    Run(RunDir::new(folder.join(name)))
}

fn has_steps(folder: &Path) -> bool {
    fs::read_to_string(folder.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() >= 5)
}

/// Checks that the first start ended with a checkpoint, and gives the recipe of `folder` an end after some more steps.
#[track_caller]
fn let_end(folder: &Path, stopped: &Run) -> u64 {
    let steps = stopped.result().steps.unwrap();
    assert!(steps >= 1 && stopped.0.checkpoint(steps).is_dir(), "step {steps}");
    write_recipe(folder, steps + MORE);
    steps
}

/// Compares with an uninterrupted training of two ranks.
#[track_caller]
fn compare(scene: &Scene, folder: &Path, resumed: &Run) {
    let mut command = programs::launch();
    scene.mark(&mut command).current_dir(folder).env("CUDA_VISIBLE_DEVICES", "");
    command.args(["--nproc", "2", "--run-dir", "whole", "recipe.toml"]);
    scene.start_as(".whole", command).wait().expect_code(0);
    let whole = run(folder, "whole");
    assert_eq!(resumed.result().steps, whole.result().steps);
    assert_eq!(resumed.per_step("loss"), whole.per_step("loss"));
    assert!(resumed.weights() == whole.weights(), "the weights differ");
}

/// Trains by a script. `limit` are flags that stop the first start; without them it gets a signal.
fn train_by_script(system: &'static str, limit: &[&str]) {
    let scene = Scene::new();
    let folder = scene.path("");
    write_recipe(&folder, ENDLESS);
    // A node of PBS begins with an empty environment.
    fs::write(scene.path(".setup.sh"), "export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=\n").unwrap();
    let mut queue = Queue::new(&scene, system);
    queue.submit(&[&JOB[..], &["--env-setup", ".setup.sh"], limit].concat()).expect_code(0);
    let resumed = run(&folder, "runs/job");
    let launch = queue.start(None).expect("a job waits");
    if limit.is_empty() {
        wait_until("some steps", || has_steps(resumed.0.root()));
        queue.signal(Signal::USR1);
    }
    let stopped = queue.wait(launch);
    stopped.expect_code(75).expect_stderr("dtrain: requeue 1 of 10");
    // A shell that ends before its launcher would leave it alone on its node.
    assert!(!stopped.stderr.contains("ended by a signal"), "{}", stopped.stderr);
    let steps = let_end(&folder, &resumed);
    let done = queue.drive(None);
    assert_eq!(done.len(), 1, "{system}: {}", done[0].stderr);
    done[0].expect_code(0).expect_stderr(&format!("after step {steps}"));
    compare(&scene, &folder, &resumed);
}

/// Time enough to begin on a busy machine; the limit itself is far away.
const LIMIT: [&str; 4] = ["--time", "60 s", "--signal-before", "51 s"];

/// The launcher's tests run programs in the same scripts, and compare the limits.
fn is_seen_elsewhere() -> bool {
    thorough::leaves_out("the limit: launch::batch::systems; the resume: LSF, and e2e::stopping")
}

#[test]
fn pbs_resumes_a_training_after_its_time_limit() {
    if is_seen_elsewhere() {
        return;
    }
    train_by_script("pbs", &LIMIT);
}

#[test]
fn lsf_resumes_a_training_after_a_signal() {
    train_by_script("lsf", &[]);
}

/// Flux gives a signal to the shell of the job only.
#[test]
fn flux_resumes_a_training_after_its_time_limit() {
    if is_seen_elsewhere() {
        return;
    }
    train_by_script("flux", &LIMIT);
}

/// A drained node sends its pod SIGTERM; the other pod stops with it.
#[test]
fn pods_resume_a_training_after_an_eviction() {
    if thorough::leaves_out("an eviction, and two pods: launch::batch::pods; the resume: LSF") {
        return;
    }
    let Ok(network) = Network::new(2) else { return };
    let scene = Scene::new();
    let cluster = Cluster::new(&scene, &network, &[("OMP_NUM_THREADS", "1"), ("CUDA_VISIBLE_DEVICES", "")]);
    let folder = cluster.claim("scratch");
    write_recipe(&folder, ENDLESS);
    let job = ["/mnt/recipe.toml", "--nodes", "2", "--name", "job", "--run-dir", "/mnt/runs/job"];
    let image = ["--container", "team/dtrain", "--volume", "scratch:/mnt"];
    Queue::new(&scene, "k8s").submit(&[&job[..], &image].concat()).expect_code(0);
    let resumed = run(&folder, "runs/job");
    let mut job = cluster.job("job");
    job.run_until("some steps", |_| has_steps(resumed.0.root()));
    job.evict(1);
    // Both end with the same request, long before one of them is replaced.
    job.run_until("the end of the first start", |job| job.ended.len() == 2);
    assert_eq!((job.codes(0), job.codes(1)), (vec![Some(75)], vec![Some(75)]), "{}", job.stderr());
    let steps = let_end(&folder, &resumed);
    assert_eq!(job.run(), End::Complete, "{}", job.stderr());
    assert_eq!((job.codes(0).len(), job.codes(1).len()), (2, 2), "{}", job.stderr());
    assert!(job.stderr().contains(&format!("after step {steps}")), "{}", job.stderr());
    network.wait_until_empty();
    compare(&scene, &folder, &resumed);
}
