//! `dtrain eval`, the test at the end of a run, initial weights, and data that changes during a run.

use std::fs;
use std::process::Output;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::runs::{Sandbox, TINY, gpt, resnet18};
use dtrain_worker::models::TensorFile;
use serde_json::Value;

use crate::bad_input::folder_recipe;

fn eval(sandbox: &Sandbox, ranks: usize, checkpoint: &str, more: &[&str]) -> Output {
    let words = ["eval", "recipe.toml", "--checkpoint", checkpoint, "--nproc", &ranks.to_string()];
    sandbox.dtrain(&words).args(more).output().unwrap()
}

fn answer(output: &Output) -> Value {
    let text = expect_exit_code(output, 0);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn eval_gives_the_results_of_the_training() {
    let sandbox = Sandbox::new(&format!("{TINY}[ema]\ndecay = 0.5\n"));
    let run = sandbox.train(2, "run", &["checkpoint.every=3 steps"]);
    let lines = run.evaluations();
    let cases = [
        (&lines[0], "run/checkpoints/step-00000003"),
        (lines.last().unwrap(), "run"),
        (lines.last().unwrap(), "run/checkpoints/latest"),
    ];
    for &(line, checkpoint) in thorough::cases(&cases, 2) {
        let found = answer(&eval(&sandbox, 2, checkpoint, &["--json"]));
        assert_eq!(found["step"], line["step"], "{checkpoint}");
        assert_eq!(found["epoch"], line["epoch"]);
        assert_eq!((&found["loss"], &found["accuracy"]), (&line["loss"], &line["accuracy"]));
        assert_eq!((&found["weights"], &found["samples"]), (&"average".into(), &37.into()));
        assert_eq!(found["peak_memory_bytes"].as_array().unwrap().len(), 2);
    }
    // With another number of ranks and other batches.
    let raw = answer(&eval(&sandbox, 3, "run", &["--json", "--weights", "raw", "--batch", "5"]));
    assert_eq!((&raw["weights"], &raw["batch"]), (&"raw".into(), &5.into()));
    assert_ne!(raw["loss"], lines.last().unwrap()["loss"]);
    let average = answer(&eval(&sandbox, 1, "run", &["--json", "--batch", "1"]));
    let far = average["loss"].as_f64().unwrap() - lines.last().unwrap()["loss"].as_f64().unwrap();
    assert!(far.abs() < 1e-5, "{far}");
    let table = output_text(&eval(&sandbox, 1, "run", &[]));
    for part in ["after step 6 (epoch 1), moving average", "samples         37", "test loss", "accuracy"] {
        assert!(table.contains(part), "{part} in {table}");
    }
}

#[test]
fn unusable_checkpoints_are_errors_in_eval() {
    // A setting that makes another network.
    let cases = [(TINY.to_owned(), "model.width=32"), (resnet18(), "model.name=resnet34")];
    for (recipe, other) in thorough::cases(&cases, 1) {
        expect_unusable(recipe, other);
    }
}

fn expect_unusable(recipe: &str, other: &str) {
    let sandbox = Sandbox::new(recipe);
    let run = sandbox.train(1, "run", &["train.steps=1"]);
    let expect_error = |more: &[&str], checkpoint: &str, words: &str| {
        let text = expect_exit_code(&eval(&sandbox, 1, checkpoint, more), 2);
        assert!(text.contains(words), "{words} in {text}");
    };
    expect_error(&[], "nowhere", "no such folder");
    expect_error(&[], ".", "is not a whole checkpoint: it has no manifest.json");
    expect_error(&["--weights", "average"], "run", "has no moving average");
    expect_error(&["--set", other], "run", "does not fit the model");
    expect_error(&["--set", "data.classes=5"], "run", "does not fit the model");
    let model = run.0.checkpoint(1).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&model, bytes).unwrap();
    expect_error(&[], "run/checkpoints/step-00000001", "checksum");
}

