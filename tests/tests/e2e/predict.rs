//! `dtrain predict`: the values of PyTorch at any number of ranks, what it writes, continuing, and bad input.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::forks;
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::runs::{Sandbox, TINY};
use dtrain_worker::data::decode;
use dtrain_worker::data::raster::{Labels, Raster, Values};
use serde_json::Value;

use crate::bad_input::{equal_images, folder_recipe, image_folder};
use crate::exported::{IMAGES, TEXTS, import, imported, sandbox};
use crate::import::{LIMIT, run};

pub(crate) fn predict(sandbox: &Sandbox, words: &[&str]) -> Output {
    sandbox.dtrain(&["predict"]).args(words).output().unwrap()
}

pub(crate) fn predicted(sandbox: &Sandbox, words: &[&str]) -> String {
    expect_exit_code(&predict(sandbox, words), 0)
}

/// Returns the cells of a table by the first one of each line; the line of names is `image`.
pub(crate) fn table(path: &Path) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let mut cells = line.split(',').map(str::to_owned);
        (cells.next().unwrap(), cells.collect())
    };
    text.lines().map(line).collect()
}

/// Writes 16 x 16 images, and their pixels beside them in another folder. Returns the files of pixels.
pub(crate) fn images(sandbox: &Sandbox, count: u32) -> Vec<PathBuf> {
    let (images, raw) = (sandbox.path("images"), sandbox.path("raw"));
    fs::create_dir_all(&images).unwrap();
    fs::create_dir_all(&raw).unwrap();
    let write = |index: u32| {
        let value = |x: u32, y: u32, channel: u32| {
            (x * (7 + index) + y * y * (3 + channel) + index * 31 * (channel + 1)) as u8
        };
        let pixel = |x, y| image::Rgb([0, 1, 2].map(|channel| value(x, y, channel)));
        let image = image::RgbImage::from_fn(16, 16, pixel);
        image.save(images.join(format!("{index}.png"))).unwrap();
        let file = raw.join(format!("{index}.raw"));
        fs::write(&file, image.as_raw()).unwrap();
        file
    };
    (0..count).map(write).collect()
}

/// Returns what PyTorch predicts with the exported weights of a run, by file.
pub(crate) fn of_pytorch(python: &Path, sandbox: &Sandbox, function: &str, files: &[PathBuf]) -> Value {
    let weights = sandbox.path("weights.safetensors");
    let run_dir = sandbox.path("run");
    let mut export = sandbox.dtrain(&["ckpt", "export", run_dir.to_str().unwrap()]);
    expect_exit_code(&finish(export.arg(&weights), LIMIT), 0);
    let mut command = std::process::Command::new(python);
    command.args(["predict.py", function]).arg(&weights).args(files);
    let text = expect_exit_code(&run(command, python), 0);
    serde_json::from_str(text.lines().find(|line| line.starts_with('{')).unwrap()).unwrap()
}

