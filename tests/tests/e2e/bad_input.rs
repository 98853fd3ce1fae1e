//! Bad input: a clear error, exit code 2, no process left and no file overwritten.

use std::fs;
use std::process::Command;
use std::time::Duration;

use dtrain_common::gpu::{GpuError, inventory};
use dtrain_test_kit::need::{self, Need};
use dtrain_test_kit::thorough::{self, ranks};
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::runs::{Sandbox, TINY, contents, resnet18};

/// Returns a recipe for an image folder.
pub(crate) fn folder_recipe() -> String {
    let generated = "kind = \"generated\"\nclasses = 4\ntrain_samples = 96\ntest_samples = 37\n";
    assert!(TINY.contains(generated));
    TINY.replace(generated, "root = \"data\"\n")
}

/// Writes `data/{train,test}` with two classes of small PNG files.
pub(crate) fn image_folder(sandbox: &Sandbox, train: usize, test: usize) {
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

/// Writes the folders of [`image_folder`] with equal images of a class, which are links to one file.
pub(crate) fn equal_images(sandbox: &Sandbox, train: usize, test: usize) {
    image_folder(sandbox, 1, 1);
    for (split, count) in [("train", train), ("test", test)] {
        for class in ["dark", "light"] {
            let folder = sandbox.path(&format!("data/{split}/{class}"));
            for index in 0..count {
                fs::hard_link(folder.join("000.png"), folder.join(format!("{index:05}.png"))).unwrap();
            }
            fs::remove_file(folder.join("000.png")).unwrap();
        }
    }
}

/// Far longer than an error takes, and shorter than the ranks wait for each other.
const LIMIT: Duration = Duration::from_secs(120);

fn expect_error(sandbox: &Sandbox, nproc: usize, sets: &[&str], more: &[&str], words: &[&str]) {
    refused_by(&mut sandbox.command(nproc, "run", sets, more), words);
}

/// Checks that the command ends with a usage error that contains these words, once.
pub(crate) fn refused_by(command: &mut Command, words: &[&str]) {
    let text = expect_exit_code(&finish(command, LIMIT), 2);
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    let errors = text.lines().filter(|line| line.contains("error:")).count();
    assert_eq!(errors, 1, "expected one error line: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn unusable_image_folders_are_errors() {
    let sandbox = Sandbox::new(&folder_recipe());
    expect_error(&sandbox, 2, &[], &[], &["data.root", "data"]);
    fs::create_dir_all(sandbox.path("data/train")).unwrap();
    fs::create_dir_all(sandbox.path("data/test")).unwrap();
    expect_error(&sandbox, ranks(), &[], &[], &["train"]);
    image_folder(&sandbox, 20, 4);
    fs::create_dir(sandbox.path("data/train/hollow")).unwrap();
    expect_error(&sandbox, ranks(), &[], &[], &["hollow"]);
    fs::remove_dir(sandbox.path("data/train/hollow")).unwrap();
    let run = sandbox.train(ranks(), "whole", &[]);
    assert_eq!(run.result().skipped_images, Some(0));
}

#[test]
fn a_few_corrupt_images_are_named_and_skipped() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 100, 4);
    fs::write(sandbox.path("data/train/dark/broken.png"), b"not an image").unwrap();
    let text = expect_exit_code(&sandbox.launch(ranks(), "run", &["train.steps=2"]), 0);
    assert!(text.contains("broken.png") && text.contains("1 of 201"), "{text}");
    assert!(text.contains("200 training"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours in a pipe: {text:?}");
}

/// Images whose header is whole and whose pixels are not: a check of headers does not find them.
pub(crate) fn cut_off(sandbox: &Sandbox, split: &str, images: usize) {
    for index in 0..images {
        let path = sandbox.path(&format!("data/{split}/dark/{index:05}.png"));
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(path, &whole[..whole.len() / 2]).unwrap();
    }
}

#[test]
fn the_same_bad_images_count_once_and_bad_test_images_do_not_count() {
    let sandbox = Sandbox::new(&folder_recipe());
    // More than are decoded before the run.
    equal_images(&sandbox, 5050, 5050);
    cut_off(&sandbox, "train", 60);
    cut_off(&sandbox, "test", 50);
    let sets =
        ["data.image_size=8", "train.effective_batch=505", "train.epochs=2", "checkpoint.every=1 epoch"];
    // 60 in each of two epochs are more than 1% of 10,100, and 60 different ones are less.
    let text = expect_exit_code(&sandbox.launch(2, "run", &sets), 0);
    let run = sandbox.run("run");
    assert_eq!(run.result().skipped_images, Some(60));
    let evaluations = run.evaluations();
    assert_eq!(evaluations.len(), 2);
    for eval in evaluations {
        assert_eq!(
            (eval["samples"].as_u64(), eval["unreadable"].as_u64()),
            (Some(10_050), Some(50)),
            "{eval}"
        );
    }
    let named = text.matches("data/test/dark/00000.png cannot be read").count();
    assert_eq!(named, 1, "two evaluations name an image once: {text}");

    cut_off(&sandbox, "test", 110);
    let sets = ["data.image_size=8", "train.effective_batch=505", "train.steps=1"];
    let text = expect_exit_code(&sandbox.launch(ranks(), "many", &sets), 2);
    assert!(text.contains("110 of 10100 test images are unreadable, more than the limit of 1%"), "{text}");
}

#[test]
fn images_with_an_exif_orientation_are_named() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 20, 4);
    let pictures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("parity/reference/pictures");
    fs::copy(pictures.join("turned-6.jpg"), sandbox.path("data/train/dark/upright.jfif")).unwrap();
    for (value, words) in [
        ("stored", "the EXIF orientation of 1 file in train is ignored: "),
        ("exif", "turning 1 file in train by EXIF orientation: "),
    ] {
        let set = format!("data.orientation={value}");
        let text = expect_exit_code(&sandbox.launch(ranks(), value, &["train.steps=1", &set]), 0);
        assert!(text.contains(words) && text.contains("upright.jfif"), "{text}");
    }
}

