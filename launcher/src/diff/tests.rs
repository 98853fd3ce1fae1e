//! Runs that differ on purpose: each difference is named, at its step.

#![allow(clippy::unwrap_used)]

use super::comparison::{Comparison, Verdict};
use super::object::object;
use super::run::Run;
use super::text::text;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const RECIPE: &str = r#"
task = "classify"
[data]
root = "/data/a"
workers = "auto"
[model]
name = "vit"
file = "/models/a.pt2"
[train]
effective_batch = 4
seed = 3
[optim]
lr = 0.5
[log]
every_steps = 1
"#;

/// The files of a run.
struct Files {
    recipe: String,
    plan: Value,
    lines: Vec<Value>,
}

impl Files {
    /// A run of four steps and an evaluation.
    fn new() -> Self {
        let step = |step: u64| {
            json!({
                "step": step, "epoch": 1, "samples": 4 * step, "loss": 2.0 / step as f64, "lr": 0.5, "grad_norm": 1.5,
                "loss_scale": 1.0, "step_ms": 7.5, "order": format!("{step:016x}"),
                "content": {"image": format!("{:016x}", 8 * step), "label": "00000000000000ff"},
                "content_numbers": "000000640000003200000019",
            })
        };
        let eval = json!({"eval": {"step": 4, "epoch": 1, "loss": 0.75, "accuracy": 0.5, "samples": 6, "eval_ms": 3.0}});
        let environment = json!({
            "first_step": 1, "dtrain": "0.1.0", "trainer": "dtrain-worker", "trainer_hash": "aaaaaaaaaaaaaaaa",
            "libtorch": "2.11.0, 5 bytes", "cuda": "13.0", "driver": "580", "nccl": "2.29.1", "precision": "fp32",
            "hosts": ["n1"], "devices": ["NVIDIA H200"], "cpu": "a processor", "cores": 8, "threads": 4, "loader_threads": 2,
            "data": "dddddddddddddddd", "files": {"model.file": "ffffffffffffffff"},
        });
        let plan =
            json!({"nproc": 1, "partition": "4 = 1 rank x 4 x 1 accumulation", "environment": environment});
        Self { recipe: RECIPE.to_owned(), plan, lines: (1..=4).map(step).chain([eval]).collect() }
    }

    fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("recipe.toml"), &self.recipe).unwrap();
        fs::write(folder.join("plan.json"), self.plan.to_string()).unwrap();
        let lines: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        // A line that is still being written.
        fs::write(folder.join("metrics.jsonl"), lines + "{\"step\": 9").unwrap();
    }

    /// Changes the value of a step from a step on.
    fn change_from(&mut self, first: u64, key: &str, change: impl Fn(u64) -> Value) {
        for line in &mut self.lines {
            if let Some(step) = line["step"].as_u64().filter(|step| *step >= first) {
                *line.pointer_mut(key).unwrap() = change(step);
            }
        }
    }

    fn set(&mut self, from: &str, to: &str) {
        assert!(self.recipe.contains(from), "{from}");
        self.recipe = self.recipe.replace(from, to);
    }

    /// Makes other losses from the first step on, by this part.
    fn other_losses(&mut self, part: f64) {
        self.change_from(1, "/loss", |step| json!(2.0 / step as f64 * (1.0 + part)));
    }
}

/// Compares a run with a changed one.
fn compare(change: impl Fn(&mut Files), tolerance: f64) -> anyhow::Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    Files::new().write(&a);
    let mut files = Files::new();
    change(&mut files);
    files.write(&b);
    Comparison::of(Run::read(&a)?, Run::read(&b)?, tolerance)
}

/// Returns the verdict's sentence without the names of temporary folders.
#[track_caller]
fn sentence(change: impl Fn(&mut Files)) -> String {
    compare(change, 0.0).unwrap().sentence()
}

