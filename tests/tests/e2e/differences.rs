//! `dtrain diff`: real runs that differ on purpose. Differences that need no training are tested beside the command.

use std::fs;
use std::process::Command;
use std::thread;

use dtrain_tests::process::expect_exit_code;
use dtrain_tests::programs::{without_outer_run, worker};
use dtrain_tests::runs::{Sandbox, TINY};
use serde_json::Value;

use crate::bad_input::image_folder;

/// Four steps on the images of a table.
fn recipe() -> String {
    let generated = "kind = \"generated\"\nclasses = 4\ntrain_samples = 96\ntest_samples = 37\n";
    let table = "kind = \"table\"\nroot = \"data/table.csv\"\nfields = { image = \"image:photo\", label = \"class:kind\" }\n";
    assert!(TINY.contains(generated) && TINY.contains("epochs = 1") && TINY.contains("effective_batch = 16"));
    let recipe = TINY.replace(generated, table).replace("epochs = 1", "steps = 4");
    recipe.replace("effective_batch = 16", "effective_batch = 4") + "[checkpoint]\nevery = \"2 steps\"\n"
}

/// Writes the table in a folder of images.
fn table(sandbox: &Sandbox, folder: &str, change: impl Fn(String) -> String) {
    let mut lines = "split,photo,kind\n".to_owned();
    for (split, count) in [("test", 2), ("train", 8)] {
        for class in ["dark", "light"] {
            (0..count)
                .for_each(|index| lines += &format!("{split},{split}/{class}/{index:03}.png,{class}\n"));
        }
    }
    fs::write(sandbox.path(&format!("{folder}/table.csv")), change(lines)).unwrap();
}

/// Trains alone, without the start of a launcher.
fn train(sandbox: &Sandbox, run: &str, threads: &str, sets: &[&str]) {
    let mut command = Command::new(worker());
    without_outer_run(&mut command);
    command
        .args(["recipe.toml", "--run-dir", run])
        .current_dir(sandbox.path(""))
        .env("OMP_NUM_THREADS", threads);
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    expect_exit_code(&command.output().unwrap(), 0);
}

fn diff(sandbox: &Sandbox, runs: [&str; 2], code: i32) -> Value {
    let output = sandbox
        .dtrain(&["diff", "--json", runs[0], runs[1]])
        .env("DTRAIN_WORKER", worker())
        .output()
        .unwrap();
    let text = expect_exit_code(&output, code);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"))
}

