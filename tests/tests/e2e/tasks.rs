//! Segmentation and language models with the launcher: they learn, with equal results in any partition, and
//! reject unusable input.

use std::fs;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough::{self, ranks};
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, assert_close};

use crate::bad_input::refused_by;

/// A U-Net on generated images of 16 pixels.
const SEGMENT: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
train_samples = 32
test_samples = 11
image_size = 16
workers = 1
[model]
width = 4
depth = 2
[train]
effective_batch = 8
epochs = 2
seed = 3
[optim]
lr = 0.01
[memory]
micro_batch = 4
[log]
every_steps = 1
"#;

/// A GPT on a generated text.
const LM: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 64
test_samples = 13
workers = 1
[model]
width = 32
depth = 2
heads = 2
context = 16
[train]
effective_batch = 10
steps = 6
seed = 3
[optim]
lr = 0.01
[log]
every_steps = 1
"#;

fn mean(part: &[f64]) -> f64 {
    part.iter().sum::<f64>() / part.len() as f64
}

fn manifest(run: &Run) -> Manifest {
    Manifest::read(&run.0.latest()).unwrap()
}

fn expect_error(sandbox: &Sandbox, sets: &[&str], words: &[&str]) {
    // An error of a worker leaves a run directory with its log.
    let _ = fs::remove_dir_all(sandbox.path("refused"));
    refused_by(&mut sandbox.command(ranks(), "refused", sets, &[]), words);
}

/// Writes images of two halves with masks. Some masks have a band without a class, larger for higher numbers.
fn scenes(sandbox: &Sandbox, split: &str, count: usize) {
    for folder in [split.to_owned(), format!("{split}_masks")] {
        fs::create_dir_all(sandbox.path(&format!("data/{folder}"))).unwrap();
    }
    for index in 0..count {
        let border = 4 + (index * 5 % 9) as u32;
        let path = |folder: &str| sandbox.path(&format!("data/{folder}/{index:02}.png"));
        let shade = |x, y| {
            if x < border { [200, 40, y as u8] } else { [30, 160, x as u8 * 9] }
        };
        image::RgbImage::from_fn(16, 16, |x, y| image::Rgb(shade(x, y))).save(path(split)).unwrap();
        let class = |x, y| match () {
            () if (y as usize) < index => 9,
            () if x < border => 0,
            () => 1,
        };
        image::GrayImage::from_fn(16, 16, |x, y| image::Luma([class(x, y)]))
            .save(path(&format!("{split}_masks")))
            .unwrap();
    }
}

fn scenes_recipe() -> String {
    let generated = "kind = \"generated\"\nclasses = 3\ntrain_samples = 32\ntest_samples = 11\n";
    assert!(SEGMENT.contains(generated));
    SEGMENT.replace(generated, "root = \"data\"\nclasses = 2\nignore = 9\n")
}

#[test]
fn segmentation_learns_on_two_ranks() {
    let sandbox = Sandbox::new(SEGMENT);
    let run = sandbox.train(2, "run", &["train.epochs=12", "checkpoint.every=\"12 epochs\""]);
    let losses = run.per_step("loss");
    assert!(mean(&losses[40..]) < 0.6 * mean(&losses[..4]), "{losses:?}");
    let result = run.result();
    let figure = |name: &str| result.final_metrics[name];
    assert!(figure("mean_iou") > 0.4 && figure("pixel_accuracy") > 0.7, "{result:?}");
    let manifest = manifest(&run);
    assert_eq!((manifest.classes, manifest.model.as_str()), (3, "unet"));
    assert!(manifest.extra.is_null());
}

#[test]
fn ignored_pixels_have_no_weight_in_any_cut() {
    let sandbox = Sandbox::new(&scenes_recipe());
    scenes(&sandbox, "train", 16);
    scenes(&sandbox, "test", 5);
    // Micro-batches of 4 in both runs, because of BatchNorm; their numbers of pixels with a class differ.
    let one = sandbox.train(1, "one", &[]);
    let two = sandbox.train(2, "two", &[]);
    assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-5);
    assert_close(&one.per_step("grad_norm"), &two.per_step("grad_norm"), 1e-4);
    // Without the rows that have no class, the same images give other losses.
    let other = sandbox.train(1, "other", &["data.classes=10", "data.ignore=200", "train.steps=1"]);
    assert!((other.per_step("loss")[0] - one.per_step("loss")[0]).abs() > 1e-3);
}

/// Writes scenes whose masks have one value on the left and another on the right.
fn scenes_of(sandbox: &Sandbox, split: &str, count: usize, left: u8, right: u8) {
    scenes(sandbox, split, count);
    for index in 0..count {
        let value = |x, _| image::Luma([if x < 5 { left } else { right }]);
        let mask = sandbox.path(&format!("data/{split}_masks/{index:02}.png"));
        image::GrayImage::from_fn(16, 16, value).save(mask).unwrap();
    }
}

