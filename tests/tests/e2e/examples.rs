//! The five systems of docs/examples, at tiny sizes: their models beside the libraries', their recipes on small pictures in
//! the layouts they read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_test_kit::forks;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Run, Sandbox, assert_close};

use crate::checkpoints::assert_same;
use crate::import::{LIMIT, run};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples")
}

fn python(python: &Path, script: &Path, args: &[&Path]) -> String {
    let mut command = Command::new(python);
    command.arg(script).args(args);
    expect_exit_code(&run(command, python), 0)
}

#[test]
fn their_models_have_the_published_sizes_and_outputs() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let script = Path::new("../examples/check.py");
    let parity = Path::new(env!("CARGO_MANIFEST_DIR")).join("parity");
    let text = python(&interpreter, script, &[&folder(), &parity]);
    assert!(text.contains("all equal"), "{text}");
}

/// Returns a sandbox with an example's small recipe, its model by these flags, and `raw`: pictures in the published layout.
fn example(interpreter: &Path, name: &str, function: &str, flags: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new(&fs::read_to_string(folder().join(name).join("small.toml")).unwrap());
    python(interpreter, Path::new("../examples/data.py"), &[Path::new(name), &sandbox.path("raw")]);
    let model = folder().join(name).join("model.py");
    let mut command = sandbox.dtrain(&["import", &format!("{}:{function}", model.display())]);
    command.args(flags).arg("-o").arg(sandbox.path("small.pt2"));
    expect_exit_code(&run(command, interpreter), 0);
    sandbox
}

/// Rearranges `raw` by the example's own script.
fn prepare(interpreter: &Path, sandbox: &Sandbox, name: &str, out: &str) {
    let script = folder().join(name).join("prepare.py");
    python(interpreter, &script, &[&sandbox.path("raw"), &sandbox.path(out)]);
}

/// Returns the most bytes that the first step held.
fn peak(run: &Run) -> f64 {
    let step = run.metrics().into_iter().find(|line| line.get("loss").is_some()).expect("a step");
    step["memory"]["peak"].as_f64().unwrap()
}

/// Checks that recomputing saves memory, by two runs of [`trains_in_every_cut`] with as many samples at once.
fn recompute_saves_memory(sandbox: &Sandbox) {
    let [recomputed, kept] = ["ranks", "parts"].map(|name| peak(&sandbox.run(name)));
    assert!(recomputed < kept, "{recomputed} bytes recomputed, {kept} not");
}