#[test]
fn equal_runs_are_equal_wherever_they_and_their_files_are() {
    let moved = |files: &mut Files| {
        files.set("/data/a", "/elsewhere/a");
        files.set("/models/a.pt2", "/elsewhere/b.pt2");
        files.set("every_steps = 1", "every_steps = 5");
        files.set("workers = \"auto\"", "workers = 3");
        files.change_from(1, "/step_ms", |step| json!(step));
    };
    let comparison = compare(moved, 0.0).unwrap();
    assert_eq!(comparison.verdict(), Verdict::Equal);
    assert_eq!(comparison.sentence(), "Equal: 4 steps (1 to 4), 1 evaluation have the same bits.");
    let text = text(&comparison);
    assert!(
        text.contains("Also different, without effect on steps: data.workers, log.every_steps."),
        "{text}"
    );
    assert!(!text.contains("data.root") && !text.contains("model.file"), "{text}");
}

#[test]
fn planted_differences_are_named() {
    type Plant = fn(&mut Files);
    let order: Plant = |files| {
        files.set("seed = 3", "seed = 4");
        files.change_from(1, "/order", |step| json!(format!("{:016x}", 99 + step)));
        files.other_losses(0.1);
    };
    let rate: Plant = |files| {
        files.set("lr = 0.5", "lr = 0.25");
        files.change_from(1, "/lr", |_| json!(0.25));
        files.change_from(2, "/loss", |_| json!(0.9));
    };
    let pixel: Plant = |files| {
        files.change_from(3, "/content/image", |step| json!(format!("{:016x}", 8 * step + 1)));
        files.change_from(3, "/content_numbers", |_| json!("00000067000000320000001c"));
        files.change_from(3, "/loss", |step| json!(2.001 / step as f64));
    };
    let labels: Plant = |files| {
        files.plan["environment"]["data"] = json!("eeeeeeeeeeeeeeee");
        files.change_from(2, "/content/label", |_| json!("00000000000000fe"));
        files.change_from(2, "/content_numbers", |_| json!("000000660000003300000020"));
    };
    let augmentation: Plant = |files| {
        files.set("workers = \"auto\"", "augment = \"flip\"");
        files.change_from(1, "/content/image", |_| json!("0000000000000007"));
        files.other_losses(0.1);
    };
    let batch: Plant = |files| {
        files.set("effective_batch = 4", "effective_batch = 8");
        files.plan["partition"] = json!("8 = 1 rank x 8 x 1 accumulation");
        files.change_from(1, "/samples", |step| json!(8 * step));
        files.change_from(1, "/order", |_| json!("0000000000000000"));
        files.other_losses(0.1);
    };
    let ranks: Plant = |files| {
        files.plan["nproc"] = json!(2);
        files.plan["environment"]["hosts"] = json!(["n1", "n1"]);
        files.plan["partition"] = json!("4 = 2 ranks x 2 x 1 accumulation");
        files.plan["environment"]["threads"] = json!(2);
        files.other_losses(3e-7);
    };
    let precision: Plant = |files| {
        files.set("[train]", "[precision]\namp = \"bf16\"\n[train]");
        files.plan["environment"]["precision"] = json!("bf16");
        files.other_losses(1e-3);
    };
    let batchnorm: Plant = |files| {
        files.set("name = \"vit\"", "name = \"vit\"\nbatchnorm = \"synced\"");
        files.other_losses(0.01);
    };
    let program: Plant = |files| {
        files.plan["environment"]["files"]["model.file"] = json!("eeeeeeeeeeeeeeee");
        files.other_losses(0.5);
    };
    let weights: Plant = |files| {
        files.set("name = \"vit\"", "name = \"vit\"\nweights = \"/w/b.safetensors\"");
        files.other_losses(0.5);
    };
    let trainer: Plant = |files| {
        files.plan["environment"]["trainer_hash"] = json!("bbbbbbbbbbbbbbbb");
        files.change_from(4, "/grad_norm", |_| json!(1.6));
    };
    let library: Plant = |files| {
        files.plan["environment"]["libtorch"] = json!("2.12.0, 6 bytes");
        files.other_losses(2e-7);
    };
    let threads: Plant = |files| {
        files.plan["environment"]["threads"] = json!(8);
        files.change_from(2, "/grad_norm", |_| json!(1.500_000_1));
    };
    let machine: Plant = |files| {
        files.plan["environment"]["devices"] = json!(["NVIDIA A100"]);
        files.plan["environment"]["hosts"] = json!(["n2"]);
        files.other_losses(2e-7);
    };
    let test_image: Plant = |files| files.lines[4]["eval"]["loss"] = json!(0.76);
    let cases: [(Plant, &str); 16] = [
        (order, "Different from step 1: order of the samples; likely cause: train.seed (3 and 4)."),
        (
            rate,
            "Different from step 1: learning rate (0.5 and 0.25, relative 5.0e-1); likely cause: optim.lr (0.5 and 0.25).",
        ),
        (
            pixel,
            "Different from step 3: samples' image (training sample 2); likely cause: changed files of the data.",
        ),
        (
            labels,
            "Different from step 2: samples' label; likely cause: files of the data (dddddddddddd and eeeeeeeeeeee).",
        ),
        (
            augmentation,
            "Different from step 1: samples' image; likely cause: data.augment (not set and flip).",
        ),
        (
            batch,
            "Different from step 1: samples so far (4 and 8, relative 5.0e-1); likely cause: train.effective_batch (4 and 8).",
        ),
        (
            ranks,
            "Different by rounding from step 1: loss (2 and 2.0000006, relative 3.0e-7); likely cause: ranks (1 and 2).",
        ),
        (
            precision,
            "Different by rounding from step 1: loss (2 and 2.002, relative 1.0e-3); likely cause: precision.amp (not set and bf16).",
        ),
        (
            batchnorm,
            "Different from step 1: loss (2 and 2.02, relative 9.9e-3); likely cause: model.batchnorm (not set and synced).",
        ),
        (
            program,
            "Different from step 1: loss (2 and 3, relative 3.3e-1); likely cause: content of model.file (ffffffffffff and eeeeeeeeeeee).",
        ),
        (
            weights,
            "Different from step 1: loss (2 and 3, relative 3.3e-1); likely cause: model.weights (not set and /w/b.safetensors).",
        ),
        (
            trainer,
            "Different from step 4: gradient norm (1.5 and 1.6, relative 6.3e-2); likely cause: trainer (dtrain-worker 0.1.0, hash aaaaaaaaaaaa and dtrain-worker 0.1.0, hash bbbbbbbbbbbb).",
        ),
        (
            library,
            "Different by rounding from step 1: loss (2 and 2.0000004, relative 2.0e-7); likely cause: libtorch (2.11.0, 5 bytes and 2.12.0, 6 bytes).",
        ),
        (
            threads,
            "Different by rounding from step 2: gradient norm (1.5 and 1.5000001, relative 6.7e-8); likely cause: threads of a rank (4 and 8).",
        ),
        (
            machine,
            "Different by rounding from step 1: loss (2 and 2.0000004, relative 2.0e-7); likely cause: device (NVIDIA H200 and NVIDIA A100).",
        ),
        (
            test_image,
            "Different from step 4: loss of test (0.75 and 0.76, relative 1.3e-2); no recorded input explains it.",
        ),
    ];
    for (plant, expected) in cases {
        assert_eq!(sentence(plant), expected);
    }
}