#[test]
fn masks_with_an_ignored_object_are_an_error() {
    let sandbox = Sandbox::new(&scenes_recipe().replace("ignore = 9\n", ""));
    scenes_of(&sandbox, "train", 8, 0, 255);
    scenes_of(&sandbox, "test", 4, 0, 255);
    expect_error(
        &sandbox,
        &[],
        &[
            "train_masks hold class 0 alone: 68.8% of the pixels have the value 255",
            "data.ignore",
            "data.masks = \"binary\"",
        ],
    );
    expect_error(
        &sandbox,
        &["data.masks=\"binary\"", "data.ignore=1"],
        &["hold class 0 alone", "set data.ignore to another value than 0 and 1"],
    );
    let text =
        expect_exit_code(&sandbox.launch(ranks(), "binary", &["data.masks=\"binary\"", "train.steps=1"]), 0);
    let words =
        "pixels by class in 8 masks of train_masks: 0 31.2%, 1 68.8%; 0.0% are ignored (data.ignore = 255)";
    assert!(text.contains(words), "{text}");

    // Test masks with one class give a warning, and masks without a class an error.
    scenes_of(&sandbox, "test", 4, 7, 7);
    let text =
        expect_exit_code(&sandbox.launch(ranks(), "one", &["data.masks=\"binary\"", "train.steps=1"]), 0);
    assert!(text.contains("test_masks have only class 1"), "{text}");
    scenes_of(&sandbox, "train", 8, 0, 1);
    scenes_of(&sandbox, "test", 4, 255, 255);
    expect_error(&sandbox, &[], &["test_masks", "value 255", "data.ignore = 255 excludes"]);
}

#[test]
fn absent_classes_and_ignored_pixels_are_reported() {
    let sandbox = Sandbox::new(&scenes_recipe());
    scenes(&sandbox, "train", 8);
    scenes(&sandbox, "test", 4);
    let text = expect_exit_code(&sandbox.launch(ranks(), "run", &["data.classes=5", "train.steps=1"]), 0);
    // In 8 images, 0 to 7 of 16 rows have no class.
    for words in
        ["21.9% are ignored (data.ignore = 9)", "no pixel in 8 masks of train_masks is of class 2, 3, 4"]
    {
        assert!(text.contains(words), "no {words:?} in: {text}");
    }
}

#[test]
fn a_step_without_a_pixel_that_counts_changes_nothing() {
    let sandbox = Sandbox::new(&scenes_recipe());
    // In the mask of the last image, no row has a class.
    scenes(&sandbox, "train", 17);
    scenes(&sandbox, "test", 4);
    let run = sandbox.train(2, "run", &["train.effective_batch=2", "train.epochs=1"]);
    assert!(run.result().final_metrics.values().all(|value| value.is_finite()));
    let sets = ["train.effective_batch=1", "train.epochs=1", "memory.micro_batch=1"];
    let run = sandbox.train(1, "one", &sets);
    let skipped = run.metrics().iter().filter(|line| line["skipped"] == true).count();
    assert_eq!(skipped, 1);
    let figures = run.result().final_metrics;
    assert!(figures.values().all(|value| value.is_finite()), "{figures:?}");

    // Cropping leaves only pixels without a class.
    for split in ["train", "test"] {
        for index in 0..17 {
            let image = sandbox.path(&format!("data/{split}/{index:02}.png"));
            if image.exists() {
                let class = |x: u32, _| match x {
                    0..2 => image::Luma([0_u8]),
                    2..31 => image::Luma([9]),
                    _ => image::Luma([1]),
                };
                let mask = sandbox.path(&format!("data/{split}_masks/{index:02}.png"));
                image::RgbImage::new(32, 16).save(image).unwrap();
                image::GrayImage::from_fn(32, 16, class).save(mask).unwrap();
            }
        }
    }
    let text = expect_exit_code(&sandbox.launch(ranks(), "nothing", &["train.steps=2"]), 2);
    let words = "no sample or pixel counted from step 1 to step 2";
    assert!(text.contains(words) && text.contains("data.ignore"), "{text}");
}

#[test]
fn counted_pixels_are_tested_once() {
    let sandbox = Sandbox::new(&scenes_recipe());
    scenes(&sandbox, "train", 12);
    scenes(&sandbox, "test", 5);
    // In 5 images, 0, 1, 2, 3 and 4 of 16 rows have no class.
    let pixels = (5 * 16 - 10) as f64 * 16.0;
    let mut seen = Vec::new();
    for &nproc in thorough::cases(&[1, 3, 2], 2) {
        let sets = ["train.steps=1", "optim.lr=0.0", "train.effective_batch=12", "memory.micro_batch=2"];
        let run = sandbox.train(nproc, &format!("run-{nproc}"), &sets);
        let evaluation = &run.evaluations()[0];
        assert_eq!(evaluation["samples"].as_u64(), Some(5));
        let right = evaluation["pixel_accuracy"].as_f64().unwrap() * pixels;
        assert!((right - right.round()).abs() < 1e-6, "{right} of {pixels} is no whole number");
        seen.push(evaluation["loss"].as_f64().unwrap());
    }
    for other in &seen[1..] {
        assert_close(&seen[..1], &[*other], 1e-5);
    }
}

