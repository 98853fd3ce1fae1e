//! Trainings on several nodes, which are network namespaces of this machine, against those on one node.

use std::sync::LazyLock;

use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::need::Skipped;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::process::{Signal, kill, signal, wait_until};
use dtrain_test_kit::scene::{Finished, Launch, Scene};
use dtrain_test_kit::thorough;
use dtrain_tests::programs;
use dtrain_tests::runs::{Run, Sandbox, gpt};

/// Starts `dtrain launch FLAGS RECIPE` in the scene's folder, with one thread per rank.
fn start<'a>(scene: &'a Scene, name: &str, network: Option<(&Network, usize)>, flags: &[&str]) -> Launch<'a> {
    let mut command = programs::launch();
    command.env("CUDA_VISIBLE_DEVICES", "").args(flags);
    scene.mark(&mut command);
    let command = match network {
        Some((network, node)) => network[node].enter(&command),
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

/// The results of a training.
struct Trained {
    losses: Vec<f64>,
    weights: Vec<u8>,
}

impl Trained {
    fn of(run: &Run) -> Self {
        Self { losses: run.per_step("loss"), weights: run.weights() }
    }

    /// Trains on one node with two workers.
    fn on_one_node(scene: &Scene, flags: &[&str]) -> Self {
        expect_success(vec![start(scene, ".one", None, &[&ONE, flags].concat()).wait()]);
        Self::of(&run(scene, "one"))
    }

    /// Fails if a run has computed something else.
    #[track_caller]
    fn expect_same(&self, run: &Run) {
        assert_eq!(self.losses, run.per_step("loss"));
        assert!(self.weights == run.weights(), "the weights differ");
    }
}

/// Trains on two nodes with one worker each, with the disturbance. Returns the run.
fn train_on_two(
    scene: &Scene,
    flags: &[&str],
    disturb: impl Fn(&Network, &[Launch<'_>]),
) -> Result<Run, Skipped> {
    let network = Network::new(2)?;
    let launches: Vec<_> = (0..2)
        .map(|node| start(scene, &format!(".n{node}"), Some((&network, node)), &[&NODES, flags].concat()))
        .collect();
    disturb(&network, &launches);
    expect_success(launches.into_iter().map(Launch::wait_leaving_processes).collect());
    network.wait_until_empty();
    Ok(run(scene, "several"))
}

/// Compares trainings of a recipe on one node and on two.
fn compare(flags: &[&str]) -> Result<(), Skipped> {
    let scene = Scene::new();
    let several = train_on_two(&scene, flags, |_, _| {})?;
    Trained::on_one_node(&scene, flags).expect_same(&several);
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

/// Where a normal check compares two nodes with one.
const SEEN: &str = "nodes::two_nodes_train_as_one_node_with_two_ranks, and the failures in cluster";

#[test]
fn the_demo_on_two_nodes_ends_in_the_weights_of_one_node() {
    if thorough::leaves_out(SEEN) {
        return;
    }
    let short = ["--set", "train.epochs=1", "--set", "data.train_samples=320", "--set", "log.every_steps=1"];
    let Ok(()) = compare(&[&short[..], &["demo"]].concat()) else { return };
}

#[test]
fn shakespeare_on_two_nodes_ends_in_the_weights_of_one_node() {
    if thorough::leaves_out(SEEN) {
        return;
    }
    let Ok(text) = programs::test_data("shakespeare") else { return };
    let root = format!("data.root={}", text.display());
    let short = ["train.steps=8", "optim.schedule={ name = \"constant\" }", "log.every_steps=1"];
    let sets = [root.as_str()].into_iter().chain(short).flat_map(|set| ["--set", set]);
    let Ok(()) = compare(&sets.chain(["shakespeare"]).collect::<Vec<_>>()) else { return };
}

/// A small training with steps enough for a failure between two checkpoints.
fn long() -> Sandbox {
    Sandbox::new(&gpt(250, "[checkpoint]\nevery = \"10 steps\"\n"))
}

/// The result of [`long`] without a failure.
static LONG: LazyLock<Trained> = LazyLock::new(|| Trained::on_one_node(long().scene(), &["recipe.toml"]));

/// The steps before a failure: the last checkpoint is five steps old.
const BEFORE_FAILURE: usize = 15;

/// Compares trainings of [`long`], with and without the disturbance.
fn compare_long(disturb: impl Fn(&Scene, &Network, &[Launch<'_>])) -> Result<(), Skipped> {
    let sandbox = long();
    let scene = sandbox.scene();
    let several = train_on_two(scene, &["recipe.toml"], |network, launches| {
        wait_for_steps(scene, BEFORE_FAILURE);
        disturb(scene, network, launches);
    })?;
    LONG.expect_same(&several);
    Ok(())
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
    let seen = "a_silent_partition_does_not_change_the_weights, the launcher's cluster::frozen, and \
                nodes::a_worker_commits_nothing_after_the_end_of_its_agents_lease";
    if thorough::leaves_out(seen) {
        return;
    }
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
    let sandbox = long();
    let scene = sandbox.scene();
    let flags = [&NODES[..6], &["--run-dir", "several", "recipe.toml"]].concat();
    let start_all = |name: &str| -> Vec<_> {
        (0..2).map(|node| start(scene, &format!(".{name}{node}"), Some((&network, node)), &flags)).collect()
    };
    let mut launches = start_all("lost");
    wait_for_steps(scene, BEFORE_FAILURE);
    let here = network[1].processes();
    let agent = scene.launcher().into_iter().find(|pid| here.contains(pid)).unwrap();
    kill(agent, Signal::KILL);
    assert_ne!(launches.remove(1).wait_leaving_processes().code, Some(0));
    let done = launches.remove(0).wait_leaving_processes();
    done.expect_code(75).expect_stderr("lost node n1").expect_stderr("--run-dir several");
    network.wait_until_empty();
    expect_success(start_all("again").into_iter().map(Launch::wait_leaving_processes).collect());
    network.wait_until_empty();
    LONG.expect_same(&run(scene, "several"));
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

/// The steps before the loss of a node.
const BEFORE_LOSS: usize = 20;

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
    let batch = format!("effective_batch = {}", 4 * nodes);
    let sandbox = Sandbox::new(&gpt(200, COPIES).replace("effective_batch = 8", &batch));
    let scene = sandbox.scene();
    let shards = format!("memory.shard_optimizer={shards}");
    let group = if loss == Loss::Replaced { nodes.to_string() } else { format!("1:{nodes}") };
    let start_node = |node: usize, name: &str| {
        let sets = ["--set", &shards, "--run-dir", "several", "--max-restarts", "3", "recipe.toml"];
        let group = ["--nproc-per-node", "1", "--nnodes", &group, "--rdzv-endpoint", "n0:29500"];
        start(scene, &format!(".{name}"), Some((&network, node)), &[&group[..], &sets].concat())
    };
    let mut launches: Vec<_> = (0..nodes).map(|node| start_node(node, &format!("n{node}"))).collect();
    wait_for_steps(scene, BEFORE_LOSS);
    let here = network[1].processes();
    let agent = scene.launcher().into_iter().find(|pid| here.contains(pid)).unwrap();
    if loss == Loss::Silent {
        network.cut(&[1]);
    }
    kill(agent, Signal::KILL);
    assert_ne!(launches.remove(1).wait_leaving_processes().code, Some(0));
    launches[0].wait_for_stderr("lost n1");
    if loss == Loss::Replaced {
        launches.push(start_node(1, "new"));
    }
    let done: Vec<Finished> = launches.into_iter().map(Launch::wait_leaving_processes).collect();
    let text = done[0].stderr.clone();
    expect_success(done);
    network.wait_until_empty();
    let line = text.lines().find(|line| line.contains("resumed from ")).unwrap_or_else(|| panic!("{text}"));
    let step = line.split(&format!("resumed from {copies} after step ")).nth(1);
    let step: Option<usize> = step.and_then(|step| step.trim().parse().ok());
    assert!(step.is_some_and(|step| step >= BEFORE_LOSS - 1), "{line}");
    // The sum of two halves has one order. That of three parts has the order of nodes.
    let ranks: &[usize] = if nodes == 2 { &[1] } else { &[1, 1, 1] };
    let whole = super::nodes::train(&sandbox, ranks, "whole", &["--set", &shards]);
    Trained::of(&whole).expect_same(&run(scene, "several"));
    Ok(text)
}

#[test]
fn a_killed_agent_that_is_replaced_costs_no_step() {
    // memory_nodes.rs replaces one of three nodes, without the launcher.
    let cases = [(2, "the copy in memory of n0"), (3, "the copies in memory of n0, n2")];
    for &(nodes, copies) in thorough::cases(&cases, 1) {
        let Ok(_) = lose_a_node(nodes, true, Loss::Replaced, copies) else { return };
    }
}

#[test]
fn a_killed_agent_that_is_not_replaced_costs_no_step() {
    // The test below loses a node of a run without shards.
    for &shards in thorough::cases(&[true, false], 1) {
        let Ok(_) = lose_a_node(2, shards, Loss::Killed, "the copy in memory") else { return };
    }
}

#[test]
fn ranks_do_not_wait_for_a_node_without_power() {
    let Ok(text) = lose_a_node(2, false, Loss::Silent, "the copy in memory") else { return };
    assert!(text.contains("killing rank 0: still running after 2 s"), "{text}");
}
