//! `[[stage]]` with the launcher: frozen parameters stay, state is moved correctly, rates follow the stages,
//! and a run resumed anywhere equals an uninterrupted one.

mod average;
mod mistakes;
mod unfreezing;

use std::path::{Path, PathBuf};

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, assert_close, gpt};
use serde_json::Value;

use crate::checkpoints::{FILES, assert_same, tensors};

/// A tiny U-Net in two stages as in the guides: the last layer first, then all, unfrozen in three parts, with
/// half the batch and smaller rates for deeper layers. 4 steps of 12 samples, then 6 of 6. A micro-batch is
/// always half a step: all sums have two terms, and one rank computes the same bits as two.
const UNET: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
train_samples = 24
test_samples = 6
image_size = 16
workers = 1
[model]
name = "unet"
width = 4
depth = 2
[train]
effective_batch = 12
seed = 3
[optim]
name = "adamw"
lr = 0.01
schedule = { name = "linear", warmup = "1 step" }
[memory]
micro_batch = 6
[ema]
decay = 0.9
[checkpoint]
every = "1 step"
keep = 100
[log]
every_steps = 1
[[stage]]
name = "head"
epochs = 2
freeze = ["inc.*", "down*", "up*"]
[[stage]]
name = "full"
steps = 6
effective_batch = 6
micro_batch = 3
lr_factor = 0.5
group = [{ match = ["inc.*", "down*"], lr_factor = 0.1 }]
unfreeze = [
    { at = 0, match = "up*" },
    { at = 0.3333, match = "down*" },
    { at = 0.6667, match = "*" },
]
"#;

/// A tiny GPT in three stages; the second trains less than the first.
const GPT: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 16
test_samples = 4
[model]
name = "gpt"
width = 16
depth = 2
heads = 2
context = 8
[train]
effective_batch = 8
[optim]
lr = 0.01
schedule = { name = "onecycle", rise = 0.5, start_factor = 10, final_factor = 10 }
[memory]
micro_batch = 4
[ema]
decay = 0.9
[checkpoint]
every = "1 step"
keep = 100
[log]
every_steps = 1
[[stage]]
name = "all"
steps = 3
schedule = "continue"
[[stage]]
name = "blocks"
steps = 2
freeze = ["transformer.wte.*", "transformer.wpe.*"]
schedule = "continue"
[[stage]]
name = "last"
epochs = 2
ema = "restart"
freeze = ["transformer.h.0.*"]
unfreeze = [{ at = 0.5, match = "transformer.h.0.*" }]
"#;

fn checkpoint(run: &Run, step: usize) -> PathBuf {
    run.0.checkpoints().join(format!("step-{step:08}"))
}

/// Compares all files of the last checkpoint, bit by bit.
fn assert_same_end(one: &Run, other: &Run, steps: usize) {
    assert_same(&checkpoint(one, steps), &checkpoint(other, steps), &FILES);
}

fn stage_lines(run: &Run) -> Vec<Value> {
    let lines = run.metrics().into_iter();
    lines.filter_map(|line| line.get("stage").filter(|stage| stage.is_object()).cloned()).collect()
}

fn steps_of(run: &Run, key: &str) -> Vec<Value> {
    let lines = run.metrics().into_iter();
    lines.filter(|line| line.get("loss").is_some()).map(|line| line[key].clone()).collect()
}

fn resume(sandbox: &Sandbox, nproc: usize, name: &str, from: &Path, sets: &[&str]) -> Run {
    expect_exit_code(&sandbox.launch_with(nproc, name, sets, &["--resume", from.to_str().unwrap()]), 0);
    sandbox.run(name)
}

#[test]
fn one_stage_equals_a_run_without_stages() {
    let plain = GPT.split("[[stage]]").next().unwrap();
    let plain = plain.replace("[train]\n", "[train]\nsteps = 3\n");
    let sandbox = Sandbox::new(&plain);
    let run = sandbox.train(2, "plain", &[]);
    assert!(stage_lines(&run).is_empty() && steps_of(&run, "stage") == vec![Value::Null; 3]);
    let staged = format!("{}[[stage]]\nname = \"only\"\nsteps = 3\n", plain.replace("steps = 3\n", ""));
    std::fs::write(sandbox.path("recipe.toml"), staged).unwrap();
    let staged = sandbox.train(2, "staged", &[]);
    assert_same_end(&run, &staged, 3);
    assert_eq!(run.per_step("loss"), staged.per_step("loss"));
}

/// Windows of the second stage, which are longer, must not apply to the first: its checkpoints were promised.
#[test]
fn every_stage_keeps_its_own_windows() {
    // 4 steps of one epoch each, then 16 steps of 4 to the epoch.
    let stages = r#"
[checkpoint]
every = "1 epoch"
keep = 1
keep_every = "2 epochs"
[[stage]]
name = "large"
epochs = 4
effective_batch = 32
[[stage]]
name = "small"
epochs = 4
"#;
    let recipe = gpt(20, stages).replace("steps = 20\n", "");
    let sandbox = Sandbox::new(&recipe);
    let run = sandbox.train(1, "run", &[]);
    assert_eq!(run.0.steps().unwrap(), [2, 4, 12, 20]);
    let text = expect_exit_code(&sandbox.ckpt(&["prune", "run"]), 0);
    assert!(text.contains("nothing to remove"), "{text}");
}