#[test]
fn folders_without_masks_are_named() {
    let sandbox = Sandbox::new(&scenes_recipe());
    scenes(&sandbox, "train", 8);
    scenes(&sandbox, "test", 4);
    expect_error(&sandbox, &["data.train_masks=\"labels\""], &["data.train_masks", "labels"]);
    // A mask without an image, and a value that is not a class.
    let mask = sandbox.path("data/train_masks/03.png");
    fs::rename(&mask, sandbox.path("data/train_masks/elsewhere.png")).unwrap();
    expect_error(&sandbox, &[], &["03.png", "elsewhere.png"]);
    fs::rename(sandbox.path("data/train_masks/elsewhere.png"), &mask).unwrap();
    expect_error(&sandbox, &["data.ignore=255"], &["value 9", "data.ignore"]);
    expect_error(&sandbox, &["model.name=\"resnet18\""], &["model.name", "\"unet\""]);
    expect_error(&sandbox, &["model.depth=8"], &["model.depth"]);
    // Images keep their size, which only the files tell, and the network is too deep for it.
    let recipe = scenes_recipe().replace("image_size = 16", "resize = \"none\"");
    fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    expect_error(&sandbox, &["model.depth=5"], &["model.depth", "16 x 16"]);
    sandbox.train(ranks(), "whole", &["train.steps=1"]);
}

#[test]
fn a_language_model_learns_on_two_ranks_and_keeps_its_vocabulary() {
    let sandbox = Sandbox::new(LM);
    let run = sandbox.train(2, "run", &["train.steps=60", "checkpoint.every=\"60 steps\""]);
    let losses = run.per_step("loss");
    // In nats per character: a uniform guess among 29 is 3.4.
    assert!(losses[0] > 3.0 && mean(&losses[50..]) < 2.5, "{losses:?}");
    let figures = run.result().final_metrics;
    let loss = figures["loss"];
    assert!((figures["perplexity"] - loss.exp()).abs() < 1e-9 * loss.exp());
    assert!((figures["bits_per_char"] - loss / std::f64::consts::LN_2).abs() < 1e-9);
    let manifest = manifest(&run);
    assert_eq!(manifest.classes, 29);
    let characters = manifest.extra["vocabulary"]["chars"].as_str().unwrap();
    assert!(characters.contains('q') && characters.chars().count() == 29, "{characters:?}");
}

#[test]
fn steps_of_a_language_model_do_not_depend_on_the_cut() {
    let sandbox = Sandbox::new(LM);
    let one = sandbox.train(1, "one", &["train.steps=8"]);
    let tested = |run: &Run| run.evaluations()[0]["loss"].as_f64().unwrap();
    // 64 samples in steps of 10: the last of an epoch has 4. Three ranks hold 4, 3 and 3.
    for &(nproc, micro_batch) in thorough::cases(&[(3, 3), (2, 2), (1, 3), (2, 10)], 2) {
        let run = format!("run-{nproc}-{micro_batch}");
        let sets = [format!("memory.micro_batch={micro_batch}"), "train.steps=8".into()];
        let other = sandbox.train(nproc, &run, &sets.each_ref().map(String::as_str));
        assert_close(&one.per_step("loss")[..6], &other.per_step("loss")[..6], 1e-5);
        assert_close(&one.per_step("grad_norm")[..6], &other.per_step("grad_norm")[..6], 1e-4);
        assert_eq!(other.evaluations()[0]["samples"].as_u64(), Some(13));
        assert!((tested(&one) - tested(&other)).abs() < 1e-4, "{run}");
    }
}

#[test]
fn unusable_texts_are_named() {
    let generated = "kind = \"generated\"\ntrain_samples = 64\ntest_samples = 13\n";
    let sandbox = Sandbox::new(&LM.replace(generated, "root = \"text.txt\"\n"));
    expect_error(&sandbox, &[], &["data.root", "text.txt"]);
    fs::write(sandbox.path("text.txt"), "A short text.").unwrap();
    expect_error(&sandbox, &[], &["context", "16"]);
    fs::write(sandbox.path("text.txt"), [0x41, 0xff, 0x42]).unwrap();
    expect_error(&sandbox, &[], &["text.txt", "UTF-8"]);
    expect_error(&sandbox, &["model.name=\"vit\""], &["model.name", "\"gpt\""]);

    // A text with the same number of different characters would change the meaning of the numbers.
    let text = |from: &str| from.repeat(100);
    fs::write(sandbox.path("text.txt"), text("the cat sat on a mat. ")).unwrap();
    sandbox.train(ranks(), "run", &["train.steps=2"]);
    fs::write(sandbox.path("text.txt"), text("the cat sat in a mat! ")).unwrap();
    refused_by(&mut sandbox.command(ranks(), "run", &["train.steps=4"], &[]), &["vocabulary", "--run-dir"]);
    fs::write(sandbox.path("text.txt"), text("the cat sat on a mat. ")).unwrap();
    let resumed = sandbox.train(ranks(), "run", &["train.steps=4"]);
    assert_eq!(resumed.per_step("loss").len(), 4);
}