#[test]
fn each_cause_has_one_row() {
    let comparison = compare(
        |files| {
            files.set("effective_batch = 4", "effective_batch = 8");
            files.plan["nproc"] = json!(2);
            files.plan["environment"]["hosts"] = json!(["n1", "n1"]);
            files.plan["partition"] = json!("8 = 2 ranks x 4 x 1 accumulation");
            files.plan["environment"]["threads"] = json!(2);
            files.plan["environment"]["dtrain"] = json!("0.2.0");
            files.plan["environment"]["trainer_hash"] = json!("bbbbbbbbbbbbbbbb");
            files.change_from(1, "/samples", |step| json!(8 * step));
            files.change_from(1, "/order", |_| json!("0000000000000000"));
            files.change_from(1, "/content/image", |_| json!("0000000000000000"));
        },
        0.0,
    );
    let comparison = comparison.unwrap();
    let names: Vec<_> = comparison.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["train.effective_batch", "trainer", "ranks"]);
    let results: Vec<_> = comparison.steps.differences.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(results, ["samples so far"]);
}

#[test]
fn a_tolerance_makes_small_differences_equal() {
    let small = |files: &mut Files| files.other_losses(3e-7);
    let within = compare(small, 1e-6).unwrap();
    assert_eq!(within.verdict(), Verdict::Equal);
    assert_eq!(
        within.sentence(),
        "Equal within 1e-6: 4 steps (1 to 4), 1 evaluation; the largest difference is 3.0e-7."
    );
    assert_eq!(compare(small, 1e-7).unwrap().verdict(), Verdict::Rounding);
    assert_eq!(compare(|files| files.other_losses(1e-3), 1e-6).unwrap().verdict(), Verdict::Different);
}