/// A run, its settings, the kind and step of the first difference, and words of the verdict.
type Plant = (&'static str, &'static [&'static str], &'static str, u64, &'static str);

const PLANTS: [Plant; 9] = [
    ("seed", &["train.seed=4"], "order", 1, "train.seed (3 and 4)"),
    ("rate", &["optim.lr=0.002"], "lr", 1, "optim.lr (0.001 and 0.002)"),
    ("decay", &["optim.weight_decay=0.1"], "loss", 2, "optim.weight_decay ("),
    ("precision", &["precision.amp=bf16"], "loss", 1, "precision.amp (auto and bf16)"),
    ("batch", &["train.effective_batch=8", "train.steps=2"], "plan", 1, "train.effective_batch (4 and 8)"),
    ("flip", &["data.augment=flip"], "content", 0, "data.augment (none and flip)"),
    ("pixel", &["data.root=pixels/table.csv"], "content", 0, "samples' image (training sample "),
    ("label", &["data.root=labels/table.csv"], "content", 0, "samples' label"),
    (
        "weights",
        &["model.weights=base/checkpoints/step-00000002/model.safetensors"],
        "loss",
        1,
        "model.weights (",
    ),
];

#[test]
fn planted_differences_are_found_at_their_step() {
    let sandbox = Sandbox::new(&recipe());
    image_folder(&sandbox, 8, 2);
    table(&sandbox, "data", |lines| lines);
    for copy in ["pixels", "labels", "moved"] {
        let copied = Command::new("cp").arg("-r").args([sandbox.path("data"), sandbox.path(copy)]).status();
        assert!(copied.unwrap().success());
    }
    let changed = sandbox.path("pixels/train/light/003.png");
    let mut image = image::open(&changed).unwrap().to_rgb8();
    image.get_pixel_mut(5, 7).0[1] ^= 1;
    image.save(&changed).unwrap();
    let swapped = |lines: String| lines.replace("light/004.png,light", "light/004.png,dark");
    table(&sandbox, "labels", |lines| swapped(lines).replace("dark/006.png,dark", "dark/006.png,light"));
    train(&sandbox, "base", "1", &[]);

    for plants in PLANTS.chunks(3) {
        thread::scope(|scope| {
            for (run, sets, ..) in plants {
                scope.spawn(|| train(&sandbox, run, "1", sets));
            }
        });
    }
    thread::scope(|scope| {
        scope.spawn(|| train(&sandbox, "moved-run", "1", &["data.root=moved/table.csv"]));
        scope.spawn(|| train(&sandbox, "threads", "2", &[]));
        scope.spawn(|| {
            train(&sandbox, "resumed", "1", &["train.steps=2"]);
            train(&sandbox, "resumed", "1", &[]);
        });
        scope.spawn(|| sandbox.train(2, "ranks", &[]));
    });

    for (run, _, kind, step, words) in PLANTS {
        let found = diff(&sandbox, ["base", run], 1);
        let about = found["about"].as_str().unwrap();
        assert_eq!(found["first"]["kind"], kind, "{run}: {found}");
        assert!(step == 0 || found["first"]["step"] == step, "{run}: {found}");
        assert!(about.contains(words), "{run}: {about}");
    }
    let found = diff(&sandbox, ["base", "pixel"], 1);
    let name = found["changed_samples"]["names"][0].as_str().unwrap();
    assert!(name.contains("train/light/003.png"), "{found}");

    for equal in ["base", "moved-run", "resumed"] {
        let found = diff(&sandbox, ["base", equal], 0);
        assert_eq!(found["checkpoints"]["equal"], serde_json::json!([2, 4]), "{equal}: {found}");
        assert!(found["evaluations"].as_u64() > Some(0), "{equal}: {found}");
    }
    // Small tensors may have the same sums for any number of threads.
    let threads = sandbox.dtrain(&["diff", "base", "threads"]).output().unwrap();
    let text = String::from_utf8_lossy(&threads.stdout);
    assert!(text.contains("\nthreads of a rank  1  2\n"), "{text}");

    let found = diff(&sandbox, ["base", "ranks"], 1);
    assert_eq!(found["verdict"], "rounding", "{found}");
    assert_eq!(found["causes"][0], "ranks", "{found}");
    assert!(sandbox.dtrain(&["diff", "base", "ranks", "--tolerance", "1e-3"]).status().unwrap().success());
}

#[test]
fn a_changed_bit_of_a_checkpoint_is_found() {
    let sandbox = Sandbox::new(&recipe());
    image_folder(&sandbox, 8, 2);
    table(&sandbox, "data", |lines| lines);
    train(&sandbox, "a", "1", &[]);
    let copied = Command::new("cp").arg("-r").args([sandbox.path("a"), sandbox.path("b")]).status();
    assert!(copied.unwrap().success());
    let path = sandbox.path("b/checkpoints/step-00000002/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let found = diff(&sandbox, ["a", "b"], 1);
    assert_eq!(found["verdict"], "different", "{found}");
    let about = found["about"].as_str().unwrap();
    assert!(about.starts_with("Different from step 2: weights (1 of "), "{about}");
    assert!(about.contains("cause: model.safetensors of B changed after it was written"), "{about}");
    let tensor = &found["checkpoints"]["different"]["different"][0];
    assert_eq!((&tensor["file"], &tensor["different"]), (&"model.safetensors".into(), &1.into()), "{found}");
    let other = sandbox.dtrain(&["diff", "a", "missing"]).output().unwrap();
    assert!(expect_exit_code(&other, 2).contains("missing is not a run directory"));
}
