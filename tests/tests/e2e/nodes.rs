//! Trainings over several nodes: workers with the environment of nodes, which are this machine.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::Duration;

use dtrain_common::agent_lease::Lease;
use dtrain_common::env::{DTRAIN_LEASE, WorkerEnv};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{output_text, wait_until};
use dtrain_tests::programs::{without_outer_run, worker};
use dtrain_tests::ranks::{node_environments, start, wait};
use dtrain_tests::runs::{Run, Sandbox, assert_close, gpt};

use super::checkpoints;
use super::file_systems::compile;

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
pub(super) fn train(sandbox: &Sandbox, nodes: &[usize], run: &str, args: &[&str]) -> Run {
    let command = |_: &WorkerEnv| trainer(sandbox, &[&["--run-dir", run], args].concat());
    expect_success(&wait(start(&node_environments(nodes), command), LIMIT));
    sandbox.run(run)
}

pub(super) fn expect_success(outputs: &[Output]) {
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

/// The second node sees the run directory, as one mounted read-only, and its parts are written by the first.
#[test]
fn a_node_that_cannot_write_sends_its_parts() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    let sandbox = Sandbox::new(&gpt(6, HALVES));
    let sets = ["--set", "memory.shard_optimizer=true", "--set", "train.steps=3"];
    let both = train(&sandbox, &[1, 1], "both", &sets);
    let command = |env: &WorkerEnv| {
        let mut command = trainer(&sandbox, &[&["--run-dir", "one"], &sets[..]].concat());
        if env.group_rank == 1 {
            command
                .env("LD_PRELOAD", &library)
                .env("ODD_FAULTS", "mkdir=30")
                .env("ODD_ROOT", sandbox.path("one"));
        }
        command
    };
    let outputs = wait(start(&node_environments(&[1, 1]), command), LIMIT);
    expect_success(&outputs);
    let text = output_text(&outputs[1]);
    let words = "this node cannot write its part of a checkpoint into";
    assert!(text.contains(words) && text.contains("mount the file system writable"), "{text}");
    let one = sandbox.run("one");
    assert!(one.weights() == both.weights(), "the models differ");
    // The parts are all there: both nodes continue from them.
    let more = ["--set", "memory.shard_optimizer=true"];
    let [one, both] = ["one", "both"].map(|run| train(&sandbox, &[1, 1], run, &more));
    assert!(one.weights() == both.weights(), "the models differ after a resume");
}

/// Sums of four ranks have another order within two nodes than in one: rounding differs.
#[test]
fn two_nodes_of_two_ranks_train_as_one_node_of_four() {
    let sandbox = Sandbox::new(&gpt(6, ""));
    let one = train(&sandbox, &[4], "one-node", &[]);
    for &nodes in thorough::cases(&[&[2, 2][..], &[1, 3]], 1) {
        let two = train(&sandbox, nodes, &format!("nodes-{}", nodes[0]), &[]);
        assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-5);
    }
}

/// Starts ranks on nodes that do not share files: node N runs in the folder `node-N`, with `--run-dir run`.
fn start_apart(sandbox: &Sandbox, nodes: &[usize], args: &[&str]) -> Vec<Child> {
    start(&node_environments(nodes), |env: &WorkerEnv| {
        let folder = sandbox.path(&format!("node-{}", env.group_rank));
        fs::create_dir_all(&folder).unwrap();
        let mut command = trainer(sandbox, &[&["--run-dir", "run"], args].concat());
        fs::copy(sandbox.path("recipe.toml"), folder.join("recipe.toml")).unwrap();
        command.current_dir(folder);
        command
    })
}

/// Moves the run of node 0 to `name`, and checks that the other nodes have no run.
fn take_run(sandbox: &Sandbox, nodes: usize, name: &str) -> Run {
    for node in 1..nodes {
        assert!(!sandbox.path(&format!("node-{node}/run")).exists(), "node {node} has a run");
    }
    fs::rename(sandbox.path("node-0/run"), sandbox.path(name)).unwrap();
    sandbox.run(name)
}

/// Checkpoints with an average, sharded optimizer state, and a test of the best checkpoint.
const RICH: &str = r#"
[memory]
micro_batch = 2
shard_optimizer = true
[ema]
decay = 0.9
[checkpoint]
every = "2 steps"
keep = 10
best = "min loss"
[test]
"#;

pub(super) fn checkpoint_files(folder: &Path) -> [Vec<u8>; 3] {
    checkpoints::FILES.map(|name| fs::read(folder.join(name)).unwrap())
}

