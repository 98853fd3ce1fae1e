//! `checkpoint.best`: the best checkpoint stays, a resumed run knows it, a stage can have its own criterion.

use std::fs;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, gpt};

/// The loss falls: by the largest loss an early step is best, by the smallest a late one.
const BEST: &str = "[checkpoint]\nevery = \"1 step\"\nkeep = 1\nbest = \"min loss\"\n";

fn falling() -> Sandbox {
    Sandbox::new(&gpt(6, BEST))
}

fn losses(run: &Run) -> Vec<f64> {
    let evaluations = run.evaluations();
    evaluations.iter().map(|evaluation| evaluation["loss"].as_f64().unwrap()).collect()
}

/// Returns the steps with checkpoints.
fn kept(run: &Run) -> Vec<u64> {
    run.0.steps().unwrap()
}

/// Returns the step of `best`; result.json and the newest manifest must agree.
fn best(run: &Run, value: f64) -> u64 {
    let target = fs::read_link(run.0.best()).unwrap();
    let step = Manifest::read(&run.0.best()).unwrap().step;
    assert_eq!(run.0.checkpoints().join(target), run.0.checkpoint(step));
    let best = run.result().best.unwrap();
    assert_eq!((best.step, best.value), (step, value));
    assert_eq!(Manifest::read(&run.0.latest()).unwrap().best, Some(best));
    step
}

fn marks(run: &Run) -> Vec<bool> {
    let evaluations = run.evaluations();
    evaluations.iter().map(|evaluation| evaluation["best"].as_bool().unwrap()).collect()
}

#[test]
fn the_best_checkpoint_is_kept_and_survives_a_resume() {
    let sandbox = falling();
    let falling = sandbox.train(2, "falling", &[]);
    let losses_of = losses(&falling);
    assert!(losses_of.windows(2).all(|pair| pair[1] < pair[0]), "{losses_of:?}");
    assert_eq!(best(&falling, losses_of[5]), 6);
    assert_eq!((kept(&falling), marks(&falling)), (vec![6], vec![true; 6]));

    // Stopped halfway: the best of the first half is the best of all, and its folder outlives the others.
    let most = ["checkpoint.best=max loss", "train.steps=3"];
    let first = sandbox.train(2, "most", &most);
    assert_eq!(best(&first, losses_of[0]), 1);
    assert_eq!(kept(&first), [1, 3]);
    let whole = sandbox.train(1, "most", &["checkpoint.best=max loss"]);
    assert_eq!(best(&whole, losses_of[0]), 1);
    assert_eq!((kept(&whole), marks(&whole)[3..].to_vec()), (vec![1, 6], vec![false; 3]));

    // Another criterion starts a new search: the earlier best checkpoint is no longer protected.
    let other = sandbox.train(1, "most", &["checkpoint.best=min perplexity", "train.steps=8"]);
    let found = losses(&other);
    let step = if found[7] < found[6] { 8 } else { 7 };
    assert_eq!(best(&other, found[step - 1].exp()), step as u64);
    assert!(!kept(&other).contains(&1));

    // Without the setting, no checkpoint is marked, and existing ones stay.
    let plain = sandbox.path("plain.toml");
    fs::write(&plain, gpt(6, &BEST.replace("best = \"min loss\"\n", ""))).unwrap();
    fs::copy(&plain, sandbox.path("recipe.toml")).unwrap();
    let plain = sandbox.train(1, "plain", &[]);
    assert!(plain.result().best.is_none() && !plain.0.best().is_symlink());
    assert!(plain.evaluations()[0].get("best").is_none());
}

#[test]
fn the_next_checkpoint_repairs_an_outdated_best_link() {
    let sandbox = falling();
    let sets = ["checkpoint.best=max loss", "train.steps=1"];
    let run = sandbox.train(1, "run", &sets);
    // The state after a crash between the two renames.
    fs::remove_file(run.0.best()).unwrap();
    let run = sandbox.train(1, "run", &["checkpoint.best=max loss"]);
    assert_eq!(best(&run, losses(&run)[0]), 1);
    assert_eq!(kept(&run), [1, 6]);
}

#[test]
fn a_stage_can_choose_its_own_best_metric() {
    let stages = "[[stage]]\nname = \"a\"\nsteps = 3\n[[stage]]\nname = \"b\"\nsteps = 3\n";
    let recipe = gpt(6, BEST).replace("steps = 6\n", "").replace("min loss", "max loss") + stages;
    let sandbox = Sandbox::new(&recipe);
    let on = sandbox.train(1, "on", &[]);
    let losses_of = losses(&on);
    assert_eq!((best(&on, losses_of[0]), kept(&on)), (1, vec![1, 6]));

    let restart = "stage.1.best=restart";
    let anew = sandbox.train(2, "anew", &[restart]);
    assert_eq!((best(&anew, losses(&anew)[3]), kept(&anew)), (4, vec![4, 6]));
    assert_eq!(marks(&anew), [true, false, false, true, false, false]);

    let cases = [("stage.1.steps=1", 4), ("stage.1.steps=2", 5)];
    for &(last, then) in thorough::cases(&cases, 1) {
        let name = format!("to-{then}");
        let first = sandbox.train(1, &name, &[restart, last, "checkpoint.keep=9"]);
        // Resumed at the boundary.
        let from = first.0.checkpoint(3);
        let was = Manifest::read(&from).unwrap().best;
        assert_eq!(was.map(|best| best.step), Some(1));
        let at = format!("{name}-from-3");
        expect_exit_code(&sandbox.launch_with(1, &at, &[restart], &["--resume", from.to_str().unwrap()]), 0);
        let resumed = sandbox.run(&at);
        assert_eq!((best(&resumed, losses(&resumed)[0]), kept(&resumed)), (4, vec![4, 6]), "{at}");
        // Resumed after it.
        let resumed = sandbox.train(2, &name, &[restart]);
        assert_eq!((best(&resumed, losses(&resumed)[3]), kept(&resumed)), (4, vec![4, 6]), "{name}");
    }
}

#[test]
fn a_resume_in_another_folder_searches_its_own_best() {
    let sandbox = falling();
    let most = "checkpoint.best=max loss";
    let first = sandbox.train(1, "first", &[most, "train.steps=2"]);
    let from = first.0.checkpoint(2);
    expect_exit_code(&sandbox.launch_with(1, "second", &[most], &["--resume", from.to_str().unwrap()]), 0);
    let second = sandbox.run("second");
    assert_eq!((best(&second, losses(&second)[0]), kept(&second)), (3, vec![3, 6]));
}

#[test]
fn an_unknown_best_metric_is_an_error_at_the_start() {
    let sandbox = falling();
    let text = expect_exit_code(&sandbox.launch(2, "run", &["checkpoint.best=max accuracy"]), 2);
    let words =
        "checkpoint.best: the task has no figure \"accuracy\"; use one of loss, perplexity, bits_per_";
    assert!(text.contains(words), "{text}");
    assert!(!sandbox.path("run/metrics.jsonl").exists());
}
