//! `dtrain new`: recipes that train as they are, for every task, and for the layouts of `[data]`.

use std::fs;
use std::path::Path;
use std::process::Output;

use dtrain_test_kit::forks;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::programs::worker;
use dtrain_tests::runs::{Sandbox, gpt};
use image::{GrayImage, Luma, Rgb, RgbImage};

use crate::bad_input::image_folder;
use crate::exported::imported;

fn run(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.dtrain(&[&["new"], words].concat());
    command.env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "1").output().unwrap()
}

/// Writes a recipe, and returns it and what is printed.
#[track_caller]
fn written(sandbox: &Sandbox, words: &[&str]) -> (String, String) {
    let said = expect_exit_code(&run(sandbox, &[words, &["-o", "out.toml", "--force"]].concat()), 0);
    assert!(said.contains("\n  dtrain launch out.toml"), "{said}");
    let text = fs::read_to_string(sandbox.path("out.toml")).unwrap();
    assert!((15..45).contains(&text.lines().count()), "{text}");
    assert!(text.lines().all(|line| line.len() <= 130), "{text}");
    (text, said)
}

#[track_caller]
fn refused(sandbox: &Sandbox, words: &[&str], message: &str) {
    let said = expect_exit_code(&run(sandbox, &[words, &["-o", "none.toml"]].concat()), 2);
    assert!(said.contains(message), "no {message:?} in:\n{said}");
    // The exit code, and the error.
    assert_eq!(said.trim().lines().count(), 2, "{said}");
    assert!(!sandbox.path("none.toml").exists());
}

/// Trains a step of a recipe as it is.
#[track_caller]
fn trains(sandbox: &Sandbox) {
    let mut command = sandbox.dtrain(&[
        "launch",
        "--nproc",
        "1",
        "out.toml",
        "--set",
        "train.steps=1",
        "--set",
        "optim.schedule.warmup=0 steps",
        "--run-dir",
        "run",
    ]);
    command.env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "2");
    let output = command.output().unwrap();
    let said = expect_exit_code(&output, 0);
    assert!(said.contains("dtrain: done: "), "{said}");
    fs::remove_dir_all(sandbox.path("run")).unwrap();
}

fn picture(path: &Path, number: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_fn(32, 32, |x, y| Rgb([(x * 8) as u8, (y * 8) as u8, (number * 9) as u8]))
        .save(path)
        .unwrap();
}

fn mask(path: &Path, values: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    GrayImage::from_fn(32, 32, |x, _| Luma([values[x as usize * values.len() / 32]])).save(path).unwrap();
}

#[test]
fn class_folders_train_with_and_without_a_test_set() {
    let sandbox = Sandbox::new("");
    image_folder(&sandbox, 12, 3);
    let (text, said) = written(&sandbox, &["classify", "data"]);
    assert!(said.contains("out.toml: 2 class folders in train and test: 2 classes, 24 training and 6 test samples of 32 x 32 pixels\n"), "{said}");
    for line in [
        "root = \"data\"",
        "test = \"test\"",
        "image_size = 32",
        "name = \"resnet18\"",
        "best = \"max accuracy\"",
    ] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
    trains(&sandbox);
    // Its own folder of classes, without a test set.
    fs::rename(sandbox.path("data/train"), sandbox.path("photos")).unwrap();
    let (text, _) = written(&sandbox, &["classify", "photos"]);
    assert!(text.contains("root = \".\"") && text.contains("train = \"photos\""), "{text}");
    assert!(text.contains("test = \"train:0.2\""), "{text}");
    trains(&sandbox);
    let said = expect_exit_code(&run(&sandbox, &["classify", "photos", "-o", "out.toml"]), 2);
    assert!(said.contains("out.toml") && said.contains("--force"), "{said}");
}

