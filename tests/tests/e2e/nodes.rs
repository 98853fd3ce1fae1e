//! Trainings over several nodes: workers with the environment of nodes, which are this machine.

use std::process::{Command, Output};
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_tests::process::output_text;
use dtrain_tests::programs::{without_outer_run, worker};
use dtrain_tests::ranks::{node_environments, start, wait};
use dtrain_tests::runs::{Run, Sandbox, gpt};

const LIMIT: Duration = Duration::from_secs(120);

/// Half a step is one micro-batch of one rank, so that 2 ranks and 1 rank compute the same bits.
const HALVES: &str = r"
[memory]
micro_batch = 4
";

/// Returns a rank's command with these arguments after the recipe.
fn trainer(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = Command::new(worker());
    without_outer_run(&mut command);
    command.env("CUDA_VISIBLE_DEVICES", "").current_dir(sandbox.path(""));
    command.arg("recipe.toml").args(args);
    command
}

/// Trains on nodes with this many ranks each, all with the run directory `run`, and expects success.
fn train(sandbox: &Sandbox, nodes: &[usize], run: &str, args: &[&str]) -> Run {
    let command = |_: &WorkerEnv| trainer(sandbox, &[&["--run-dir", run], args].concat());
    expect_success(&wait(start(&node_environments(nodes), command), LIMIT));
    sandbox.run(run)
}

fn expect_success(outputs: &[Output]) {
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", output_text(output));
    }
}

#[test]
fn two_nodes_train_as_one_node_with_two_ranks() {
    let sandbox = Sandbox::new(&gpt(6, HALVES));
    let one = train(&sandbox, &[2], "one-node", &[]);
    let two = train(&sandbox, &[1, 1], "two-nodes", &[]);
    assert!(one.weights() == two.weights(), "the models differ");
    assert_eq!(one.per_step("loss"), two.per_step("loss"));
}

/// Sums of four ranks have another order within two nodes than in one: rounding differs.
#[test]
fn two_nodes_of_two_ranks_train_as_one_node_of_four() {
    let sandbox = Sandbox::new(&gpt(6, ""));
    let one = train(&sandbox, &[4], "one-node", &[]);
    for nodes in [&[2, 2][..], &[1, 3]] {
        let two = train(&sandbox, nodes, &format!("nodes-{}", nodes[0]), &[]);
        dtrain_tests::runs::assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-5);
    }
}
