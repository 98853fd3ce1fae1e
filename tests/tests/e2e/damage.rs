//! Checkpoints damaged in many ways and places: dtrain never loads them.

use std::fs;
use std::path::Path;

use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::Resume;
use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_worker::checkpoint::{choose, verify};

/// Two checkpoints of the smallest possible network.
const SMALL: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 8
test_samples = 2
[model]
name = "gpt"
width = 2
depth = 1
heads = 1
context = 2
[train]
effective_batch = 4
steps = 2
[optim]
lr = 0.01
[checkpoint]
every = "1 step"
"#;

const FILES: [&str; 3] = ["model.safetensors", "optimizer-00000-of-00001.safetensors", "manifest.json"];

fn trained() -> (Sandbox, Run) {
    let sandbox = Sandbox::new(SMALL);
    let run = sandbox.train(1, "run", &[]);
    (sandbox, run)
}

/// Checks that the run would resume from the checkpoint before.
fn passed_over(run: &Run, what: &str) {
    let newest = run.0.checkpoint(2);
    assert!(verify(&newest).is_err(), "{what}: it counts as whole");
    let chosen = choose(&run.0, &Resume::Auto).unwrap();
    assert_eq!(chosen, Some(run.0.checkpoint(1)), "{what}");
    // If the user names it, it is an error.
    assert!(choose(&run.0, &Resume::From(newest)).is_err(), "{what}");
}

#[test]
fn damaged_checkpoints_are_not_loaded() {
    let (_sandbox, run) = trained();
    let (old, new) = (run.0.checkpoint(1), run.0.checkpoint(2));
    assert_eq!(choose(&run.0, &Resume::Auto).unwrap(), Some(new.clone()));
    // Each place, or enough places that each of the eight bits changes.
    let apart = if thorough::is_wanted() { 1 } else { 7 };
    for file in FILES {
        let path = new.join(file);
        let whole = fs::read(&path).unwrap();
        // The bytes of headers and manifest, and some of the values: all, or one in seven in a normal check.
        let stride = (whole.len() / 400).max(1);
        let places = (0..whole.len()).filter(|at| *at < 300 || at.is_multiple_of(stride));
        for at in places.step_by(apart).chain([whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, damaged).unwrap();
            assert!(verify(&new).is_err(), "a bit of byte {at} of {file}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(verify(&new).is_err(), "{at} bytes of {file}");
        }
        passed_over(&run, &format!("a part of {file}"));
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 4;
        fs::write(&path, damaged).unwrap();
        passed_over(&run, &format!("a bit of {file}"));
        fs::write(&path, [&whole[..], b"\n"].concat()).unwrap();
        passed_over(&run, &format!("a byte more of {file}"));
        fs::remove_file(&path).unwrap();
        passed_over(&run, &format!("no {file}"));
        fs::create_dir(&path).unwrap();
        passed_over(&run, &format!("a folder for {file}"));
        fs::remove_dir(&path).unwrap();
        // The file of the same name and size from the checkpoint before.
        fs::copy(old.join(file), &path).unwrap();
        passed_over(&run, &format!("{file} of another step"));
        fs::write(&path, &whole).unwrap();
    }
    // Two files of one checkpoint, exchanged.
    let [model, optimizer] = [FILES[0], FILES[1]].map(|file| new.join(file));
    exchange(&model, &optimizer);
    passed_over(&run, "exchanged files");
    exchange(&model, &optimizer);
    assert_eq!(choose(&run.0, &Resume::Auto).unwrap(), Some(new.clone()));
    // An intact checkpoint under another's name.
    exchange(&old, &new);
    assert!(choose(&run.0, &Resume::Auto).is_err(), "both have the other's name");
    exchange(&old, &new);
    verify(&new).unwrap();
}

fn exchange(one: &Path, other: &Path) {
    let aside = one.with_file_name("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}

#[test]
fn checkpoints_of_other_runs_or_newer_formats_are_errors() {
    let (sandbox, run) = trained();
    let refused = |sets: &[&str], words: &str| {
        let text = expect_exit_code(&sandbox.launch(1, "run", sets), 2);
        assert!(text.contains(words), "{words} in {text}");
    };
    refused(&["model.width=4", "train.steps=3"], "model.width");
    refused(&["train.seed=9", "train.steps=3"], "train.seed");
    let newest = run.0.checkpoint(2);
    let mut manifest = Manifest::read(&newest).unwrap();
    manifest.format += 1;
    manifest.write(&newest).unwrap();
    refused(&["train.steps=3"], "use the newer dtrain");
    // Not even the one before is used: the newer one may be intact.
    assert!(choose(&run.0, &Resume::Auto).is_err());
}