#[test]
fn masks_of_numbers_and_colours_are_understood() {
    let sandbox = Sandbox::new("");
    for (set, count) in [("train", 8), ("val", 2)] {
        for number in 0..count {
            picture(&sandbox.path(&format!("a/{set}/{number}.png")), number);
            mask(&sandbox.path(&format!("a/{set}annot/{number}.png")), &[0, 1, 2, 255]);
        }
    }
    let (text, _) = written(&sandbox, &["segment", "a"]);
    for line in
        ["train_masks = \"trainannot\"", "test = \"val\"", "classes = 3", "ignore = 255", "name = \"unet\""]
    {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
    trains(&sandbox);
    for number in 0..9 {
        picture(&sandbox.path(&format!("b/images/{number}.png")), number);
        mask(&sandbox.path(&format!("b/masks/{number}.png")), &[0, 255]);
        let colours = [[0, 0, 0], [128, 64, 128]];
        let path = sandbox.path(&format!("c/{number}_mask.png"));
        picture(&sandbox.path(&format!("c/{number}.png")), number);
        RgbImage::from_fn(32, 32, |x, _| Rgb(colours[x as usize / 16])).save(path).unwrap();
    }
    let (text, _) = written(&sandbox, &["segment", "b"]);
    assert!(text.contains("masks = \"binary\"") && text.contains("test = \"train:0.2\""), "{text}");
    let (text, _) = written(&sandbox, &["segment", "c"]);
    assert!(text.contains("pair = \"{id} -> {id}_mask\""), "{text}");
    assert!(text.contains("mask_colors = [\"class0 #000000\", \"class1 #804080\"]"), "{text}");
    trains(&sandbox);
}

#[test]
fn tables_and_packed_files_are_understood() {
    let sandbox = Sandbox::new("");
    let mut table = "photo,species,length\n".to_owned();
    for number in 0..12 {
        picture(&sandbox.path(&format!("birds/{number}.png")), number);
        table += &format!("{number}.png,{},{number}.5\n", if number % 2 == 0 { "robin" } else { "wren" });
    }
    fs::write(sandbox.path("birds/birds.csv"), &table).unwrap();
    // Beside images without classes, the table is the only layout.
    let (text, _) = written(&sandbox, &["classify", "birds"]);
    assert!(text.contains("fields = { image = \"image:photo\", label = \"class:species\" }"), "{text}");
    trains(&sandbox);
    fs::copy(sandbox.path("birds/birds.csv"), sandbox.path("birds/more.csv")).unwrap();
    refused(&sandbox, &["classify", "birds"], "has several layouts; choose --layout table:birds.csv");
    written(&sandbox, &["classify", "birds", "--layout", "table:more.csv"]);

    let packs = Path::new(env!("CARGO_MANIFEST_DIR")).join("parity/reference/packs");
    for (folder, ending) in [("shards", "tar"), ("parquet", "parquet")] {
        fs::create_dir(sandbox.path(folder)).unwrap();
        for entry in fs::read_dir(&packs).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(ending) && !name.starts_with("indexed") {
                fs::copy(&path, sandbox.path(folder).join(name)).unwrap();
            }
        }
        let (text, _) = written(&sandbox, &["classify", folder]);
        assert!(text.contains(&format!("kind = {folder:?}")), "{text}");
    }
}

#[test]
fn texts_tokens_and_generated_data_train() {
    let sandbox = Sandbox::new("");
    fs::create_dir(sandbox.path("books")).unwrap();
    let text: String = (0..400).map(|line| format!("line {line} of a book\n")).collect();
    fs::write(sandbox.path("books/a.txt"), text).unwrap();
    let (text, _) = written(&sandbox, &["lm", "books"]);
    assert!(text.contains("tokenizer = \"chars\"") && text.contains("best = \"min loss\""), "{text}");
    trains(&sandbox);
    fs::create_dir(sandbox.path("tokens")).unwrap();
    for name in ["train", "val"] {
        let tokens: Vec<u8> = (0..3000u16).flat_map(|at| (at * 7 % 211).to_le_bytes()).collect();
        fs::write(sandbox.path(&format!("tokens/{name}.bin")), tokens).unwrap();
    }
    let (text, _) = written(&sandbox, &["lm", "tokens"]);
    assert!(text.contains("vocabulary = 211"), "{text}");
    let chats: String = (0..10)
        .map(|line| {
            format!(
                "{{\"question\": \"What is {line}?\", \"answer\": \" A number.\", \"split\": \"{}\"}}\n",
                if line < 7 { "train" } else { "test" }
            )
        })
        .collect();
    fs::write(sandbox.path("chats.jsonl"), chats).unwrap();
    let (text, _) = written(&sandbox, &["lm", "chats.jsonl"]);
    assert!(text.contains("fields = { tokens = \"text:question,answer\" }"), "{text}");
    for task in ["classify", "segment", "lm"] {
        let (text, _) = written(&sandbox, &[task]);
        assert!(text.contains("kind = \"generated\""), "{text}");
    }
}

