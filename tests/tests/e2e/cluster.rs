//! Trainings on several nodes, which are network namespaces of this machine, against those on one node.

use std::process::Command;

use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::need::Skipped;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::process::{Signal, kill, signal, wait_until};
use dtrain_test_kit::scene::{Finished, Launch, Scene};
use dtrain_tests::programs;
use dtrain_tests::runs::{Run, gpt};

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
fn compare(
    scene: Scene,
    flags: &[&str],
    disturb: impl Fn(&Scene, &Network, &[Launch<'_>]),
) -> Result<(), Skipped> {
    let network = Network::new(2)?;
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
    Ok(())
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
    let Ok(()) = compare(Scene::new(), &[&short[..], &["demo"]].concat(), |_, _, _| {}) else { return };
}

#[test]
fn shakespeare_on_two_nodes_ends_in_the_weights_of_one_node() {
    let Ok(text) = programs::test_data("shakespeare") else { return };
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
    let Ok(()) = compare(Scene::new(), &flags, |_, _, _| {}) else { return };
}

/// A small training with steps enough for a failure between two checkpoints.
fn write_long(scene: &Scene) {
    std::fs::write(scene.path("recipe.toml"), gpt(300, "[checkpoint]\nevery = \"10 steps\"\n")).unwrap();
}

/// The steps before a failure: the last checkpoint is five steps old.
const BEFORE_FAILURE: usize = 15;

/// Compares trainings of [`write_long`].
fn compare_long(disturb: impl Fn(&Scene, &Network, &[Launch<'_>])) -> Result<(), Skipped> {
    let scene = Scene::new();
    write_long(&scene);
    compare(scene, &["recipe.toml"], |scene, network, launches| {
        wait_for_steps(scene, BEFORE_FAILURE);
        disturb(scene, network, launches);
    })
}

#[test]
fn a_killed_worker_of_another_node_does_not_change_the_weights() {
    let Ok(()) = compare_long(|scene, network, _| {
        let here = network[1].processes();
        let worker = scene.workers().into_iter().find(|pid| here.contains(pid)).unwrap();
        signal(worker, Signal::KILL);
    }) else {
        return;
    };
}

#[test]
fn a_silent_partition_does_not_change_the_weights() {
    let Ok(()) = compare_long(|_, network, launches| {
        network.cut(&[1]);
        launches[0].wait_for_stderr("lost n1");
        network.heal();
    }) else {
        return;
    };
}

#[test]
fn a_frozen_node_does_not_change_the_weights() {
    let Ok(()) = compare_long(|_, network, launches| {
        let pids = network[1].processes();
        pids.iter().for_each(|pid| kill(*pid, Signal::STOP));
        launches[0].wait_for_stderr("lost n1");
        pids.iter().for_each(|pid| kill(*pid, Signal::CONT));
    }) else {
        return;
    };
}

/// Without a restart left, the batch system continues the run.
#[test]
fn the_loss_of_a_node_ends_with_75_and_the_next_launch_continues() {
    let Ok(network) = Network::new(2) else { return };
    let scene = Scene::new();
    write_long(&scene);
    expect_success(vec![start(&scene, ".one", None, &[&ONE[..], &["recipe.toml"]].concat()).wait()]);
    let flags = [&NODES[..6], &["--run-dir", "several", "recipe.toml"]].concat();
    let start_all = |name: &str| -> Vec<_> {
        (0..2).map(|node| start(&scene, &format!(".{name}{node}"), Some((&network, node)), &flags)).collect()
    };
    let mut launches = start_all("lost");
    wait_for_steps(&scene, BEFORE_FAILURE);
    let here = network[1].processes();
    let agent = scene.launcher().into_iter().find(|pid| here.contains(pid)).unwrap();
    kill(agent, Signal::KILL);
    assert_ne!(launches.remove(1).wait_leaving_processes().code, Some(0));
    let done = launches.remove(0).wait_leaving_processes();
    done.expect_code(75).expect_stderr("lost node n1").expect_stderr("start it again with --run-dir several");
    network.wait_until_empty();
    expect_success(start_all("again").into_iter().map(Launch::wait_leaving_processes).collect());
    network.wait_until_empty();
    let (one, several) = (run(&scene, "one"), run(&scene, "several"));
    assert!(one.weights() == several.weights(), "the weights differ");
}

/// Copies in memory and no checkpoint in time. Half a step is one micro-batch of one rank: the ranks' number
/// does not change the bits.
const COPIES: &str = r#"
[checkpoint]
every = "100000 steps"
in_memory = true
[memory]
micro_batch = 4
"#;

/// How a node is lost.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    /// Its agent is killed, and another one is started.
    Replaced,
    /// Its agent is killed.
    Killed,
    /// It loses its power: nothing comes from it any more.
    Silent,
}

/// Loses the second of `nodes` nodes. The run resumes from `copies`, and ends in the weights of a run that was not
/// disturbed. Returns what the leader printed.
fn lose_a_node(nodes: usize, shards: bool, loss: Loss, copies: &str) -> Result<String, Skipped> {
    let network = Network::new(nodes)?;
    let scene = Scene::new();
    let batch = format!("effective_batch = {}", 4 * nodes);
    let recipe = gpt(400, COPIES).replace("effective_batch = 8", &batch);
    std::fs::write(scene.path("recipe.toml"), recipe).unwrap();
    let shards = format!("memory.shard_optimizer={shards}");
    let group = if loss == Loss::Replaced { nodes.to_string() } else { format!("1:{nodes}") };
    let start_node = |node: usize, name: &str, run: &str| {
        let sets = ["--set", &shards, "--run-dir", run, "--max-restarts", "3", "recipe.toml"];
        let group = ["--nproc-per-node", "1", "--nnodes", &group, "--rdzv-endpoint", "n0:29500"];
        start(&scene, &format!(".{name}-{run}"), Some((&network, node)), &[&group[..], &sets].concat())
    };
    let start_all =
        |run| (0..nodes).map(|node| start_node(node, &format!("n{node}"), run)).collect::<Vec<_>>();
    expect_success(start_all("whole").into_iter().map(Launch::wait_leaving_processes).collect());
    let mut launches = start_all("several");
    wait_for_steps(&scene, 40);
    let here = network[1].processes();
    let agent = scene.launcher().into_iter().find(|pid| here.contains(pid)).unwrap();
    if loss == Loss::Silent {
        network.cut(&[1]);
    }
    kill(agent, Signal::KILL);
    assert_ne!(launches.remove(1).wait_leaving_processes().code, Some(0));
    launches[0].wait_for_stderr("lost n1");
    if loss == Loss::Replaced {
        launches.push(start_node(1, "new", "several"));
    }
    let done: Vec<Finished> = launches.into_iter().map(Launch::wait_leaving_processes).collect();
    let text = done[0].stderr.clone();
    expect_success(done);
    network.wait_until_empty();
    let line = text.lines().find(|line| line.contains("resumed from ")).unwrap_or_else(|| panic!("{text}"));
    let step = line.split(&format!("resumed from {copies} after step ")).nth(1);
    assert!(step.and_then(|step| step.trim().parse().ok()).is_some_and(|step: u64| step >= 39), "{line}");
    let (whole, several) = (run(&scene, "whole"), run(&scene, "several"));
    assert_eq!(whole.per_step("loss"), several.per_step("loss"));
    assert!(whole.weights() == several.weights(), "the weights differ");
    Ok(text)
}

#[test]
fn a_killed_agent_that_is_replaced_costs_no_step() {
    let Ok(_) = lose_a_node(2, true, Loss::Replaced, "the copy in memory of n0") else { return };
    let Ok(_) = lose_a_node(3, true, Loss::Replaced, "the copies in memory of n0, n2") else { return };
}

#[test]
fn a_killed_agent_that_is_not_replaced_costs_no_step() {
    let Ok(_) = lose_a_node(2, false, Loss::Killed, "the copy in memory") else { return };
    let Ok(_) = lose_a_node(2, true, Loss::Killed, "the copy in memory") else { return };
}

#[test]
fn ranks_do_not_wait_for_a_node_without_power() {
    let Ok(text) = lose_a_node(2, false, Loss::Silent, "the copy in memory") else { return };
    assert!(text.contains("killing rank 0: still running after 2 s"), "{text}");
}
