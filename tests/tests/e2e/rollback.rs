//! Rollback to an earlier checkpoint: no checkpoint is lost, and later ones are not used automatically.

use std::fs;
use std::path::Path;
use std::time::Duration;

use dtrain_common::manifest::Manifest;
use dtrain_tests::process::{Signal, expect_exit_code, output_text, signal};
use dtrain_tests::runs::{Run, Sandbox, gpt};

/// A checkpoint at every second step.
const EVERY_OTHER: &str = "[checkpoint]\nevery = \"2 steps\"\nkeep = 2\n";

fn own(run: &Run, step: u64) -> String {
    run.0.checkpoint(step).display().to_string()
}

#[track_caller]
fn is_whole(run: &Run, steps: &[u64], latest: u64) {
    assert_eq!(run.0.steps().unwrap(), steps);
    assert_eq!(run.0.linked(&run.0.latest()), Some(latest));
    for step in steps {
        let folder = run.0.checkpoint(*step);
        Manifest::read(&folder).unwrap().verify(&folder).unwrap();
    }
}

#[test]
fn new_checkpoints_after_a_rollback_are_kept() {
    let sandbox = Sandbox::new(&gpt(16, EVERY_OTHER));
    let run = sandbox.train(1, "run", &["checkpoint.keep=9"]);
    let weights = run.weights();
    // Stopped early. If the later checkpoints stayed, each new one would be the oldest and be removed.
    let sets = ["train.steps=10"];
    let text = expect_exit_code(&sandbox.launch_with(1, "run", &sets, &["--resume", &own(&run, 4)]), 0);
    assert!(text.contains("set aside 6 later checkpoints (steps 6 to 16) in"), "{text}");
    is_whole(&run, &[8, 10], 10);
    let aside = run.0.set_aside().unwrap();
    assert_eq!(aside[0].steps, [6, 8, 10, 12, 14, 16]);
    let rollback = run.metrics().into_iter().find_map(|line| line.get("rollback").cloned());
    let rollback = rollback.unwrap();
    assert_eq!((&rollback["from"], &rollback["to"]), (&16.into(), &4.into()));
    assert_eq!(run.per_step("step"), (1..=10).map(f64::from).collect::<Vec<_>>());

    // The same run resumes from its newest checkpoint, not from those set aside.
    let text = expect_exit_code(&sandbox.launch(1, "run", &[]), 0);
    assert!(text.contains("after step 10"), "{text}");
    is_whole(&run, &[14, 16], 16);
    assert_eq!(run.weights(), weights);

    // Checkpoints that were set aside are listed, can be loaded, and can be restored.
    let text = expect_exit_code(&sandbox.ckpt(&["ls", "run"]), 0);
    assert!(text.contains("rollback-1: set aside when the run went back from step 16 to step 4"), "{text}");
    let path = aside[0].folder.join("step-00000012");
    let path = path.to_str().unwrap();
    expect_exit_code(&sandbox.ckpt(&["verify", path]), 0);
    let text = expect_exit_code(&sandbox.launch_with(1, "run", &[], &["--resume", path]), 0);
    assert!(text.contains("after step 12"), "{text}");
    assert_eq!(run.weights(), weights);
    assert!(!Path::new(path).exists());
    assert_eq!(run.0.set_aside().unwrap().len(), 2);

    // Only `--rollbacks` removes them.
    expect_exit_code(&sandbox.ckpt(&["prune", "run"]), 0);
    assert_eq!(run.0.set_aside().unwrap().len(), 2);
    let text = expect_exit_code(&sandbox.ckpt(&["prune", "run", "--rollbacks"]), 0);
    assert!(text.contains("removed rollback-1"), "{text}");
    assert!(run.0.set_aside().unwrap().is_empty());
}