#[test]
fn twenty_of_many_corrupt_images_are_named() {
    let sandbox = Sandbox::new(&folder_recipe());
    equal_images(&sandbox, 1250, 4);
    for index in 0..25 {
        let path = sandbox.path(&format!("data/train/dark/{index:05}.png"));
        fs::remove_file(&path).unwrap();
        fs::write(path, b"no image").unwrap();
    }
    for name in ["dark/a.gif", "dark/b.GIF", "light/c.heic", "notes.txt", "light/.hidden.gif"] {
        fs::write(sandbox.path(&format!("data/train/{name}")), b"").unwrap();
    }
    let text = expect_exit_code(&sandbox.launch(ranks(), "run", &["train.steps=1"]), 0);
    assert_eq!(text.matches("cannot be read and is left out").count(), 20, "{text}");
    assert!(text.contains("25 of 2500 images in train cannot be read and are left out"), "{text}");
    assert!(text.contains("ignoring 4 files in train: 2 .gif, 1 .heic, 1 .txt"), "{text}");
}

#[test]
fn a_pipe_among_the_images_does_not_hang() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 100, 4);
    let pipe = sandbox.path("data/train/dark/pipe.png");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = output_text(&finish(&mut sandbox.command(ranks(), "run", &["train.steps=2"], &[]), LIMIT));
    assert!(
        text.contains(
            "pipe.png cannot be read and is left out: the file cannot be read: it is a named pipe, not a file"
        ),
        "{text}"
    );
    assert!(text.contains("1 of 201") && text.contains("200 training"), "{text}");
}

#[test]
fn images_of_one_class_are_an_error() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 20, 4);
    for split in ["train", "test"] {
        fs::remove_dir_all(sandbox.path(&format!("data/{split}/light"))).unwrap();
    }
    expect_error(&sandbox, ranks(), &[], &[], &["train", "one class only, `dark`"]);
}