#[test]
fn nodes_that_share_no_files_write_the_same_checkpoints() {
    for &nodes in thorough::cases(&[&[1, 1][..], &[2, 2]], 1) {
        let sandbox = Sandbox::new(&gpt(6, RICH));
        let shared = train(&sandbox, nodes, "shared", &[]);
        expect_success(&wait(start_apart(&sandbox, nodes, &[]), LIMIT));
        let apart = take_run(&sandbox, 2, "apart");
        for step in [2, 4, 6] {
            let (one, other) = (shared.0.checkpoint(step), apart.0.checkpoint(step));
            assert!(checkpoint_files(&one) == checkpoint_files(&other), "{nodes:?}: step {step} differs");
            dtrain_common::manifest::Manifest::read(&other).unwrap().verify(&other).unwrap();
        }
        assert!(!shared.result().test.is_empty(), "{nodes:?}");
        assert_eq!(shared.result().test, apart.result().test, "{nodes:?}");
    }
}

#[test]
fn a_run_without_shared_files_resumes_on_other_nodes() {
    // The second training ends like the first, whatever the nodes: bitwise with equal numbers of ranks.
    let cases = [(&[1, 1][..], &[1, 1][..]), (&[2, 1], &[1]), (&[1, 1], &[2, 1]), (&[2, 2], &[1, 3])];
    for &(before, after) in thorough::cases(&cases, 2) {
        let sandbox = Sandbox::new(&gpt(6, RICH).replace("effective_batch = 8", "effective_batch = 12"));
        expect_success(&wait(start_apart(&sandbox, before, &[]), LIMIT));
        let whole = take_run(&sandbox, before.len(), "whole");
        let mut ranks = start_apart(&sandbox, before, &["--set", "train.steps=60"]);
        let checkpoint = sandbox.path("node-0/run/checkpoints/step-00000004/manifest.json");
        wait_until("a checkpoint", || checkpoint.exists());
        ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
        wait(ranks, LIMIT);
        let from = sandbox.path("from");
        fs::rename(sandbox.path("node-0/run/checkpoints/step-00000004"), &from).unwrap();
        fs::remove_dir_all(sandbox.path("node-0/run")).unwrap();
        // Only node 0 has the checkpoint.
        fs::rename(&from, sandbox.path("node-0/from")).unwrap();
        expect_success(&wait(start_apart(&sandbox, after, &["--resume", "from"]), LIMIT));
        let resumed = take_run(&sandbox, after.len(), "resumed");
        let losses = [whole.per_step("loss")[4..].to_vec(), resumed.per_step("loss")];
        assert_close(&losses[0], &losses[1], 1e-5);
        if before == after {
            let last = |run: &Run| checkpoint_files(&run.0.checkpoint(6));
            assert!(last(&whole) == last(&resumed), "{before:?} to {after:?}");
        }
    }
}

#[test]
fn a_later_checkpoint_on_another_node_than_rank_0s_is_named() {
    let sandbox = Sandbox::new(&gpt(2, ""));
    expect_success(&wait(start_apart(&sandbox, &[1, 1], &[]), LIMIT));
    fs::rename(sandbox.path("node-0/run"), sandbox.path("node-1/run")).unwrap();
    let outputs = wait(start_apart(&sandbox, &[1, 1], &[]), LIMIT);
    expect_success(&outputs);
    let text = output_text(&outputs[1]);
    assert!(text.contains("step-00000002, but the run begins after step 0"), "{text}");
}

#[test]
fn a_shared_run_directory_may_have_another_path_on_a_node() {
    let sandbox = Sandbox::new(&gpt(6, RICH));
    fs::create_dir_all(sandbox.path("node-0/run")).unwrap();
    fs::create_dir_all(sandbox.path("node-1")).unwrap();
    std::os::unix::fs::symlink(sandbox.path("node-0/run"), sandbox.path("node-1/run")).unwrap();
    for steps in ["train.steps=4", "train.steps=6"] {
        let outputs = wait(start_apart(&sandbox, &[1, 1], &["--set", steps]), LIMIT);
        expect_success(&outputs);
        let text = output_text(&outputs[0]);
        assert!(!text.contains("rank 0 gathers"), "{text}");
    }
    let temporary = fs::read_dir(sandbox.path("node-0/run")).unwrap().flatten();
    let names: Vec<_> = temporary.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.starts_with(".dtrain-")), "{names:?}");
}

