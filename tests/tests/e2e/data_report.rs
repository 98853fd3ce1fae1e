//! `dtrain data`: counts, copies, values and pictures of a recipe's data.

use std::fs;
use std::process::Output;

use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::programs::worker;
use dtrain_tests::runs::{Sandbox, TINY};
use serde_json::{Value, json};

use crate::bad_input::{folder_recipe, image_folder};

fn ask(sandbox: &Sandbox, arguments: &[&str]) -> Output {
    let mut command = sandbox.dtrain(&["data", "recipe.toml"]);
    command.args(arguments).env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "1").output().unwrap()
}

/// Returns the output of a command with this exit code, with one space between words: lines are broken.
fn words(output: &Output, code: i32) -> String {
    expect_exit_code(output, code).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json(sandbox: &Sandbox, code: i32) -> Value {
    let output = ask(sandbox, &["--json"]);
    let text = expect_exit_code(&output, code);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"))
}

/// A folder in which all test images are also training images, one image has two classes, and files are unusable.
fn flawed() -> Sandbox {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 120, 4);
    let file = |name: &str| sandbox.path(&format!("data/train/{name}"));
    fs::copy(file("dark/007.png"), file("light/copy.png")).unwrap();
    fs::write(file("dark/empty.png"), b"").unwrap();
    fs::write(file("dark/broken.png"), b"not an image").unwrap();
    fs::write(file("dark/notes.txt"), b"notes").unwrap();
    sandbox
}