#[test]
fn imported_models_train_on_numbers_and_maps() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "predicted.py:maps", "regress", "image_size = 16\ntarget = \"map\"", "");
    for number in 0..8 {
        picture(&sandbox.path(&format!("tiles/images/{number}.png")), number);
        mask(&sandbox.path(&format!("tiles/heights/{number}.png")), &[1, 20, 90, 200]);
    }
    let (text, _) = written(&sandbox, &["regress", "tiles", "--model", "model.pt2"]);
    for line in ["target = \"map\"", "normalize_targets = true", "file = \"model.pt2\"", "image_size = 16"] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
    trains(&sandbox);
    refused(&sandbox, &["regress", "tiles"], "regress trains an imported PyTorch model: name its file");
    let sandbox =
        imported(&python, "predicted.py:maps_with_loss", "program", "image_size = 16\ntarget = \"map\"", "");
    for number in 0..8 {
        picture(&sandbox.path(&format!("tiles/train/{number}.png")), number);
        mask(&sandbox.path(&format!("tiles/train_masks/{number}.png")), &[1, 20, 90, 200]);
    }
    written(&sandbox, &["program", "tiles", "--model", "model.pt2"]);
    trains(&sandbox);
}

#[test]
fn the_recipe_of_a_run_has_only_what_is_no_default() {
    let sandbox = Sandbox::new(&gpt(1, "[checkpoint]\nkeep = 2\nevery = \"1 epoch\"\n"));
    let run = sandbox.train(1, "first", &["optim.lr=0.02"]);
    let (text, _) = {
        let output = self::run(&sandbox, &["--from", "first", "-o", "again.toml"]);
        (fs::read_to_string(sandbox.path("again.toml")).unwrap_or_default(), expect_exit_code(&output, 0))
    };
    assert!(text.contains("lr = 0.02") && text.contains("keep = 2"), "{text}");
    for key in ["every = \"1 epoch\"", "betas", "overlap", "on_failure", "mean ="] {
        assert!(!text.contains(key), "{key} in:\n{text}");
    }
    let again = sandbox
        .dtrain(&["launch", "again.toml", "--nproc", "1", "--run-dir", "second"])
        .env("DTRAIN_WORKER", worker())
        .output();
    expect_exit_code(&again.unwrap(), 0);
    assert_eq!(run.per_step("loss"), sandbox.run("second").per_step("loss"));
    refused(&sandbox, &["--from", "nowhere"], "nowhere is no run directory");
}

#[test]
fn mistakes_are_named_in_one_sentence() {
    let sandbox = Sandbox::new("");
    fs::create_dir(sandbox.path("empty")).unwrap();
    refused(&sandbox, &["clasify", "empty"], "unknown task `clasify`; did you mean `classify`?");
    refused(&sandbox, &["empty"], "`empty` is data; name the task before it");
    refused(&sandbox, &["classify", "empty"], "empty is an empty folder; put the images of each class");
    refused(&sandbox, &["classify", "nowhere"], "nowhere does not exist");
    refused(&sandbox, &["classify", "--model", "resnet19"], "did you mean resnet1");
    fs::write(sandbox.path("empty/notes.txt"), "notes").unwrap();
    refused(&sandbox, &["segment", "empty"], "empty has no images with masks; put images into DATA/train");
    image_folder(&sandbox, 1, 1);
    fs::remove_dir_all(sandbox.path("data/train/light")).unwrap();
    fs::remove_dir_all(sandbox.path("data/test")).unwrap();
    refused(&sandbox, &["classify", "data"], "data has no images in class folders");
}