#[test]
fn different_programs_are_an_error_of_all_ranks() {
    let sandbox = Sandbox::new(&gpt(6, ""));
    let outputs = wait(
        start(&node_environments(&[1, 1]), |env| {
            let sets = ["--set", "optim.lr=0.02"];
            trainer(&sandbox, &[&["--run-dir", "run"], &sets[..2 * env.rank]].concat())
        }),
        LIMIT,
    );
    expect_difference(&outputs, "optim.lr: 0.01 on rank 0");
    assert!(!sandbox.path("run/checkpoints").exists());
}

fn expect_difference(outputs: &[Output], named: &str) {
    for (rank, output) in outputs.iter().enumerate() {
        assert_eq!(output.status.code(), Some(2), "rank {rank}: {}", output_text(output));
    }
    let text = output_text(&outputs[0]);
    assert!(text.contains(named) && text.contains("on rank 1 ("), "{text}");
}

#[test]
fn different_data_is_an_error_of_all_ranks() {
    let generated = "kind = \"generated\"\ntrain_samples = 32\ntest_samples = 4";
    let recipe = gpt(2, "").replace(generated, "kind = \"text\"\nroot = \"text\"");
    let sandbox = Sandbox::new(&recipe);
    for (node, letters) in [("node-0", "abcdefgh"), ("node-1", "abcdefgi")] {
        fs::create_dir_all(sandbox.path(node).join("text")).unwrap();
        fs::write(sandbox.path(node).join("text/book.txt"), letters.repeat(100)).unwrap();
    }
    expect_difference(&wait(start_apart(&sandbox, &[1, 1], &[]), LIMIT), "data: fingerprint");
}

/// Frozen weights stay as each node has read them.
#[test]
fn different_files_of_the_model_are_an_error_of_all_ranks() {
    let sandbox = Sandbox::new(&gpt(2, ""));
    let weights = train(&sandbox, &[1], "first", &[]).weights();
    for (node, last) in [(0, weights[weights.len() - 1]), (1, 77)] {
        let folder = sandbox.path(&format!("node-{node}"));
        fs::create_dir_all(&folder).unwrap();
        let content = [&weights[..weights.len() - 1], &[last]].concat();
        fs::write(folder.join("weights.safetensors"), content).unwrap();
    }
    let sets =
        ["--set", "model.weights=weights.safetensors", "--set", "model.freeze=[\"transformer.wte.*\"]"];
    expect_difference(&wait(start_apart(&sandbox, &[1, 1], &sets), LIMIT), "model.weights: hash");
}

#[test]
fn nodes_that_share_no_files_evaluate_rank_0s_checkpoint() {
    let sandbox = Sandbox::new(&gpt(2, RICH));
    expect_success(&wait(start_apart(&sandbox, &[1, 1], &[]), LIMIT));
    let job = r#"{"job":"eval","checkpoint":"run","json":true}"#;
    let outputs = wait(start_apart(&sandbox, &[1, 1], &["--job", job]), LIMIT);
    expect_success(&outputs);
    let figures: serde_json::Value = serde_json::from_slice(&outputs[0].stdout).unwrap();
    let tested = sandbox.run("node-0/run").result().test;
    assert_eq!(figures["loss"].as_f64(), tested.get("loss").copied(), "{figures}");
}

#[test]
fn a_worker_commits_nothing_after_the_end_of_its_agents_lease() {
    let sandbox = Sandbox::new(&gpt(6, "[checkpoint]\nevery = \"1 step\"\n"));
    let path = sandbox.path("lease");
    let lease = Lease::create(&path).unwrap();
    for (end, is_over) in [(None, false), (Some(Lease::now()), true)] {
        lease.write(end).unwrap();
        let run = format!("run-{is_over}");
        let outputs = wait(
            start(&node_environments(&[1]), |_| {
                let mut command = trainer(&sandbox, &["--run-dir", &run]);
                command.env(DTRAIN_LEASE, &path);
                command
            }),
            LIMIT,
        );
        let text = output_text(&outputs[0]);
        assert_eq!(outputs[0].status.code(), Some(i32::from(is_over)), "{text}");
        assert_eq!(text.contains("has lost the leader"), is_over, "{text}");
        let run = sandbox.run(&run);
        assert_eq!(run.0.latest().exists(), !is_over);
        assert_eq!(run.0.steps().unwrap_or_default().is_empty(), is_over);
        assert_eq!(run.0.result().exists(), !is_over);
    }
}
