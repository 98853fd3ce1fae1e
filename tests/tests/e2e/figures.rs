//! `model.figures`: figures by name, of sums and of all test samples.

use std::collections::BTreeMap;
use std::fs;

use dtrain_test_kit::forks;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, TINY, gpt};
use serde_json::Value;

use crate::exported::{import, sandbox as of_program};

/// Evaluates four times, and keeps the model with the largest area.
const BEST: &str = "[checkpoint]\nevery = \"3 steps\"\nbest = \"max auc\"\n";

/// Two classes, and the figures of the test.
fn sandbox() -> Sandbox {
    let figures =
        "[model]\nfigures = [{ name = \"auc\" }, { name = \"accuracy\", top = 1, label = \"hits\" }]\n";
    let recipe = TINY.replace("classes = 4", "classes = 2").replace("seed = 3", "seed = 4");
    let recipe = recipe.replace("epochs = 1", "epochs = 2").replace("[model]\n", figures);
    Sandbox::new(&format!("{recipe}{BEST}"))
}

fn figures(line: &Value) -> [f64; 3] {
    ["auc", "hits", "accuracy"].map(|name| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}")))
}

/// Returns the step of the evaluation with the largest area.
fn largest(run: &Run) -> u64 {
    let areas = run.evaluations().into_iter().map(|line| (figures(&line)[0], line["step"].as_u64().unwrap()));
    // The first of equal ones.
    areas.reduce(|best, next| if next.0 > best.0 { next } else { best }).unwrap().1
}

#[test]
fn figures_are_those_of_one_rank_in_every_cut_and_choose_the_best_checkpoint() {
    let sandbox = sandbox();
    let whole = sandbox.train(1, "whole", &["memory.micro_batch=16"]);
    let lines = whole.evaluations();
    assert_eq!(lines.len(), 4);
    for line in &lines {
        let [auc, hits, accuracy] = figures(line);
        assert!(0.5 < auc && auc < 1.0 && hits == accuracy, "{line}");
    }
    let cut = sandbox.train(3, "cut", &["memory.micro_batch=2"]);
    for (line, other) in lines.iter().zip(cut.evaluations()) {
        for (a, b) in figures(line).into_iter().zip(figures(&other)) {
            assert!((a - b).abs() < 1e-12, "{line} {other}");
        }
    }
    for run in [&whole, &cut] {
        let result = run.result();
        let best = result.best.unwrap();
        assert_eq!((best.step, best.by.figure.as_str()), (largest(run), "auc"));
        assert_eq!(result.final_metrics["auc"], figures(run.evaluations().last().unwrap())[0]);
    }
    // Another evaluation of the same weights.
    let words = ["eval", "recipe.toml", "--checkpoint", "whole", "--nproc", "2", "--batch", "5", "--json"];
    let output = sandbox.dtrain(&words).output().unwrap();
    expect_exit_code(&output, 0);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (a, b) in figures(&found).into_iter().zip(figures(lines.last().unwrap())) {
        assert!((a - b).abs() < 1e-12, "{found}");
    }
}

#[test]
fn figures_that_do_not_fit_are_errors_with_a_remedy() {
    let sandbox = sandbox();
    for (number, (figure, words)) in [
        ("name = \"auc\", positive = 2", "set positive below 2"),
        ("name = \"auc\", output = \"logit\"", "did you mean `logits`?"),
        ("name = \"auc\", classes = \"sex\"", "model.figures (auc) names the classes \"sex\""),
        ("name = \"rmse\"", "model.figures (rmse) takes numbers"),
        ("name = \"hd95\"", "model.figures (hd95) takes masks"),
        ("name = \"bits-per-byte\"", "task = \"lm\""),
        ("name = \"auc\", label = \"accuracy\"", "the task has no figure \"auc\"; use one of loss, accuracy"),
    ]
    .into_iter()
    .enumerate()
    {
        let set = format!("model.figures=[{{ {figure} }}]");
        let text = expect_exit_code(&sandbox.launch(1, &number.to_string(), &[&set]), 2);
        assert!(text.contains(words), "{text}");
    }
}

/// Ranks and samples of a batch, in which the same weights are evaluated.
const CUTS: [(&str, &str); 3] = [("1", "9"), ("2", "4"), ("3", "2")];

/// Trains, and compares the evaluation of the weights in every cut. Returns the figures of the first, and those by class.
fn in_every_cut(sandbox: &Sandbox) -> (BTreeMap<String, f64>, Value) {
    let run = sandbox.train(1, "run", &[]);
    let evaluate = |(ranks, batch): (&str, &str)| {
        let words = ["eval", "run", "--nproc", ranks, "--batch", batch, "--json"];
        let output = sandbox.dtrain(&words).output().unwrap();
        expect_exit_code(&output, 0);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let figures = |found: &Value| {
        let fields = found
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| !["eval_ms", "batch"].contains(&name.as_str()));
        fields.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect::<BTreeMap<_, _>>()
    };
    let whole = evaluate(CUTS[0]);
    for cut in &CUTS[1..] {
        let found = evaluate(*cut);
        for (name, value) in figures(&whole) {
            let other = figures(&found)[&name];
            assert!((value - other).abs() < 1e-6 * value.abs().max(1.0), "{name} {cut:?}: {value} {other}");
        }
        assert_eq!(whole["by_class"].as_array().map(Vec::len), found["by_class"].as_array().map(Vec::len));
    }
    // The last evaluation of the run has the same file.
    let step = run.result().steps.unwrap();
    let file = run.0.evaluation(step, "test");
    if let Some(by_class) = whole.get("by_class") {
        let file: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!((&file["step"], &file["set"]), (&step.into(), &"test".into()));
        let names =
            |of: &Value| of.as_array().unwrap().iter().map(|one| one["figure"].clone()).collect::<Vec<_>>();
        assert_eq!(names(&file["figures"]), names(by_class));
    }
    (figures(&whole), whole["by_class"].clone())
}

