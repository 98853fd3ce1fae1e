//! Checkpoints that several ranks write during the training: their contents, disk failures, and the choice of
//! the checkpoint to resume from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dtrain_common::files::symlink_atomic;
use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::runs::{Run, Sandbox, assert_close, gpt, resnet18};
use dtrain_worker::models::TensorFile;
use tch::Tensor;

/// A checkpoint at every step. A micro-batch is half a step, so that one rank and two compute the same bits.
const EVERY_STEP: &str = r#"
[memory]
micro_batch = 4
[ema]
decay = 0.9
[checkpoint]
every = "1 step"
keep = 100
"#;

pub(crate) const FILES: [&str; 3] =
    ["model.safetensors", "optimizer-00000-of-00001.safetensors", "ema.safetensors"];

pub(crate) fn tensors(folder: &Path, file: &str) -> BTreeMap<String, Tensor> {
    let file = TensorFile::open(&folder.join(file)).unwrap();
    let read = |name: String| (name.clone(), file.read(&name).unwrap());
    file.names().into_iter().map(read).collect()
}

/// Compares tensors bit by bit, also if the files are divided differently.
pub(crate) fn assert_same(one: &Path, other: &Path, files: &[&str]) {
    for file in files {
        let path = other.join(file);
        let (one, other) = (tensors(one, file), tensors(other, file));
        assert!(one.keys().eq(other.keys()), "{} holds other tensors", path.display());
        for (name, tensor) in one {
            assert!(tensor.equal(&other[&name]), "{name} in {}", path.display());
        }
    }
}

fn checkpoints(run: &Run) -> Vec<u64> {
    let lines = run.metrics().into_iter();
    lines.filter_map(|line| line.get("checkpoint")?["step"].as_u64()).collect()
}

#[test]
fn ranks_write_parts_of_the_same_files() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let one = sandbox.train(1, "one", &[]);
    let folder = one.0.checkpoint(6);
    for &ranks in thorough::cases(&[2, 3], 1) {
        let name = format!("{ranks}");
        let run = sandbox.train(ranks, &name, &[]);
        let manifest = Manifest::read(&run.0.checkpoint(6)).unwrap();
        manifest.verify(&run.0.checkpoint(6)).unwrap();
        let mut by_rank: Vec<u64> = Vec::new();
        for (entry, file) in manifest.files.iter().zip(FILES) {
            assert_eq!(entry.name, file);
            by_rank.extend(entry.parts.iter().map(|part| part.bytes));
        }
        assert!(by_rank.len() >= ranks, "{by_rank:?}");
        assert_eq!(checkpoints(&run), [1, 2, 3, 4, 5, 6]);
        if ranks == 2 {
            assert_same(&folder, &run.0.checkpoint(6), &FILES);
        }
        let sharded = sandbox.train(ranks, &format!("{ranks}-sharded"), &["memory.shard_optimizer=true"]);
        assert_same(&run.0.checkpoint(6), &sharded.0.checkpoint(6), &FILES);
    }
}

/// Convolution weights in channels-last format, divided by the boundaries of shards.
#[test]
fn channels_last_weights_are_saved_the_same_on_any_partition() {
    let small = ["train.effective_batch=12", "data.test_samples=12"];
    let sets = [&small[..], &["model.memory_format=channels-last", "train.steps=1"]].concat();
    for &ranks in thorough::cases(&[2, 3], 1) {
        let sandbox = Sandbox::new(&resnet18());
        let plain = sandbox.train(ranks, "plain", &sets);
        let sharded = [&sets[..], &["memory.shard_optimizer=true"]].concat();
        let sharded = sandbox.train(ranks, "sharded", &sharded);
        assert_same(&plain.0.latest(), &sharded.0.latest(), &FILES[..2]);
        // Another partition and memory format: the same run resumes.
        let on = sandbox.train(ranks - 1, "sharded", &[&small[..], &["train.steps=2"]].concat());
        assert_eq!(on.result().steps, Some(2));
    }
}

/// The loss falls: the first checkpoint would stay the best.
#[test]
fn the_best_checkpoint_exists_after_failed_writes() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let sets = ["checkpoint.best=max loss", "checkpoint.on_failure=continue"];
    let best_is_there = |name: &str| {
        let run = sandbox.run(name);
        let best = run.result().best.unwrap().step;
        assert_eq!(run.0.linked(&run.0.best()), Some(best));
        best
    };
    // A checkpoint that the disk rejects.
    let mut command = sandbox.command(2, "fails", &sets, &[]);
    command.env("DTRAIN_FAULT", "write:rank=0,after=0,error=ENOSPC");
    let text = expect_exit_code(&command.output().unwrap(), 0);
    assert!(text.contains("training continues"), "{text}");
    assert!(best_is_there("fails") > 1);

    // A checkpoint of another run, without its evaluation.
    let other = sandbox.train(1, "other", &["train.steps=2"]);
    let folder = other.0.checkpoint(2);
    let mut manifest = Manifest::read(&folder).unwrap();
    manifest.evaluation_missing = true;
    manifest.write(&folder).unwrap();
    let more = ["--resume", "other/checkpoints/step-00000002"];
    expect_exit_code(&sandbox.launch_with(2, "owes", &sets, &more), 0);
    assert!(best_is_there("owes") > 2);
    assert_eq!(sandbox.run("owes").evaluations()[0]["step"], 2, "it is made up");
    assert!(Manifest::read(&folder).unwrap().evaluation_missing);
}