#[test]
fn a_resumed_run_names_what_changed_between_its_attempts() {
    let resumed = |files: &mut Files| {
        let mut now = files.plan["environment"].clone();
        files.plan["earlier_environments"] = json!([now.clone()]);
        now["first_step"] = json!(3);
        now["threads"] = json!(2);
        now["hosts"] = json!(["n7"]);
        files.plan["environment"] = now;
        files.change_from(3, "/loss", |step| json!(2.000_000_4 / step as f64));
    };
    let comparison = compare(resumed, 0.0).unwrap();
    let sentence = comparison.sentence();
    assert!(sentence.starts_with("Different by rounding from step 3: loss (0.6666"), "{sentence}");
    assert!(sentence.ends_with("likely cause: threads of a rank (4 and 2)."), "{sentence}");
    let text = text(&comparison);
    assert!(text.contains("\n   from step 3 with hosts n7 (before n1), threads 2 (before 4)\n"), "{text}");
}

#[test]
fn ranks_and_precisions_are_those_of_the_step_that_differs() {
    let grown = |files: &mut Files| {
        let first = files.plan["environment"].clone();
        let mut before = first.clone();
        before["threads"] = json!(2);
        let mut now = first;
        (now["first_step"], now["hosts"]) = (json!(3), json!(["n1", "n1"]));
        now["precision"] = json!("bf16");
        files.plan["nproc"] = json!(2);
        files.plan["earlier_environments"] = json!([before]);
        files.plan["environment"] = now;
    };
    let early = |files: &mut Files| {
        grown(files);
        files.other_losses(3e-7);
    };
    let comparison = compare(early, 0.0).unwrap();
    assert!(
        comparison.sentence().ends_with("likely cause: threads of a rank (4 and 2)."),
        "{}",
        comparison.sentence()
    );
    let text = text(&comparison);
    assert!(text.contains("from step 3 with ranks 2 (before 1), "), "{text}");
    let late = |files: &mut Files| {
        grown(files);
        files.change_from(3, "/loss", |step| json!(2.0 / step as f64 * 1.001));
    };
    let sentence = compare(late, 0.0).unwrap().sentence();
    assert!(sentence.starts_with("Different by rounding from step 3"), "{sentence}");
    assert!(sentence.contains("likely cause: ranks (1 and 2)"), "{sentence}");
}

#[test]
fn a_setting_with_a_small_effect_is_no_rounding() {
    let decay = |files: &mut Files| {
        files.set("lr = 0.5", "lr = 0.5\nweight_decay = 0.1");
        files.change_from(2, "/loss", |step| json!(2.0 / step as f64 * (1.0 + 2e-6)));
    };
    let alone = compare(decay, 0.0).unwrap().sentence();
    assert!(alone.starts_with("Different from step 2") && alone.contains("optim.weight_decay"), "{alone}");
    let both = |files: &mut Files| {
        decay(files);
        files.plan["environment"]["threads"] = json!(8);
    };
    let both = compare(both, 0.0).unwrap().sentence();
    assert!(both.starts_with("Different by rounding") && both.contains("optim.weight_decay"), "{both}");
}