#[test]
fn figures_of_samples_have_intervals_and_files_by_class() {
    let figures = "[model]\nfigures = [{ name = \"accuracy\", interval = true, top = 2 }, { name = \"confusion\" }, { name = \"iou\" }]\n";
    let sandbox = Sandbox::new(&TINY.replace("[model]\n", figures));
    let (figures, by_class) = in_every_cut(&sandbox);
    let part = figures["top2_accuracy"];
    // That of a part of 37 samples.
    let expected = 1.96 * (part * (1.0 - part) / 36.0).sqrt();
    assert!((figures["top2_accuracy_95"] - expected).abs() < 1e-9, "{figures:?}");
    let counts = by_class[0]["confusion"].as_array().unwrap();
    let all: f64 =
        counts.iter().flat_map(|row| row.as_array().unwrap()).map(|count| count.as_f64().unwrap()).sum();
    assert_eq!((by_class[0]["figure"].as_str(), counts.len(), all), (Some("kappa"), 4, 37.0));
    // A table for people.
    let output = sandbox.dtrain(&["eval", "run"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  class   right") && text.contains("  target \\ predicted"), "{text}");
}

#[test]
fn figures_of_masks_and_texts_do_not_depend_on_the_cut() {
    let names = [
        "s-measure",
        "e-measure",
        "weighted-f",
        "mask-mae",
        "hd95",
        "iou",
        "dice",
        "recall",
        "confusion",
        "auc",
        "calibration",
    ];
    let list: Vec<_> = names.iter().map(|name| format!("{{ name = \"{name}\" }}")).collect();
    let more = "{ name = \"dice\", images = true, positive = 1, interval = true, label = \"image_dice\" }";
    let recipe = "task = \"segment\"\n[data]\nkind = \"generated\"\nclasses = 3\nimage_size = 16\ntrain_samples = 16\n\
                  test_samples = 9\n[model]\nwidth = 4\ndepth = 2\nfigures = [FIGURES]\n[train]\neffective_batch = 8\n\
                  steps = 8\n[optim]\nname = \"sgd\"\nlr = 0.3\n[checkpoint]\nbest = \"max s_measure\"\n";
    let recipe = recipe.replace("FIGURES", &format!("{}, {more}", list.join(", ")));
    let sandbox = Sandbox::new(&recipe);
    let (figures, by_class) = in_every_cut(&sandbox);
    assert!((figures["mean_iou"] - figures["iou"]).abs() < 1e-9, "{figures:?}");
    for name in
        ["s_measure", "e_measure", "weighted_f", "mask_mae", "auc_binned", "image_dice", "image_dice_95"]
    {
        assert!((0.0..=1.0).contains(&figures[name]), "{name}: {figures:?}");
    }
    assert_eq!(by_class.as_array().unwrap().len(), 5, "{by_class}");
    assert_eq!(sandbox.run("run").result().best.unwrap().by.figure, "s_measure");

    let list = "figures = [{ name = \"bits-per-byte\" }, { name = \"accuracy\", top = 3 }]\ncontext = 8\n";
    let sandbox = Sandbox::new(&gpt(6, "").replace("context = 8\n", list));
    let (figures, _) = in_every_cut(&sandbox);
    let bits = ["bits_per_byte", "bits_per_char"].map(|name| figures.get(name));
    // The generated text has characters of one byte.
    let [Some(of_bytes), Some(of_chars)] = bits else { panic!("{figures:?}") };
    assert!((of_bytes - of_chars).abs() < 1e-6 && figures["top3_accuracy"] > 0.0, "{figures:?}");
}

#[test]
fn figures_of_maps_do_not_depend_on_the_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "target = \"map\"\nimage_size = 16\ntrain_samples = 16\ntest_samples = 9";
    let list = "output = \"out\"\nfigures = [{ name = \"mae\", interval = true }, { name = \"rmse\", label = \"error\", \
                bands = [0, 0.1] }, { name = \"r2\" }, { name = \"delta\" }, { name = \"ssim\" }]";
    let sandbox = of_program("regress", data, list);
    import(&python, &sandbox, "segmenter", &["--classes", "1"]);
    let (figures, _) = in_every_cut(&sandbox);
    assert!((figures["error"] - figures["rmse"]).abs() < 1e-9 && figures["mae_95"] > 0.0, "{figures:?}");
    for name in ["r2", "delta1", "ssim", "error_0_0.1", "error_0.1_up"] {
        assert!(figures.contains_key(name), "{name}: {figures:?}");
    }
}

/// A run that goes back keeps no file of later steps, and sets them aside.
#[test]
fn files_by_class_follow_the_steps_of_the_run() {
    let figures = "[model]\nfigures = [{ name = \"recall\" }]\n";
    let sandbox = Sandbox::new(&(TINY.replace("[model]\n", figures) + "[checkpoint]\nevery = \"2 steps\"\n"));
    let run = sandbox.train(1, "run", &[]);
    let has = |step: u64| run.0.evaluation(step, "test").exists();
    assert!([2, 4, 6].into_iter().all(has));
    let from = run.0.checkpoint(2).display().to_string();
    let output =
        sandbox.launch_with(1, "run", &["train.epochs=2", "checkpoint.every=5 steps"], &["--resume", &from]);
    expect_exit_code(&output, 0);
    assert!([2, 5, 12].into_iter().all(has) && ![4, 6].into_iter().any(has));
    let aside = run.0.checkpoints().join("rollback-1/evaluations");
    // With the folders of samples.
    assert_eq!(fs::read_dir(aside).unwrap().count(), 4);
}