pub(crate) fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn probabilities_are_those_of_pytorch_on_one_and_two_ranks() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "vit", "classify", IMAGES, "");
    let files = images(&sandbox, 11);
    sandbox.train(2, "run", &[]);
    let expected = of_pytorch(&python, &sandbox, "vit", &files);
    for (ranks, batch) in [("1", "4"), ("2", "3")] {
        let out = format!("out-{ranks}.csv");
        predicted(&sandbox, &["run", "images", "-o", &out, "--nproc", ranks, "--batch", batch]);
        let rows = table(&sandbox.path(&out));
        assert_eq!(rows.len(), 12);
        for (name, values) in expected.as_object().unwrap() {
            let (row, values) = (&rows[&format!("{name}.png")], numbers(values));
            let best = values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            assert_eq!(row[0], best.to_string(), "{name}");
            for (cell, value) in row[2..].iter().zip(&values) {
                assert!((cell.parse::<f64>().unwrap() - value).abs() < 1e-4, "{name}: {row:?} {values:?}");
            }
        }
    }
    // An image and its mirror image have the same mean; without flips, they differ.
    let image = image::open(sandbox.path("images/3.png")).unwrap();
    fs::create_dir(sandbox.path("mirrored")).unwrap();
    image.fliph().save(sandbox.path("mirrored/3.png")).unwrap();
    let of = |input: &str, flips: &[&str]| {
        let words = [&["run@12", input, "-o", "one.jsonl", "--json"][..], flips].concat();
        let text = predicted(&sandbox, &words);
        let summary: Value =
            serde_json::from_str(text.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
        assert_eq!((&summary["inputs"], &summary["unreadable"]), (&1.into(), &0.into()));
        let row: Value =
            serde_json::from_str(&fs::read_to_string(sandbox.path("one.jsonl")).unwrap()).unwrap();
        fs::remove_file(sandbox.path("one.jsonl")).unwrap();
        let values = row["probabilities"].as_object().unwrap().values();
        values.map(|value| value.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let distance = |flips: &[&str]| {
        let (image, mirrored) = (of("images/3.png", flips), of("mirrored/3.png", flips));
        assert!((image.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{image:?}");
        image.iter().zip(&mirrored).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    };
    assert!(distance(&["--flips", "both"]) < 1e-6 && distance(&[]) > 1e-4);
}

#[test]
fn masks_and_texts_are_those_of_pytorch() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "image_size = 16\nclasses = 3\ntrain_samples = 16\ntest_samples = 4";
    let sandbox = imported(&python, "segmenter", "segment", data, "");
    let files = images(&sandbox, 3);
    sandbox.train(1, "run", &[]);
    let expected = of_pytorch(&python, &sandbox, "segmenter", &files);
    predicted(&sandbox, &["run", "images", "-o", "masks", "--nproc", "2"]);
    for (name, classes) in expected.as_object().unwrap() {
        let mask = decoded(&sandbox.path(&format!("masks/mask/{name}.png")));
        let same = numbers(classes).iter().zip(&mask.1).filter(|(a, b)| **a == f64::from(**b)).count();
        // Two logits may be equal but for rounding.
        assert!(same >= 254 && mask.0 == (16, 16), "{name}: {same}");
        assert!(sandbox.path(&format!("masks/overlay/{name}.png")).exists());
    }
    predicted(&sandbox, &["run", "images", "-o", "aux", "--output", "aux"]);
    let array = fs::read(sandbox.path("aux/aux.npy")).unwrap();
    assert!(String::from_utf8_lossy(&array[..128]).contains("'shape': (3, 3, 8, 8)"));
    assert_eq!(array.len(), 128 + 4 * 3 * 3 * 8 * 8);

    let sandbox = imported(&python, "gpt", "lm", TEXTS, "");
    sandbox.train(1, "run", &[]);
    let prompts = ["a", "the ", "a prompt that is longer than the context of 24 tokens"];
    fs::write(sandbox.path("prompts.txt"), prompts.join("\n") + "\n\n").unwrap();
    let file = |at: usize| {
        let path = sandbox.path(&format!("{at}.raw"));
        fs::write(&path, prompts[at]).unwrap();
        path
    };
    let expected = of_pytorch(&python, &sandbox, "gpt", &[file(0), file(1), file(2)]);
    let text =
        predicted(&sandbox, &["run", "prompts.txt", "-o", "texts.jsonl", "--tokens", "12", "--nproc", "2"]);
    assert!(text.contains("tokens/s") && text.contains("the prompt is empty"), "{text}");
    let lines = fs::read_to_string(sandbox.path("texts.jsonl")).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[1]["prompt"]), (4, &"the ".into()));
    for at in 0..3 {
        let bytes: Vec<u8> = numbers(&expected[at.to_string()]).iter().map(|byte| *byte as u8).collect();
        assert_eq!(rows[at]["text"], String::from_utf8_lossy(&bytes).into_owned(), "{at}");
    }
    assert!(rows[3]["error"].as_str().unwrap().contains("empty"));
}

#[test]
fn numbers_and_maps_are_those_of_pytorch_in_the_targets_unit() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "target = \"vector\"\nnormalize_targets = true\nimage_size = 16\ntrain_samples = 16\ntest_samples = 4";
    let vector = sandbox("regress", data, "");
    import(&python, &vector, "vit", &["--classes", "2"]);
    let files = images(&vector, 5);
    let run = vector.train(1, "run", &[]);
    let manifest = Manifest::read(&run.0.latest()).unwrap();
    let [names, mean, deviation] = ["names", "mean", "deviation"].map(|key| &manifest.extra["targets"][key]);
    predicted(&vector, &["run", "images", "-o", "out.jsonl", "--nproc", "2"]);
    let text = fs::read_to_string(vector.path("out.jsonl")).unwrap();
    let expected = of_pytorch(&python, &vector, "vit:2", &files);
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["image"].as_str().unwrap().trim_end_matches(".png");
        for (at, output) in numbers(&expected[name]).into_iter().enumerate() {
            let value = row["numbers"][names[at].as_str().unwrap()].as_f64().unwrap();
            let wanted = mean[at].as_f64().unwrap() + deviation[at].as_f64().unwrap() * output;
            assert!((value - wanted).abs() < 1e-4, "{line}: {wanted}");
        }
    }

    let data = "target = \"map\"\nimage_size = 16\ntrain_samples = 16\ntest_samples = 4";
    let maps = sandbox("regress", data, "output = \"out\"");
    import(&python, &maps, "segmenter", &["--classes", "1"]);
    let files = images(&maps, 3);
    maps.train(1, "run", &[]);
    predicted(&maps, &["run", "images", "-o", "out", "--nproc", "2"]);
    let expected = of_pytorch(&python, &maps, "segmenter:1", &files);
    for (name, values) in expected.as_object().unwrap() {
        let file = fs::read(maps.path(&format!("out/tiff/{name}.tif"))).unwrap();
        let mut map = Raster::default();
        decode::map(&file, None, &mut Vec::new(), &mut map).unwrap();
        let Values::F32(found) = map.values else { panic!("a map is of numbers") };
        let far =
            found.iter().zip(numbers(values)).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(found.len() == 256 && far < 1e-4, "{name}: {far}");
        assert!(["png", "colors"].iter().all(|form| maps.path(&format!("out/{form}/{name}.png")).exists()));
    }
    assert_eq!(table(&maps.path("out/predictions.csv")).len(), 4);
}