#[test]
fn lines_before_those_that_repeat_them_do_not_count() {
    let repeated = |files: &mut Files| {
        let third = files.lines[2].clone();
        files.change_from(3, "/loss", |_| json!(9.0));
        files.lines.push(third);
    };
    let sentence = compare(repeated, 0.0).unwrap().sentence();
    assert_eq!(sentence, "Equal: 3 steps (1 to 3) have the same bits.");
}

#[test]
fn a_file_of_one_checkpoint_is_a_difference() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["a", "b"].map(|name| {
        let run = folder.path().join(name);
        Files::new().write(&run);
        let checkpoint = run.join("checkpoints/step-00000002");
        fs::create_dir_all(&checkpoint).unwrap();
        let none: [(&str, safetensors::tensor::TensorView<'_>); 0] = [];
        fs::write(checkpoint.join("model.safetensors"), safetensors::serialize(none, None).unwrap()).unwrap();
        run
    });
    let compared = || Comparison::of(Run::read(&runs[0])?, Run::read(&runs[1])?, 1e-3);
    assert!(compared().unwrap().sentence().contains("1 checkpoint"));
    let of_b = runs[1].join("checkpoints/step-00000002");
    fs::copy(of_b.join("model.safetensors"), of_b.join("ema.safetensors")).unwrap();
    let comparison = compared().unwrap();
    assert_eq!(comparison.verdict(), Verdict::Different);
    let text = text(&comparison);
    assert!(text.contains("Tensors of step 2:\n  only B has ema.safetensors\n"), "{text}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let error = |change: fn(&mut Files)| format!("{:#}", compare(change, 0.0).unwrap_err());
    assert!(error(|files| files.set("classify", "segment")).contains("has classify, "));
    let apart = error(|files| files.lines.clear());
    assert!(
        apart.contains("no step in common")
            && apart.contains("has the steps 1 to 4, ")
            && apart.ends_with("has no step"),
        "{apart}"
    );
    let folder = tempfile::tempdir().unwrap();
    let missing = |path: &Path| Run::read(path).unwrap_err().to_string();
    assert!(missing(folder.path()).ends_with("it has no recipe.toml"));
    assert!(missing(&folder.path().join("x")).ends_with("there is no such folder"));
    Files::new().write(folder.path());
    fs::write(folder.path().join("metrics.jsonl"), "{\"step\": 1}\nnonsense\n").unwrap();
    let damaged = format!("{:#}", Run::read(folder.path()).unwrap_err());
    assert!(damaged.contains("metrics.jsonl: line 2"), "{damaged}");
}

#[test]
fn runs_of_earlier_versions_are_compared_by_their_numbers() {
    let old = |files: &mut Files| {
        files.plan = json!({"nproc": 1});
        for line in &mut files.lines {
            let line = line.as_object_mut().unwrap();
            line.retain(|key, _| !["order", "content", "content_numbers"].contains(&key.as_str()));
        }
    };
    let comparison = compare(old, 0.0).unwrap();
    assert_eq!(comparison.verdict(), Verdict::Equal);
    assert!(text(&comparison).contains("Not compared: "));
}

#[test]
fn the_json_form_has_all() {
    let comparison = compare(
        |files| {
            files.set("seed = 3", "seed = 4");
            files.other_losses(f64::NAN);
        },
        0.0,
    );
    let object = object(&comparison.unwrap());
    assert_eq!(object["verdict"], "different");
    assert_eq!(object["first"], json!({"step": 1, "kind": "loss", "relative": null}));
    assert_eq!(object["causes"], json!(["train.seed"]));
    assert_eq!(object["inputs"][0]["values"], json!(["3", "4"]));
    assert_eq!(object["results"][0]["steps"], 4);
    assert_eq!(object["steps"], json!({"first": 1, "last": 4, "count": 4}));
}