/// Rolls back by a command, ends the launch with signal `by` after some steps, and runs the same command
/// again. Returns the exit code of the first launch.
#[track_caller]
fn expect_continuation_by_the_same_command(by: Signal) -> Option<i32> {
    let sandbox = Sandbox::new(&gpt(16, EVERY_OTHER));
    let long = ["train.steps=4000", "checkpoint.keep=3"];
    let run = sandbox.train(1, "run", &["train.steps=16", "checkpoint.keep=9"]);
    let from = own(&run, 4);
    let more = ["--resume", from.as_str()];
    let mut command = sandbox.command(2, "run", &long, &more);
    let mut child = command.spawn().unwrap();
    let latest = run.0.latest();
    // After the rollback's step, before the old newest: there, new checkpoints would have been the oldest.
    while fs::read_link(&latest).is_ok_and(|target| target.ends_with("step-00000016"))
        || run.0.linked(&latest).is_none_or(|step| step < 6)
    {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(child.id(), by);
    let code = child.wait().unwrap().code();
    // A killed launcher leaves a trainer that is still ending.
    drop(run.0.claim_training(Duration::from_secs(60)).unwrap());
    let stopped = run.0.linked(&latest).expect("latest points to a checkpoint");
    if code.is_some() {
        let result = run.result();
        assert_eq!(result.steps, Some(stopped));
        assert_eq!(result.resumed_from.as_deref(), Some(Path::new(&from)));
    }

    let sets = [format!("train.steps={}", stopped + 2), "checkpoint.keep=3".to_owned()];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let text = expect_exit_code(&sandbox.launch_with(2, "run", &sets, &more), 0);
    assert!(text.contains(&format!("after step {stopped}")), "{text}");
    assert!(text.contains("the newest since the run started from"), "{text}");
    assert_eq!(run.0.set_aside().unwrap().len(), 1);
    let steps = run.0.steps().unwrap();
    assert!(steps.len() <= 3 && steps.last() == Some(&(stopped + 2)), "{steps:?}");
    assert_eq!(run.result().resumed_from.as_deref(), Some(Path::new(&from)));
    // It has ended well: the command now rolls back again, if step 4 still exists.
    let text = output_text(&sandbox.launch_with(1, "run", &sets, &more));
    assert!(!text.contains("the newest since the run started from"), "{text}");
    code
}

#[test]
fn the_same_command_continues_a_stopped_rollback() {
    assert_eq!(expect_continuation_by_the_same_command(Signal::TERM), Some(75));
}

#[test]
fn the_same_command_continues_a_crashed_rollback() {
    assert_eq!(expect_continuation_by_the_same_command(Signal::KILL), None);
}

#[test]
fn a_restored_best_checkpoint_is_known_on_all_ranks() {
    let more = format!("{EVERY_OTHER}best = \"min loss\"\n[test]\nweights = \"best\"\n");
    let sandbox = Sandbox::new(&gpt(16, &more));
    let run = sandbox.train(1, "run", &["checkpoint.keep=9", "train.steps=8"]);
    let best = run.result().best.unwrap().step;
    assert!(best > 4, "the loss falls: {best}");
    let sets = ["checkpoint.keep=9", "train.steps=6"];
    expect_exit_code(&sandbox.launch_with(1, "run", &sets, &["--resume", &own(&run, 4)]), 0);
    let back = run.0.checkpoints().join(format!("rollback-1/step-{best:08}"));
    let sets = ["checkpoint.keep=9".to_owned(), format!("train.steps={best}")];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let more = ["--resume", back.to_str().unwrap()];
    expect_exit_code(&sandbox.launch_with(2, "run", &sets, &more), 0);
    assert_eq!(run.result().best.unwrap().step, best);
    assert_eq!(run.0.linked(&run.0.best()), Some(best));
}

#[test]
fn a_rejected_rollback_moves_nothing() {
    let sandbox = Sandbox::new(&gpt(16, EVERY_OTHER));
    let run = sandbox.train(1, "run", &["checkpoint.keep=9"]);
    let model = run.0.checkpoint(4).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&model, bytes).unwrap();
    expect_exit_code(&sandbox.launch_with(1, "run", &[], &["--resume", &own(&run, 4)]), 2);
    assert_eq!(run.0.linked(&run.0.latest()), Some(16));
    assert_eq!(run.0.steps().unwrap(), [2, 4, 6, 8, 10, 12, 14, 16]);
    assert!(run.0.set_aside().unwrap().is_empty());
}

#[test]
fn a_run_without_new_checkpoints_resumes_from_the_same_one_again() {
    let sandbox = Sandbox::new(&gpt(8, EVERY_OTHER));
    sandbox.train(1, "other", &["train.steps=4"]);
    let more = ["--resume", "other/checkpoints/step-00000004"];
    let mut command = sandbox.command(2, "run", &[], &more);
    command.env("DTRAIN_FAULT", "write:rank=0,after=0,error=EIO");
    expect_exit_code(&command.output().unwrap(), 4);
    let run = sandbox.run("run");
    assert!(run.0.steps().unwrap().is_empty());
    // It never starts from the beginning by itself.
    let text = expect_exit_code(&sandbox.launch(2, "run", &[]), 2);
    assert!(text.contains("has written no checkpoint; repeat --resume /"), "{text}");
    let text = expect_exit_code(&sandbox.launch_with(2, "run", &[], &more), 0);
    assert!(text.contains("after step 4"), "{text}");
    assert_eq!(run.per_step("step"), [5.0, 6.0, 7.0, 8.0]);
}