#[test]
fn the_final_test_uses_the_best_or_last_weights() {
    // The GPT's loss falls: the best step is not the last.
    let cases = [(gpt(6, ""), "checkpoint.best=max loss"), (resnet18(), "checkpoint.best=min loss")];
    for (recipe, best) in thorough::cases(&cases, 1) {
        let sandbox = Sandbox::new(recipe);
        for (ranks, weights) in [(1, "last"), (2, "best")] {
            let test = format!("test.weights={weights}");
            let run = sandbox.train(ranks, weights, &["checkpoint.every=2 steps", best, &test]);
            let step = match weights {
                "last" => 6,
                _ => run.result().best.unwrap().step,
            };
            let lines = run.metrics();
            let found = lines.last().unwrap().get("test").expect("the last line is the test");
            assert_eq!(found["step"], step);
            let evaluations = run.evaluations();
            let there = evaluations.iter().find(|line| line["step"] == step).unwrap();
            assert_eq!(found["loss"], there["loss"]);
            assert_eq!(run.result().test.get("loss").copied(), there["loss"].as_f64());
        }
        let text = expect_exit_code(&sandbox.launch(1, "refused", &["test.weights=best"]), 2);
        assert!(text.contains("needs checkpoint.best"), "{text}");
    }
}

/// A network, the name of its head, and the setting of a larger network, which has `more`.
struct Sizes {
    recipe: String,
    head: &'static str,
    larger: &'static str,
    more: &'static str,
}

#[test]
fn foreign_weights_load_partially_or_by_other_names() {
    let cases = [
        Sizes { recipe: TINY.to_owned(), head: "head", larger: "model.depth=2", more: "blocks.1." },
        Sizes { recipe: resnet18(), head: "fc", larger: "model.name=resnet34", more: "layer1.2." },
    ];
    thorough::cases(&cases, 1).iter().for_each(load_foreign_weights);
}