/// An evaluation without memory for one sample is an error on all ranks. A crash lets the others wait in vain.
#[test]
fn a_failing_evaluation_costs_no_step() {
    let sandbox = Sandbox::new(&gpt(4, EVERY_STEP));
    let sets = ["checkpoint.every=2 steps", "checkpoint.best=max loss"];
    let figures = |run: &Run, key: &str| -> Vec<f64> {
        run.evaluations().iter().map(|line| line[key].as_f64().unwrap()).collect()
    };
    let best =
        |run: &Run| (run.result().best.unwrap().step, run.0.linked(&run.0.best()), run.0.steps().unwrap());
    let whole = sandbox.train(2, "whole", &sets);
    let all = [(2, "oom", 4, 3), (2, "crash", 2, 4), (1, "oom", 2, 3), (1, "crash", 4, 4)];
    for &(ranks, kind, step, code) in thorough::cases(&all, 2) {
        let name = format!("{kind}-{ranks}");
        let fault = format!("{kind}:rank={},step={step},phase=evaluate,times=99", ranks - 1);
        let mut command = sandbox.command(ranks, &name, &sets, &[]);
        let output = command.env("DTRAIN_FAULT", fault).output().unwrap();
        expect_exit_code(&output, code);
        let run = sandbox.run(&name);
        let newest = run.0.linked(&run.0.latest());
        assert_eq!(newest, Some(step), "{name}: {}", output_text(&output));
        let folder = run.0.checkpoint(step);
        let manifest = Manifest::read(&folder).unwrap();
        manifest.verify(&folder).unwrap();
        assert!(manifest.evaluation_missing && manifest.metrics.is_empty(), "{name}");

        let resumed = sandbox.train(2, &name, &sets);
        assert_eq!(resumed.per_step("loss").len(), 4, "{name}");
        assert_eq!(resumed.weights(), whole.weights(), "{name}");
        assert_eq!(figures(&resumed, "step"), [2.0, 4.0], "{name}");
        assert_close(&figures(&resumed, "loss"), &figures(&whole, "loss"), 1e-6);
        let manifests = [2, 4].map(|step| Manifest::read(&resumed.0.checkpoint(step)).unwrap());
        assert!(manifests.iter().all(|manifest| !manifest.evaluation_missing), "{name}");
        assert!(manifests.iter().all(|manifest| manifest.metrics.contains_key("loss")), "{name}");
        assert_eq!(best(&resumed), best(&whole), "{name}");
    }
}

#[test]
fn a_failed_write_ends_the_run_or_skips_one_checkpoint() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let launch = |rank: usize, error: &str, name: &str, sets: &[&str]| {
        let after = 100_000;
        let fault = format!("write:rank={rank},after={after},error={error}");
        let mut command = sandbox.command(2, name, sets, &[]);
        command.env("DTRAIN_FAULT", fault).output().unwrap()
    };
    let reference = sandbox.train(2, "reference", &[]);
    // A full disk of rank 0: also in `the_best_checkpoint_exists_after_failed_writes` and `apart`.
    let all = [(1, "EIO", "Input/output error"), (0, "ENOSPC", "No space left on device")];
    for &(rank, error, words) in thorough::cases(&all, 1) {
        let name = format!("stop-{rank}");
        let text = expect_exit_code(&launch(rank, error, &name, &[]), 4);
        assert!(text.contains(words) && text.contains("cannot write the checkpoint after step"), "{text}");
        let run = sandbox.run(&name);
        let steps = run.0.steps().unwrap();
        assert!(!steps.is_empty() && steps.len() < 6, "{steps:?}");
        for step in &steps {
            let folder = run.0.checkpoint(*step);
            Manifest::read(&folder).unwrap().verify(&folder).unwrap();
        }
        // When the disk works again, the same command resumes and gives the same end result.
        let whole = sandbox.train(2, &name, &[]);
        assert_same(&reference.0.latest(), &whole.0.latest(), &FILES);

        let name = format!("on-{rank}");
        let text = expect_exit_code(&launch(rank, error, &name, &["checkpoint.on_failure=continue"]), 0);
        assert!(text.contains("training continues") && text.contains(words), "{text}");
        let run = sandbox.run(&name);
        let steps = run.0.steps().unwrap();
        assert!(steps.len() < 6 && steps.last() == Some(&6), "{steps:?}");
        assert_same(&reference.0.latest(), &run.0.latest(), &FILES);
        let left: Vec<String> = fs::read_dir(run.0.checkpoints())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with('.'))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let mut command = sandbox.command(1, "wrong", &[], &[]);
    let output = command.env("DTRAIN_FAULT", "write:rank=0").output().unwrap();
    assert!(
        !output.status.success() && output_text(&output).contains("such as write:rank=1"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn an_unwritable_folder_is_an_error_at_the_start() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let run = sandbox.train(1, "run", &["train.steps=2"]);
    // A file in place of the folder: even root cannot write into it.
    let old = sandbox.path("old");
    fs::rename(run.0.checkpoints(), &old).unwrap();
    fs::create_dir(run.0.checkpoints()).unwrap();
    fs::rename(old.join("step-00000002"), run.0.checkpoint(2)).unwrap();
    fs::write(run.0.checkpoints().join(".partial-00000003"), "").unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "run", &[]), 4);
    assert!(text.contains("cannot write the checkpoint after step 3"), "{text}");
    assert_eq!(run.0.steps().unwrap(), [2]);
}