#[test]
fn a_batch_larger_than_the_training_set_is_reported() {
    let sandbox = Sandbox::new(TINY);
    let text =
        expect_exit_code(&sandbox.launch(ranks(), "run", &["train.effective_batch=128", "train.steps=1"]), 0);
    let words = "train.effective_batch = 128 is more than the 96 training samples: every step takes all 96";
    assert!(text.contains(words), "{text}");
}

#[test]
fn many_corrupt_images_are_an_error() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 20, 4);
    let whole = fs::read(sandbox.path("data/train/dark/000.png")).unwrap();
    fs::write(sandbox.path("data/train/dark/000.png"), &whole[..whole.len() / 2]).unwrap();
    expect_error(&sandbox, ranks(), &[], &[], &["000.png", "1%"]);
}

#[test]
fn an_error_of_rank_0_is_reported_once() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 100, 4);
    // The number of steps per epoch is known only from the data.
    let sets = ["train.steps=2", "optim.schedule.warmup=1 epoch"];
    let output = finish(&mut sandbox.command(2, "run", &sets, &[]), LIMIT);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    let lines: Vec<_> = text.lines().filter(|line| !line.contains("run directory")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].starts_with("dtrain: error: optim.schedule.warmup is "), "{text}");
}

#[test]
fn invalid_recipes_are_errors() {
    let sandbox = Sandbox::new(TINY);
    expect_error(&sandbox, 2, &["train.efective_batch=8"], &[], &["efective_batch", "effective_batch"]);
    expect_error(&sandbox, 2, &["train.effective_batch=\"many\""], &[], &["train.effective_batch"]);
    fs::write(sandbox.path("recipe.toml"), TINY.replace("seed = 3", "sead = 3")).unwrap();
    expect_error(&sandbox, 2, &[], &[], &["recipe.toml:19", "train.sead", "`seed`"]);
    assert!(!sandbox.path("run").exists(), "nothing is written for a recipe that is refused");
}

#[test]
fn unknown_optimizers_schedules_and_precisions_are_errors() {
    let sandbox = Sandbox::new(TINY);
    let cases: [(&str, &[&str]); 5] = [
        ("optim.name=\"adamx\"", &["optim.name", "adamx", "adamw"]),
        ("optim.schedule={ name = \"cosin\" }", &["optim.schedule.name", "cosin", "cosine"]),
        ("precision.amp=\"fp8\"", &["precision.amp", "fp8", "bf16"]),
        ("train.effective_batch=0", &["train.effective_batch", "1"]),
        ("train.effective_batch=-4", &["train.effective_batch", "-4"]),
    ];
    for (set, words) in cases {
        expect_error(&sandbox, 2, &[set], &[], words);
    }
    // Errors that only the trainer can detect: there is no GPU for float16. Its module `precision` tests all.
    let on_the_cpu: [(&str, &[&str]); 3] = [
        ("precision.amp=\"fp16\"", &["precision.amp", "fp16", "bf16"]),
        ("precision.tf32=true", &["precision.tf32", "auto"]),
        ("model.cudnn_benchmark=true", &["model.cudnn_benchmark", "auto"]),
    ];
    for &(set, words) in thorough::cases(&on_the_cpu, 1) {
        let mut command = sandbox.command(2, "run", &[set], &[]);
        command.env("CUDA_VISIBLE_DEVICES", "");
        let mut words = words.to_vec();
        words.push("needs a GPU");
        refused_by(&mut command, &words);
    }
}

#[test]
fn a_gpu_without_a_driver_is_an_error() {
    let absent = if matches!(inventory(), Err(GpuError::NoDriver)) { Ok(()) } else { Err("there is one") };
    let Ok(()) = need::require(Need::NoDriver, absent) else { return };
    let sandbox = Sandbox::new(TINY);
    let mut command = sandbox.command(1, "run", &[], &[]);
    command.env("CUDA_VISIBLE_DEVICES", "0");
    refused_by(
        &mut command,
        &["CUDA_VISIBLE_DEVICES=0: no GPU is usable", "no NVIDIA driver", "R580", "--gpu-ids none"],
    );
}