fn load_foreign_weights(&Sizes { ref recipe, head, larger, more }: &Sizes) {
    let sandbox = Sandbox::new(recipe);
    let run = sandbox.train(1, "run", &["train.steps=1"]);
    let file = TensorFile::open(&run.0.latest().join("model.safetensors")).unwrap();
    let tensors: Vec<(String, tch::Tensor)> =
        file.names().into_iter().map(|name| (format!("module.{name}"), file.read(&name).unwrap())).collect();
    let borrowed: Vec<(&str, &tch::Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let path = sandbox.path("w.safetensors");
    tch::Tensor::write_safetensors(&borrowed, &path).unwrap();
    let loaded = format!("{} tensors loaded", tensors.len());
    let weights = format!("model.weights={}", path.display());
    let rename = "model.weights_rename=[[\"^module\\\\.\", \"\"]]";
    let steps = "train.steps=1";

    let expect_error = |sets: &[&str], words: &str| {
        let text = expect_exit_code(&sandbox.launch(1, "refused", sets), 2);
        assert!(text.contains(words), "{words} in {text}");
    };
    // One prefix of all names needs no setting.
    for mode in ["fine-tune", "strict", "partial"] {
        let set = format!("model.weights_mode={mode}");
        let text = expect_exit_code(&sandbox.launch(1, mode, &[&weights, steps, &set]), 0);
        let line = format!("w.safetensors: {loaded}, without the prefix `module.` of all names in the file");
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    // The remedy of other names works.
    let odd = format!("model.weights_rename=[[\"^module.{head}\", \"odd\"]]");
    let remedy = format!("Set model.weights_rename = [['^module.{head}', 'odd'], ['^module\\.', '']]");
    expect_error(
        &[&weights, steps, &odd, "model.weights_mode=strict"],
        &format!("{remedy} and model.weights_mode = \"partial\""),
    );
    expect_error(
        &[&weights, steps, rename, "model.weights_mode=strict", "data.classes=7"],
        "does not fit the model",
    );
    expect_error(&["model.weights_mode=strict", steps], "model.weights, which is not set");
    expect_error(&[&weights, "model.weights_rename=[[\"(\", \"\"]]", steps], "is not a regular expression");

    expect_error(
        &[&weights, steps, "model.weights_new=odd.*"],
        "model.weights_new: \"odd.*\" matches no parameter",
    );
    let head = format!("model.weights_new={head}.*");
    expect_error(&[&weights, steps, rename, larger, &head], "Add what may be new to model.weights_new");

    let sets = [&weights, steps, rename, "model.weights_mode=strict"];
    let text = expect_exit_code(&sandbox.launch(1, "renamed", &sets), 0);
    assert!(text.contains(&loaded), "{text}");
    let sets = [&weights, steps, rename, "model.weights_mode=partial", larger];
    let text = expect_exit_code(&sandbox.launch(2, "larger", &sets), 0);
    assert!(text.contains(&format!("missing in the file, initial values kept: `{more}")), "{text}");
}

/// Writes the images of a class.
fn black_images(sandbox: &Sandbox, split: &str, class: &str, count: usize) {
    let folder = sandbox.path("data").join(split).join(class);
    fs::create_dir_all(&folder).unwrap();
    for number in 0..count {
        image::RgbImage::new(32, 32).save(folder.join(format!("{number}.png"))).unwrap();
    }
}

#[test]
fn changed_data_of_a_run_is_reported() {
    let sandbox = Sandbox::new(&folder_recipe());
    for class in ["a", "b"] {
        black_images(&sandbox, "train", class, 16);
        black_images(&sandbox, "test", class, 1);
    }
    sandbox.train(1, "run", &["train.steps=2"]);
    // The same data in another folder counts as the same.
    fs::rename(sandbox.path("data"), sandbox.path("moved")).unwrap();
    let moved = "data.root=moved";
    let text = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=3", moved]), 0);
    assert!(!text.contains("the data differs"), "{text}");
    fs::rename(sandbox.path("moved/train/a/3.png"), sandbox.path("moved/train/a/x.png")).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=4", moved]), 0);
    assert!(text.contains("warning: the data differs from the checkpoint's: as many samples"), "{text}");
    fs::remove_file(sandbox.path("moved/train/a/x.png")).unwrap();
    let text = output_text(&sandbox.launch(1, "run", &["train.steps=5", moved]));
    assert!(text.contains("32 training and 2 test samples then, 31 training"), "{text}");
}

#[test]
fn renamed_classes_are_an_error_in_eval_and_resume() {
    let sandbox = Sandbox::new(&folder_recipe());
    for class in ["cat", "dog", "emu"] {
        black_images(&sandbox, "train", class, 8);
        black_images(&sandbox, "test", class, 1);
    }
    let run = sandbox.train(1, "run", &["train.steps=1"]);
    let folder = run.0.checkpoint(1);
    let mut manifest = Manifest::read(&folder).unwrap();
    assert_eq!(manifest.class_names, ["cat", "dog", "emu"]);
    answer(&eval(&sandbox, 1, "run", &["--json"]));

    // The same number of classes in another order.
    for split in ["train", "test"] {
        let of = sandbox.path("data").join(split);
        fs::rename(of.join("cat"), of.join("feline")).unwrap();
    }
    for output in [eval(&sandbox, 1, "run", &[]), sandbox.launch(1, "run", &["train.steps=2"])] {
        let text = expect_exit_code(&output, 2);
        for words in [
            "class 0 is \"cat\" in the checkpoint and \"dog\" in the data, class 1 is \"dog\" in the checkpoint and \"emu\" in the data",
            "restore the old folder names",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }
    // A manifest of an earlier dtrain still loads, without a check of the order.
    manifest.class_names.clear();
    manifest.write(&folder).unwrap();
    // The next checkpoint has names, so there is no more warning.
    for (output, warnings) in [
        (eval(&sandbox, 1, "run", &[]), 1),
        (sandbox.launch(2, "run", &["train.steps=2"]), 1),
        (sandbox.launch(1, "run", &["train.steps=3"]), 0),
    ] {
        let text = expect_exit_code(&output, 0);
        assert_eq!(text.matches("has no class names").count(), warnings, "{text}");
    }
}
