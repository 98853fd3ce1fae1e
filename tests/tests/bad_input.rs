//! Bad input: a clear error, exit code 2, nothing left running and nothing overwritten.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use dtrain_tests::ranks::said;
use dtrain_tests::runs::{Sandbox, TINY, contents};

/// A recipe on an image folder.
fn folder_recipe() -> String {
    let generated = "kind = \"generated\"\nclasses = 4\ntrain_samples = 96\ntest_samples = 37\n";
    assert!(TINY.contains(generated));
    TINY.replace(generated, "root = \"data\"\n")
}

/// `data/{train,test}` with two classes of small PNG files.
fn image_folder(sandbox: &Sandbox, train: usize, test: usize) {
    for (split, count) in [("train", train), ("test", test)] {
        for (class, shade) in [("dark", 40u8), ("light", 200)] {
            let folder = sandbox.path(&format!("data/{split}/{class}"));
            fs::create_dir_all(&folder).unwrap();
            for index in 0..count {
                let pixel =
                    |x: u32, y: u32| image::Rgb([shade, (x * 8) as u8, (y as usize * 3 + index) as u8]);
                let image = image::RgbImage::from_fn(32, 32, pixel);
                image.save(folder.join(format!("{index:03}.png"))).unwrap();
            }
        }
    }
}

fn refused(sandbox: &Sandbox, nproc: usize, sets: &[&str], more: &[&str], words: &[&str]) {
    let output = sandbox.launch_with(nproc, "run", sets, more);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    let errors = text.lines().filter(|line| line.contains("error:")).count();
    assert_eq!(errors, 1, "one error, said once: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn image_folders_that_cannot_be_used() {
    let sandbox = Sandbox::new(&folder_recipe());
    refused(&sandbox, 2, &[], &[], &["data.root", "data"]);
    fs::create_dir_all(sandbox.path("data/train")).unwrap();
    fs::create_dir_all(sandbox.path("data/test")).unwrap();
    refused(&sandbox, 2, &[], &[], &["train"]);
    image_folder(&sandbox, 20, 4);
    fs::create_dir(sandbox.path("data/train/hollow")).unwrap();
    refused(&sandbox, 2, &[], &[], &["hollow"]);
    fs::remove_dir(sandbox.path("data/train/hollow")).unwrap();
    let run = sandbox.train(2, "whole", &[]);
    assert_eq!(run.result().skipped_images, Some(0));
}

#[test]
fn a_few_corrupt_images_are_named_and_skipped() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 100, 4);
    fs::write(sandbox.path("data/train/dark/broken.png"), b"not an image").unwrap();
    let output = sandbox.launch(2, "run", &["train.steps=2"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("broken.png") && text.contains("1 of 201"), "{text}");
    assert!(text.contains("200 training"), "{text}");
}

#[test]
fn many_corrupt_images_are_an_error() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 20, 4);
    let whole = fs::read(sandbox.path("data/train/dark/000.png")).unwrap();
    fs::write(sandbox.path("data/train/dark/000.png"), &whole[..whole.len() / 2]).unwrap();
    refused(&sandbox, 2, &[], &[], &["000.png", "1%"]);
}

#[test]
fn recipes_that_are_wrong() {
    let sandbox = Sandbox::new(TINY);
    refused(
        &sandbox,
        2,
        &["train.efective_batch=8"],
        &[],
        &["efective_batch", "effective_batch"],
    );
    refused(
        &sandbox,
        2,
        &["train.effective_batch=\"many\""],
        &[],
        &["train.effective_batch"],
    );
    fs::write(sandbox.path("recipe.toml"), TINY.replace("seed = 3", "sead = 3")).unwrap();
    refused(&sandbox, 2, &[], &[], &["recipe.toml:15", "train.sead", "`seed`"]);
    assert!(
        !sandbox.path("run").exists(),
        "nothing is written for a recipe that is refused"
    );
}

#[test]
fn numbers_of_ranks_that_cannot_be() {
    let sandbox = Sandbox::new(TINY);
    refused(&sandbox, 0, &[], &[], &["--nproc"]);
    refused(&sandbox, 3, &["train.effective_batch=2"], &[], &["2", "3"]);
    assert!(!sandbox.path("run").exists());
    // BatchNorm cannot normalise one pixel of one sample.
    refused(
        &sandbox,
        2,
        &["train.effective_batch=2"],
        &[],
        &["micro-batch", "BatchNorm"],
    );
}

#[test]
fn another_run_is_not_overwritten() {
    let sandbox = Sandbox::new(TINY);
    sandbox.train(1, "run", &["train.steps=2"]);
    let before = contents(&sandbox.path("run"));
    refused(
        &sandbox,
        1,
        &["model.name=\"resnet34\""],
        &[],
        &["model.name", "resnet34", "--run-dir"],
    );
    refused(&sandbox, 1, &[], &["--resume", "never"], &["--run-dir"]);
    assert!(
        before == contents(&sandbox.path("run")),
        "the first run was changed"
    );

    // Its checkpoint does not fit another model in a folder of its own either.
    let checkpoint = sandbox.path("run/checkpoints/latest");
    let resume = ["--resume", checkpoint.to_str().unwrap()];
    let output = sandbox.launch_with(1, "other", &["model.name=\"resnet34\""], &resume);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(!sandbox.path("other").exists());
}

#[test]
fn damaged_checkpoints_and_foreign_weights_are_refused() {
    let sandbox = Sandbox::new(TINY);
    sandbox.train(1, "run", &["train.steps=2"]);
    let model = sandbox.path("run/checkpoints/step-00000002/model.safetensors");
    let weights = format!("model.weights={:?}", model.to_str().unwrap());
    let output = sandbox.launch(
        1,
        "other",
        &[&weights, "model.name=\"resnet34\"", "train.steps=1"],
    );
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("resnet18"), "{text}");

    let mut bytes = fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&model, bytes).unwrap();
    refused(&sandbox, 1, &["train.steps=4"], &[], &["model.safetensors"]);
}

#[test]
fn a_folder_without_permission_is_named() {
    // The superuser reads everything; the test needs a folder that even it cannot list.
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 4, 2);
    let train = sandbox.path("data/train");
    let mut permissions = fs::metadata(&train).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o000);
    fs::set_permissions(&train, permissions.clone()).unwrap();
    let readable = fs::read_dir(&train).is_ok();
    if !readable {
        refused(&sandbox, 2, &[], &[], &["train"]);
    }
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&train, permissions).unwrap();
    if readable {
        eprintln!("skipped: this user reads folders without permission");
    }
    assert!(Path::new(&train).is_dir());
}