#[test]
fn a_report_counts_files_and_names_copies() {
    let sandbox = flawed();
    let report = json(&sandbox, 0);
    let train = &report["files"][0];
    assert_eq!(
        (&train["name"], &train["samples"], &train["usable"]),
        (&json!("train"), &json!(243), &json!(241))
    );
    assert_eq!(train["files"]["image"], json!([["PNG RGB", 241]]));
    assert_eq!(train["sizes"]["most_frequent"], json!([32, 32]));
    assert_eq!(train["unusable"]["by_kind"], json!({ "empty": 1, "not an image": 1 }));
    assert_eq!(train["ignored"], "1 .txt");
    assert_eq!(train["classes"]["label"]["classes"], json!([["dark", 122], ["light", 121]]));
    let copies = &report["duplicates"];
    assert_eq!((&copies["across"][0]["set"], &copies["across"][0]["samples"]), (&json!("test"), &json!(8)));
    assert_eq!(copies["across"][0]["first"][0], json!(["test/dark/000.png", "train/dark/000.png"]));
    assert_eq!(copies["within"][0]["first"], json!([["train/light/copy.png", "train/dark/007.png"]]));
    assert_eq!(copies["conflicts"]["first"][0][0], json!(["train/light/copy.png", "light"]));
    let red = &report["values"]["fields"][0]["values"]["image"]["channels"][0];
    // 120 images of a shade of 40 and 121 of 200, each with one of the other.
    assert!((red["mean"].as_f64().unwrap() - 0.47).abs() < 0.005, "{red}");
    assert_eq!(report["problems"].as_array().unwrap().len(), 2, "{}", report["problems"]);

    let output = ask(&sandbox, &[]);
    assert!(output_text(&output).lines().count() < 40, "{}", output_text(&output));
    let text = words(&output, 0);
    for expected in [
        "left out 1 empty, 1 not an image ",
        "broken.png: not an image: ",
        "8 samples of test are also in train: ",
        "can start",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    // A training finds the same.
    let trained = expect_exit_code(&sandbox.launch(1, "run", &["train.steps=1"]), 0);
    assert!(trained.contains("2 of 243 images in train cannot be read"), "{trained}");
}

#[test]
fn a_picture_shows_the_samples_of_an_epoch_and_marks_broken_ones() {
    let sandbox = flawed();
    // A class that only the test set has: no training can start, and the picture has unusable files, too.
    fs::create_dir(sandbox.path("data/test/odd")).unwrap();
    fs::copy(sandbox.path("data/train/dark/001.png"), sandbox.path("data/test/odd/1.png")).unwrap();
    let draw = |name: &str, more: &[&str], code| {
        let output = ask(
            &sandbox,
            &[&["--show", name, "--set", "data.augment=resized-crop-flip", "--set", "train.epochs=2"], more]
                .concat(),
        );
        (words(&output, code), fs::read(sandbox.path(name)).unwrap())
    };
    let (text, all) = draw("all.png", &["--samples", "300"], 2);
    assert!(text.contains("has 1 class that the training split lacks: `odd`"), "{text}");
    assert!(text.contains("243 samples of train") && text.contains("9 samples, in "), "{text}");
    let red = |bytes: &[u8]| {
        let image = image::load_from_memory(bytes).unwrap().to_rgb8();
        image.pixels().filter(|pixel| pixel.0 == [200, 30, 30]).count()
    };
    assert!(red(&all) > 2 * 500, "two frames and their reasons");

    fs::remove_dir_all(sandbox.path("data/test/odd")).unwrap();
    let first = draw("first.png", &[], 0).1;
    assert_eq!(first, draw("again.png", &[], 0).1);
    assert_ne!(first, draw("later.png", &["--epoch", "1"], 0).1);
    // Pixels of an image may have the colour of a frame.
    assert!(red(&first) < 100);
}

#[test]
fn generated_samples_and_texts_have_a_report() {
    let sandbox = Sandbox::new(TINY);
    let output = ask(&sandbox, &["--show", "a.png", "--samples", "4"]);
    let text = words(&output, 0);
    assert!(text.contains("training: 96 samples") && text.contains("label 4 different"), "{text}");
    assert!(image::open(sandbox.path("a.png")).is_ok());

    let lines: String = (0..60).map(|line| format!("line number {}\n", line % 50)).collect();
    fs::write(sandbox.path("lines.txt"), lines + "x\n").unwrap();
    let recipe = "task = \"lm\"\n[data]\nroot = \"lines.txt\"\ndocuments = \"lines\"\n[model]\nname = \"gpt\"\nwidth = 16\n\
                  depth = 1\nheads = 2\ncontext = 13\n[train]\nepochs = 1\neffective_batch = 6\n[optim]\nlr = 0.1\n";
    fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    let documents = json(&sandbox, 0)["text"]["documents"].clone();
    let counts =
        ["documents", "left_out", "repeated", "leaked"].map(|name| documents[name].as_u64().unwrap());
    // The last 6 of 60 documents are for the test, and repeat numbers 4 to 9.
    assert_eq!(counts, [60, 1, 10, 6], "{documents}");
    assert_eq!(documents["longer"], json!([0, 13]));
    let text = words(&ask(&sandbox, &["--show", "b.png"]), 0);
    assert!(text.contains("document 55 is document 5"), "{text}");
    assert!(image::open(sandbox.path("b.png")).is_ok());
}

/// Data that no training takes is described all the same: sources with separate folders, images of several sizes, and texts of
/// which too many are empty.
#[test]
fn refused_data_has_a_report_of_each_set() {
    let sandbox = flawed();
    fs::create_dir(sandbox.path("data/test/odd")).unwrap();
    fs::copy(sandbox.path("data/train/dark/001.png"), sandbox.path("data/test/odd/1.png")).unwrap();
    fs::rename(sandbox.path("data/train"), sandbox.path("data/photos")).unwrap();
    let recipe = "task = \"classify\"\n[data]\nresize = \"none\"\n[[data.source]]\nroot = \"data\"\ntrain = \"photos\"\n[model]\n\
                  name = \"resnet18\"\n[train]\nepochs = 1\n";
    fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    let report = json(&sandbox, 2);
    let names: Vec<_> = report["files"].as_array().unwrap().iter().map(|set| &set["name"]).collect();
    assert_eq!(names, ["photos", "test"], "each set once");
    assert_eq!((&report["values"]["set"], &report["values"]["samples"]), (&"training".into(), &241.into()));

    let table = (0..40).map(|line| {
        let caption = if line < 2 { "" } else { "a text" };
        let split = if line % 4 == 0 { "test" } else { "train" };
        format!("{{\"split\": \"{split}\", \"image\": \"data/photos/dark/{:03}.png\", \"caption\": \"{caption}\", \"tags\": [\"red\"]}}\n", line + 10)
    });
    fs::write(sandbox.path("lines.jsonl"), table.collect::<String>()).unwrap();
    let fields = "{ image = \"image\", caption = \"text:caption\", tags = \"classes:tags\" }";
    let recipe = format!(
        "task = \"program\"\n[data]\nkind = \"table\"\nroot = \"lines.jsonl\"\nfields = {fields}\ntokenizer = \"bytes\"\n[model]\nfile = \"model.pt2\"\n\
         [train]\nepochs = 1\n"
    );
    fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    fs::write(sandbox.path("model.pt2"), "no program").unwrap();
    let report = json(&sandbox, 2);
    assert!(report["refusal"].as_str().unwrap().contains("the text is empty"), "{}", report["refusal"]);
    let fields: Vec<_> =
        report["values"]["fields"].as_array().unwrap().iter().map(|field| &field["field"]).collect();
    assert_eq!(fields, ["image", "tags"], "texts are no tokens yet");
}

#[test]
fn wrong_flags_are_refused() {
    let sandbox = Sandbox::new(TINY);
    for (arguments, expected) in [
        (&["--samples", "3"][..], "--show"),
        (&["--show", "a.jpg"], "the name of a picture ends in .png"),
        (&["--show", "a.png", "--epoch", "99"], "give one of them"),
        (&["--show", "a.png", "--samples", "0"], "1..=400"),
    ] {
        let text = words(&ask(&sandbox, arguments), 2);
        assert!(text.contains(expected), "{text}");
    }
}