/// Returns size and classes of a mask.
fn decoded(path: &Path) -> ((u32, u32), Vec<u16>) {
    let mut mask = Labels::default();
    decode::mask(&fs::read(path).unwrap(), &mut Vec::new(), &mut mask).unwrap();
    ((mask.width, mask.height), mask.values)
}

#[test]
fn large_images_are_cut_into_windows() {
    let recipe = "task = \"segment\"\n[data]\nkind = \"generated\"\nimage_size = 16\nclasses = 3\ntrain_samples = 8\n\
                  test_samples = 4\n[model]\nname = \"unet\"\nwidth = 4\ndepth = 2\n[train]\neffective_batch = 4\nsteps = 1\n[optim]\n\
                  name = \"sgd\"\nlr = 0.01\n";
    let sandbox = Sandbox::new(recipe);
    sandbox.train(1, "run", &[]);
    fs::create_dir(sandbox.path("in")).unwrap();
    let pixel = |x: u32, y: u32| image::Rgb([(x * 5) as u8, (y * 9) as u8, 90]);
    for (name, width, height) in [("large", 50, 37), ("exact", 16, 16), ("small", 9, 20)] {
        let image = image::RgbImage::from_fn(width, height, pixel);
        image.save(sandbox.path(&format!("in/{name}.png"))).unwrap();
    }
    fs::write(sandbox.path("in/bad.png"), "no image").unwrap();
    let of = |out: &str, more: &[&str]| {
        let text = predicted(&sandbox, &[&["run", "in", "-o", out, "--images", "mask"][..], more].concat());
        assert!(text.contains("4 images, 1 of them unreadable") && text.contains("bad.png"), "{text}");
        ["large", "exact", "small"].map(|name| decoded(&sandbox.path(&format!("{out}/mask/{name}.png"))))
    };
    let windows = of("windows", &["--windows", "--nproc", "2"]);
    assert_eq!(windows.each_ref().map(|mask| mask.0), [(50, 37), (16, 16), (9, 20)]);
    // A single batch of all windows gives the same.
    assert_eq!(of("again", &["--windows", "--batch", "64"]), windows);
    let whole = of("whole", &[]);
    assert_eq!(whole.each_ref().map(|mask| mask.0), [(50, 37), (16, 16), (9, 20)]);
    assert_eq!(whole[1], windows[1], "an image of the network's size is one window");
    assert!(whole[0].1.contains(&255), "the middle square is predicted, and nothing beside it");
    let classes: BTreeSet<u16> = windows[0].1.iter().copied().collect();
    assert!(classes.len() > 1 && classes.iter().all(|class| *class < 3), "{classes:?}");
}

