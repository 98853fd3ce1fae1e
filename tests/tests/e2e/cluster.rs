//! Trainings on several nodes, which are network namespaces of this machine, against those on one node.

use std::process::Command;

use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::process::{Signal, kill, signal, wait_until};
use dtrain_test_kit::scene::{Finished, Launch, Scene};
use dtrain_tests::programs;
use dtrain_tests::runs::Run;

/// Starts `dtrain launch FLAGS RECIPE` in the scene's folder, with one thread per rank.
fn start<'a>(scene: &'a Scene, name: &str, network: Option<(&Network, usize)>, flags: &[&str]) -> Launch<'a> {
    let mut command = programs::launch();
    command.env("CUDA_VISIBLE_DEVICES", "").args(flags);
    scene.mark(&mut command);
    let command: Command = match network {
        Some((network, node)) => {
            let folder = scene.path("");
            network[node].enter(command.current_dir(folder))
        }
        None => command,
    };
    scene.start_as(name, command)
}

fn run(scene: &Scene, name: &str) -> Run {
    Run(RunDir::new(scene.path(name)))
}

#[track_caller]
fn expect_success(done: Vec<Finished>) {
    for (node, done) in done.iter().enumerate() {
        assert_eq!(done.code, Some(0), "n{node}:\n{}", done.stderr);
    }
}

const ONE: [&str; 4] = ["--nproc", "2", "--run-dir", "one"];
const NODES: [&str; 10] = [
    "--nproc-per-node",
    "1",
    "--nnodes",
    "2",
    "--rdzv-endpoint",
    "n0:29500",
    "--max-restarts",
    "3",
    "--run-dir",
    "several",
];

/// Trains a recipe on one node with two workers, and on two nodes with one worker each; with the disturbance.
fn compare(flags: &[&str], disturb: impl Fn(&Scene, &Network, &[Launch<'_>])) {
    let Some(network) = Network::new(2) else { return };
    let scene = Scene::new();
    expect_success(vec![start(&scene, ".one", None, &[&ONE, flags].concat()).wait()]);
    let launches: Vec<_> = (0..2)
        .map(|node| start(&scene, &format!(".n{node}"), Some((&network, node)), &[&NODES, flags].concat()))
        .collect();
    disturb(&scene, &network, &launches);
    expect_success(launches.into_iter().map(Launch::wait_leaving_processes).collect());
    network.wait_until_empty();
    let (one, several) = (run(&scene, "one"), run(&scene, "several"));
    assert_eq!(one.per_step("loss"), several.per_step("loss"));
    assert!(one.weights() == several.weights(), "the weights differ");
}

/// Waits until the run on several nodes has taken this number of steps.
fn wait_for_steps(scene: &Scene, steps: usize) {
    let path = scene.path("several/metrics.jsonl");
    wait_until("the first steps", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"loss\"")).count() >= steps
    });
}

#[test]
fn the_demo_on_two_nodes_ends_in_the_weights_of_one_node() {
    let short = ["--set", "train.epochs=1", "--set", "data.train_samples=320", "--set", "log.every_steps=1"];
    compare(&[&short[..], &["demo"]].concat(), |_, _, _| {});
}

#[test]
fn shakespeare_on_two_nodes_ends_in_the_weights_of_one_node() {
    let Some(text) = programs::test_data("shakespeare") else { return };
    let root = format!("data.root={}", text.display());
    let short = "optim.schedule={ name = \"constant\" }";
    let flags = [
        "--set",
        &root,
        "--set",
        "train.steps=8",
        "--set",
        short,
        "--set",
        "log.every_steps=1",
        "shakespeare",
    ];
    compare(&flags, |_, _, _| {});
}

/// The demo with steps enough for a failure between two checkpoints.
const LONG: [&str; 9] = [
    "--set",
    "train.epochs=4",
    "--set",
    "data.train_samples=320",
    "--set",
    "log.every_steps=1",
    "--set",
    "checkpoint.every=3 steps",
    "demo",
];

#[test]
fn a_killed_worker_of_another_node_does_not_change_the_weights() {
    compare(&LONG, |scene, network, _| {
        wait_for_steps(scene, 6);
        let here = network[1].processes();
        let worker = scene.workers().into_iter().find(|pid| here.contains(pid)).unwrap();
        signal(worker, Signal::KILL);
    });
}

#[test]
fn a_silent_partition_does_not_change_the_weights() {
    compare(&LONG, |scene, network, launches| {
        wait_for_steps(scene, 6);
        network.cut(&[1]);
        launches[0].wait_for_stderr("lost n1");
        network.heal();
    });
}

#[test]
fn a_frozen_node_does_not_change_the_weights() {
    compare(&LONG, |scene, network, launches| {
        wait_for_steps(scene, 6);
        let pids = network[1].processes();
        pids.iter().for_each(|pid| kill(*pid, Signal::STOP));
        launches[0].wait_for_stderr("lost n1");
        pids.iter().for_each(|pid| kill(*pid, Signal::CONT));
    });
}
