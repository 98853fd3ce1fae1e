//! Copies of the state in memory: a worker's death costs no step.

use std::process::Stdio;

use dtrain_test_kit::thorough;
use dtrain_tests::process::{Signal, expect_exit_code, rank_pid, signal};
use dtrain_tests::runs::Sandbox;

const RECIPE: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 64
test_samples = 4
[model]
name = "gpt"
width = 32
depth = 2
heads = 2
context = 32
[train]
effective_batch = 12
steps = 120
[optim]
lr = 0.01
[ema]
decay = 0.9
[checkpoint]
every = "10000 steps"
in_memory = true
[log]
every_steps = 1
"#;

#[test]
fn a_run_continues_with_the_next_step_after_a_death() {
    let cases = [(2, "true"), (1, "false"), (2, "false"), (3, "true")];
    for &(ranks, shard) in thorough::cases(&cases, 1) {
        let sandbox = Sandbox::new(RECIPE);
        let shard = format!("memory.shard_optimizer={shard}");
        let mut command = sandbox.command(ranks, "run", &[&shard], &["--max-restarts", "2"]);
        let launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        sandbox.run("run").wait_for_lines(20);
        signal(rank_pid(launcher.id(), ranks - 1), Signal::KILL);
        let text = expect_exit_code(&launcher.wait_with_output().unwrap(), 0);
        let resumed = text
            .lines()
            .find(|line| line.contains("resumed from the copy in memory after step "))
            .unwrap_or_else(|| panic!("no copy was used: {text}"));
        let step: usize = resumed
            .split("after step ")
            .nth(1)
            .and_then(|rest| rest.split(':').next()?.parse().ok())
            .unwrap();
        assert!(step >= 19, "{resumed}");

        // Every step is there once, and the end result is that of an undisturbed run.
        let run = sandbox.run("run");
        assert_eq!(run.per_step("loss").len(), 120);
        let whole = sandbox.train(ranks, "whole", &[&shard, "checkpoint.in_memory=false"]);
        assert_eq!(run.weights(), whole.weights());
        assert_eq!(run.per_step("loss"), whole.per_step("loss"));
    }
}

/// When the worker dies, the checkpoint on the disk has just been written, or is due: the restarted run evaluates it, and
/// writes it if needed.
#[test]
fn evaluation_and_checkpoint_after_the_step_are_made_up() {
    let sandbox = Sandbox::new(RECIPE);
    let sets = ["checkpoint.every=20 steps", "data.test_samples=16000", "train.steps=24"];
    let mut command = sandbox.command(2, "run", &sets, &["--max-restarts", "1"]);
    let launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The copy of step 20 is written within this sleep; the evaluation takes far longer.
    sandbox.run("run").wait_for_lines(20);
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(rank_pid(launcher.id(), 0), Signal::KILL);
    let text = expect_exit_code(&launcher.wait_with_output().unwrap(), 0);
    let resumed = ["the copy in memory", "run/checkpoints/step-00000020"];
    assert!(
        resumed.iter().any(|from| text.contains(&format!("resumed from {from} after step 20"))),
        "{text}"
    );
    let run = sandbox.run("run");
    assert_eq!(run.evaluations()[0]["step"], 20);
    assert!(run.0.checkpoint(20).is_dir(), "{text}");
}