#[test]
fn an_interrupted_prediction_continues() {
    let sandbox = Sandbox::new(&folder_recipe());
    equal_images(&sandbox, 4, 4);
    sandbox.train(1, "run", &["train.steps=1"]);
    images(&sandbox, 300);
    let words = ["run", "images", "-o", "out.csv", "--batch", "1"];
    let mut child = sandbox.dtrain(&["predict"]).args(words).spawn().unwrap();
    let part = sandbox.path("out.csv.partial/part-0000-0000.jsonl");
    let begun = Instant::now();
    while fs::metadata(&part).map_or(0, |meta| meta.len()) < 200 && begun.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!sandbox.path("out.csv").exists());
    let text =
        expect_exit_code(&predict(&sandbox, &["run", "images", "-o", "out.csv", "--weights", "raw"]), 2);
    assert!(text.contains("another prediction, which differs in weights"), "{text}");
    let text = predicted(&sandbox, &["run", "images", "-o", "out.csv", "--nproc", "2"]);
    assert!(text.contains(" before"), "{text}");
    predicted(&sandbox, &["run", "images", "-o", "whole.csv"]);
    let [continued, whole] = ["out.csv", "whole.csv"].map(|name| table(&sandbox.path(name)));
    assert_eq!(continued.len(), 301);
    let mut different = BTreeSet::new();
    for (name, row) in &whole {
        assert_eq!(row[0], continued[name][0], "{name}");
        for (cell, other) in row[1..].iter().zip(&continued[name][1..]).filter(|(cell, other)| cell != other)
        {
            let [cell, other] = [cell, other].map(|cell| cell.parse::<f64>().unwrap());
            assert!((cell - other).abs() < 1e-6, "{name}: {cell} {other}");
        }
        different.insert(&row[1..]);
    }
    assert!(different.len() > 200, "a row of another image would be noticed");
    // The rank that has found the error is named, and once.
    let text = expect_exit_code(&predict(&sandbox, &["run", "images", "-o", "out.csv", "--nproc", "2"]), 2);
    assert_eq!(text.matches("dtrain: error: out.csv exists; name another output").count(), 1, "{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
    assert!(!sandbox.path("out.csv.partial").exists());
}