/// The other mistakes are in the tests of the trainer's modules `groups` and `trained`.
#[test]
fn a_glob_that_matches_nothing_is_an_error() {
    let sandbox = Sandbox::new(&resnet18());
    expect_error(&sandbox, 2, &["model.freeze=[\"fc2.*\"]"], &[], &["model.freeze", "fc2.*", "fc."]);
}

#[test]
fn non_finite_values_are_not_trained_on() {
    let sandbox =
        Sandbox::new(&folder_recipe().replace("image_size = 32\n", "image_size = 32\nchannels = 1\n"));
    let tiff = |split: &str, class: &str, index: usize, broken: bool| {
        let folder = sandbox.path(&format!("data/{split}/{class}"));
        fs::create_dir_all(&folder).unwrap();
        let shade = if class == "dark" { 0.2f32 } else { 0.8 };
        let mut values: Vec<f32> = (0..32 * 32).map(|at| shade + (at + index) as f32 / 1e4).collect();
        if broken {
            values[5 * 32 + 3] = f32::NAN;
        }
        let file = fs::File::create(folder.join(format!("{index:03}.tiff"))).unwrap();
        let mut encoder = tiff::encoder::TiffEncoder::new(file).unwrap();
        encoder.write_image::<tiff::encoder::colortype::Gray32Float>(32, 32, &values).unwrap();
    };
    for class in ["dark", "light"] {
        for index in 0..60 {
            tiff("train", class, index, class == "dark" && index == 7);
        }
        for index in 0..2 {
            tiff("test", class, index, false);
        }
    }
    let text =
        expect_exit_code(&finish(&mut sandbox.command(ranks(), "one", &["train.steps=2"], &[]), LIMIT), 0);
    assert!(text.contains("007.tiff") && text.contains("not finite") && text.contains("1 of 120"), "{text}");
    assert!(sandbox.run("one").per_step("loss").iter().all(|loss| loss.is_finite()));
    for index in 0..60 {
        for class in ["dark", "light"] {
            tiff("train", class, index, true);
        }
    }
    expect_error(
        &sandbox,
        ranks(),
        &[],
        &[],
        &["000.tiff", "NaN", "column 3, row 5 of channel 0", "replace them"],
    );
}

#[test]
fn invalid_numbers_of_ranks_are_errors() {
    let sandbox = Sandbox::new(&resnet18());
    expect_error(&sandbox, 0, &[], &[], &["--nproc"]);
    expect_error(&sandbox, 3, &["train.effective_batch=2"], &[], &["2", "3"]);
    assert!(!sandbox.path("run").exists());
    // BatchNorm cannot normalise one pixel of one sample.
    expect_error(&sandbox, 2, &["train.effective_batch=2"], &[], &["micro-batch", "BatchNorm"]);
}

#[test]
fn another_run_is_not_overwritten() {
    let sandbox = Sandbox::new(TINY);
    sandbox.train(1, "run", &["train.steps=2"]);
    let before = contents(&sandbox.path("run"));
    expect_error(&sandbox, 1, &["model.depth=2"], &[], &["model.depth", "--run-dir"]);
    expect_error(&sandbox, 1, &[], &["--resume", "never"], &["--run-dir"]);
    assert!(before == contents(&sandbox.path("run")), "the first run was changed");

    // Its checkpoint does not fit another model in another folder either.
    let checkpoint = sandbox.path("run/checkpoints/latest");
    let resume = ["--resume", checkpoint.to_str().unwrap()];
    expect_exit_code(&sandbox.launch_with(1, "other", &["model.depth=2"], &resume), 2);
    assert!(!sandbox.path("other").exists());
}