/// Trains in three cuts with these settings: the same losses, the memory that was predicted, and the same bytes after a resume.
/// Returns the run of one rank that takes each step at once.
fn trains_in_every_cut(sandbox: &Sandbox, sets: &[&str], micro_batch: usize) -> Run {
    let every = ["log.every_steps=1", "checkpoint.every=2 steps", "checkpoint.keep=100", "data.workers=1"];
    let sets = [&every, sets].concat();
    let micro_batch = format!("memory.micro_batch={micro_batch}");
    let parts = [&sets[..], &[&micro_batch]].concat();
    let whole = sandbox.train(1, "whole", &sets);
    let losses = whole.per_step("loss");
    assert!(losses.len() >= 3 && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    let ranks = sandbox.train(2, "ranks", &[&parts[..], &["memory.recompute=on"]].concat());
    let parts = sandbox.train(1, "parts", &parts);
    // In more steps, rounding may change which of two experts, maxima or signs is chosen.
    assert_close(&losses[..2], &parts.per_step("loss")[..2], 1e-6);
    assert_close(&losses[..2], &ranks.per_step("loss")[..2], 1e-6);
    for run in [&whole, &parts] {
        let predicted = run.plan()["predictions"][0]["peak"].as_f64().unwrap();
        let measured = peak(run);
        assert!((measured / predicted - 1.0).abs() < 0.01, "{measured} bytes, {predicted} predicted");
    }
    let entries = fs::read_dir(sandbox.path("whole/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let first = entries.filter(|path| path.to_string_lossy().contains("step-")).min().expect("a checkpoint");
    let mut command = sandbox.command(1, "again", &sets, &["--resume", first.to_str().unwrap()]);
    expect_exit_code(&finish(&mut command, LIMIT), 0);
    let again = sandbox.run("again");
    assert!(!again.per_step("loss").is_empty(), "the checkpoint is the last one");
    assert_same(
        &whole.0.latest(),
        &again.0.latest(),
        &["model.safetensors", "optimizer-00000-of-00001.safetensors"],
    );
    whole
}

#[test]
fn camoxpert_trains_in_two_stages() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let flags = ["--arg", "experts=3", "--image-size", "32"];
    let sandbox = example(&interpreter, "camoxpert", "make_small", &flags);
    let sets = ["data.root=raw", "data.image_size=32", "stage.0.epochs=1", "stage.1.epochs=3"];
    let run = trains_in_every_cut(&sandbox, &sets, 2);
    recompute_saves_memory(&sandbox);
    // One step of eight images, then two of four in each epoch; each stage has its own cycle of the rate.
    assert_eq!(run.per_step("samples")[..3], [8.0, 12.0, 16.0]);
    let figures = run.result().final_metrics;
    for figure in ["s_measure", "e_measure", "weighted_f", "mask_mae", "iou"] {
        assert!(figures.contains_key(figure), "{figure} in {figures:?}");
    }
}

#[test]
fn dcal_trains_on_pairs() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let flags = ["--arg", "depth=2", "--arg", "dim=24"];
    let sandbox = example(&interpreter, "dcal", "small", &flags);
    prepare(&interpreter, &sandbox, "dcal", "data");
    let text = fs::read_to_string(sandbox.path("recipe.toml")).unwrap();
    let text: String =
        text.lines().filter(|line| !line.starts_with("weights")).map(|line| format!("{line}\n")).collect();
    fs::write(sandbox.path("recipe.toml"), text).unwrap();
    let run = trains_in_every_cut(&sandbox, &["train.steps=4"], 5);
    recompute_saves_memory(&sandbox);
    assert!(run.result().final_metrics.contains_key("accuracy_glca"));
    let alone = ["train.steps=1", "train.effective_batch=1"];
    let text = expect_exit_code(&sandbox.launch(1, "alone", &alone), 2);
    assert!(text.contains("a step of one sample has no partner for it"), "{text}");
}

#[test]
fn prs_med_answers_and_draws() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let flags = ["--image-size", "32", "--arg", "context=40"];
    let sandbox = example(&interpreter, "prs-med", "make_small", &flags);
    fs::create_dir(sandbox.path("data")).unwrap();
    prepare(&interpreter, &sandbox, "prs-med", "data/questions");
    let sets = ["data.image_size=32", "data.repeat={ \"<image>\" = 4 }", "train.steps=4"];
    let run = trains_in_every_cut(&sandbox, &sets, 4);
    let figures = run.result().final_metrics;
    recompute_saves_memory(&sandbox);
    for figure in ["mDice", "mIoU", "HD95", "exact_match", "text_loss"] {
        assert!(figures.contains_key(figure), "{figure} in {figures:?}");
    }
}

#[test]
fn few_shot_trains_on_episodes() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let flags = ["--arg", "head=profoct", "--arg", "k_shot=2", "--arg", "n_query=2", "--image-size", "16"];
    let sandbox = example(&interpreter, "few-shot", "small", &flags);
    prepare(&interpreter, &sandbox, "few-shot", "omniglot");
    let state = "model.state={ alpha_ema = \"mean\", beta_ema = \"mean\", gamma_ema = \"mean\" }";
    let episodes = "data.episodes={ n_way = 5, k_shot = 2, n_query = 2, train = 12, val = 2, test = 4 }";
    let sets =
        ["data.image_size=16", episodes, state, "train.effective_batch=4", "train.epochs=1", "optim.lr=1e-3"];
    // AdamW scales the rounding of biases before BatchNorm, whose gradient is zero, to whole steps.
    let run = trains_in_every_cut(&sandbox, &[&sets[..], &["optim.name=sgd"]].concat(), 1);
    assert!(run.result().test.contains_key("accuracy_95"), "{:?}", run.result().test);
    // Two images of each class are not enough for two and one more.
    let text =
        expect_exit_code(&sandbox.launch(1, "few", &[&sets[..], &["data.episodes.n_query=19"]].concat()), 2);
    assert!(text.contains("fewer than the 21 that an episode takes"), "{text}");
}

#[test]
fn im2elevation_trains_and_tests_heights() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let sandbox = example(&interpreter, "im2elevation", "small", &[]);
    prepare(&interpreter, &sandbox, "im2elevation", "earth");
    let steps = ["train.steps=4", "optim.schedule={ name = \"constant\" }"];
    let run = trains_in_every_cut(&sandbox, &steps, 4);
    recompute_saves_memory(&sandbox);
    // Above 3276.7 m a signed reader would see negative heights.
    let text = expect_exit_code(&sandbox.dtrain(&["data", "recipe.toml"]).output().unwrap(), 0);
    assert!(text.contains("map values  0 to 4620"), "{text}");
    let test = run.result().test;
    for figure in ["rmse_1_500", "rmse_2000_up", "delta1", "ssim"] {
        assert!(test.contains_key(figure), "{figure} in {test:?}");
    }
}