#[test]
fn bad_inputs_are_named_with_their_remedies() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 4, 3);
    sandbox.train(1, "run", &["train.steps=1"]);
    fs::create_dir(sandbox.path("empty")).unwrap();
    fs::write(sandbox.path("bad.png"), "no image").unwrap();
    fs::write(sandbox.path("table.csv"), "file\na.png\n").unwrap();
    fs::write(sandbox.path("out.csv"), "mine").unwrap();
    for (words, part) in [
        (&["run", "nowhere", "-o", "a.csv"][..], "nowhere does not exist"),
        (&["run", "empty", "-o", "a.csv"], "has no images"),
        (&["run", "data/test", "-o", "data/test/a.csv"], "the output is in this folder of inputs"),
        (&["run", "--split", "test", "-o", "data/test/a.csv"], "the output is in this folder of inputs"),
        (&["run", "bad.png", "-o", "a.csv"], "none of the 1 inputs can be read"),
        (&["run", "table.csv", "-o", "b.csv"], "the table has no column `image`"),
        (&["run", "data/test", "-o", "out.csv"], "out.csv exists; name another output"),
        (&["run", "data/test", "-o", "a.png"], "end it in .csv or .jsonl, such as -o a.csv"),
        (&["run", "data/test", "-o", "a"], "end it in .csv or .jsonl"),
        (&["run", "data/test", "-o", "c.csv", "--output", "features"], "it has logits"),
        (&["run", "data/test", "-o", "c.csv", "--images", "mask"], "--images has no effect here"),
        (&["run", "--prompt", "a", "-o", "c.csv"], "the model takes images, not prompts"),
        (&["run@7", "data/test", "-o", "c.csv"], "this run has checkpoints of the steps: 1"),
        (&["run", "data/test", "-o", "c.csv", "--set", "model.width=32"], "does not fit the model"),
    ] {
        let output = predict(&sandbox, words);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {part} in {text}");
    }
    assert_eq!(fs::read_to_string(sandbox.path("out.csv")).unwrap(), "mine");
    // Beside the folders of the sets.
    predicted(&sandbox, &["run", "--split", "test", "-o", "data/a.csv"]);
    // A folder of an unknown class is predicted, with a warning.
    fs::create_dir(sandbox.path("data/test/other")).unwrap();
    fs::copy(sandbox.path("bad.png"), sandbox.path("data/test/other/x.png")).unwrap();
    let text = predicted(&sandbox, &["run", "data/test", "-o", "d.csv"]);
    assert!(text.contains("1 class that the checkpoint lacks: \"other\""), "{text}");
    assert!(text.contains("\"other/x.png\" cannot be read"), "{text}");
    let rows = table(&sandbox.path("d.csv"));
    assert_eq!(
        (rows.len(), rows["image"].as_slice()),
        (8, &["class", "probability", "p:dark", "p:light", "error"].map(String::from)[..])
    );
    assert!(rows["other/x.png"].join(",").contains("not an image"));
    // A table without a column `split`, whose paths are below its folder.
    fs::write(sandbox.path("inputs.csv"), "image\ndata/test/dark/000.png\ndata/test/light/001.png\n")
        .unwrap();
    predicted(&sandbox, &["run", "inputs.csv", "-o", "e.csv"]);
    let by_table = table(&sandbox.path("e.csv"));
    assert_eq!(by_table["data/test/dark/000.png"][..2], rows["dark/000.png"][..2]);
}

#[test]
fn eval_takes_a_run_without_its_recipe() {
    let sandbox = Sandbox::new(TINY);
    let run = sandbox.train(1, "run", &["checkpoint.every=3 steps", "checkpoint.best=min loss"]);
    let eval = |words: &[&str]| -> Value {
        let output = sandbox.dtrain(&["eval"]).args(words).arg("--json").output().unwrap();
        let text = expect_exit_code(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"))
    };
    let evaluations = run.evaluations();
    for (name, step) in [("run@3", 3), ("run", 6), ("run@best", run.result().best.unwrap().step)] {
        let line = evaluations.iter().find(|line| line["step"] == step).unwrap();
        let found = eval(&[name]);
        assert_eq!((&found["step"], &found["loss"]), (&line["step"], &line["loss"]), "{name}");
    }
    let output = sandbox.dtrain(&["eval", "recipe.toml"]).output().unwrap();
    let text = expect_exit_code(&output, 2);
    assert!(text.contains("recipe.toml is a recipe; add --checkpoint"), "{text}");
}