#[test]
fn a_damaged_checkpoint_is_named_and_an_intact_one_resumes() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let reference = sandbox.train(1, "reference", &[]);
    let run = sandbox.train(2, "run", &["train.steps=4"]);
    let damage = |step: u64, file: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let path = run.0.checkpoint(step).join(file);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
    };
    damage(4, FILES[0], &|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    damage(3, FILES[1], &|bytes| bytes.truncate(bytes.len() - 1));
    let text = expect_exit_code(&sandbox.launch(2, "run", &[]), 0);
    let skips = |step: &str| text.lines().any(|line| line.contains("skipping") && line.contains(step));
    assert!(skips("step-00000004"), "{text}");
    assert!(skips("step-00000003") || text.contains("resuming from"), "{text}");
    assert!(text.contains("after step 2"), "{text}");
    assert_same(&reference.0.latest(), &run.0.latest(), &FILES);

    // A dangling link is no reason to start from the beginning.
    symlink_atomic(Path::new("step-00000099"), &run.0.latest()).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=7"]), 0);
    assert!(text.contains("is a broken link") && text.contains("after step 6"), "{text}");
    assert_eq!(fs::read_link(run.0.latest()).unwrap(), Path::new("step-00000007"));

    // A named checkpoint is not skipped.
    damage(7, FILES[2], &|bytes| bytes[9] ^= 0x20);
    let from = run.0.checkpoint(7);
    let output = sandbox.launch_with(1, "run", &["train.steps=8"], &["--resume", from.to_str().unwrap()]);
    let text = expect_exit_code(&output, 2);
    assert!(text.contains("ema.safetensors") && text.contains("damaged"), "{text}");

    for step in run.0.steps().unwrap() {
        damage(step, FILES[0], &|bytes| bytes[100] ^= 0x80);
    }
    let text = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=8"]), 2);
    assert!(text.contains("no checkpoint in") && text.contains("is whole"), "{text}");
}

#[test]
fn checkpoints_are_written_by_time_and_some_are_kept_permanently() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    let run = sandbox.train(2, "time", &["checkpoint.every=0.001 s", "train.steps=20"]);
    let written = checkpoints(&run);
    assert!(written.len() > 2 && written.last() == Some(&20), "{written:?}");
    assert_eq!(run.evaluations().len(), 1, "only at the end");

    let sets = ["checkpoint.keep=2", "checkpoint.keep_every=4 steps", "train.steps=11"];
    let run = sandbox.train(1, "kept", &sets);
    assert_eq!(run.0.steps().unwrap(), [4, 8, 10, 11]);
    for line in run.metrics().iter().filter_map(|line| line.get("checkpoint")) {
        let figure = |key: &str| line[key].as_f64().unwrap();
        assert!(
            figure("blocked_ms") >= 0.0 && figure("write_ms") <= figure("total_ms") && figure("bytes") > 0.0
        );
    }
}

#[test]
fn a_slow_checkpoint_is_not_a_hang() {
    let sandbox = Sandbox::new(&gpt(6, EVERY_STEP));
    // Both ranks wait for the last checkpoint: one writes, the other is idle.
    let sets = ["train.steps=2", "checkpoint.every=2 steps"];
    let mut command = sandbox.command(2, "slow", &sets, &["--hang-timeout", "2"]);
    expect_exit_code(&command.env("DTRAIN_FAULT", "write:rank=1,after=0,pause=7s").output().unwrap(), 0);
    let run = sandbox.run("slow");
    assert_eq!(run.0.steps().unwrap(), [2]);
    let longest = run
        .metrics()
        .iter()
        .filter_map(|line| line.get("checkpoint")?["total_ms"].as_f64())
        .fold(0.0, f64::max);
    assert!(longest > 6e3, "it was not slow: {longest} ms");
}
