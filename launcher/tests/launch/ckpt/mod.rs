//! `dtrain ckpt` on a run directory that the test has written.

use crate::harness::{Finished, Scene, wait_until};
use dtrain_common::manifest::{FORMAT, FileEntry, Manifest};
use dtrain_test_kit::programs::resolved;
use rustix::process::Signal;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

mod average;
mod export;
mod prune;

fn command(scene: &Scene, args: &[&str]) -> Command {
    scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["ckpt"]).into_command(args)
}

#[track_caller]
fn ckpt(scene: &Scene, args: &[&str]) -> Finished {
    scene.start(command(scene, args)).wait()
}

#[track_caller]
fn json(scene: &Scene, args: &[&str]) -> Value {
    serde_json::from_slice(&ckpt(scene, args).stdout).unwrap()
}

/// Names, shapes and values of float32 tensors; counts are int64.
type Tensors<'a> = &'a [(&'a str, &'a [u64], f32)];

fn write_tensors(path: &Path, tensors: Tensors<'_>) {
    let of = |(name, shape, value): &(&str, &[u64], f32)| {
        let elements = shape.iter().product::<u64>() as usize;
        let is_count = name.starts_with("step.") || name.ends_with("tracked");
        let (dtype, bytes) = match is_count {
            true => (Dtype::I64, (*value as i64).to_le_bytes().repeat(elements)),
            false => (Dtype::F32, value.to_le_bytes().repeat(elements)),
        };
        let shape = shape.iter().map(|size| *size as usize).collect();
        ((*name).to_owned(), dtype, shape, bytes)
    };
    let made: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors.iter().map(of).collect();
    let views = made
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(path, bytes).unwrap();
}

const MODEL: Tensors<'static> = &[
    ("bn1.num_batches_tracked", &[], 7.0),
    ("conv1.weight", &[4, 3], 1.5),
    ("bn1.weight", &[4], 1.0),
    ("bn1.running_mean", &[4], 0.5),
    ("fc.weight", &[2, 4], -2.0),
];

/// Writes a checkpoint of a small "resnet18" at this step.
pub(crate) fn checkpoint(run: &Path, step: u64, change: impl FnOnce(&Path, &mut Manifest)) -> PathBuf {
    let folder = run.join(format!("checkpoints/step-{step:08}"));
    fs::create_dir_all(&folder).unwrap();
    write_tensors(&folder.join("model.safetensors"), MODEL);
    let optimizer: Tensors<'_> = &[
        ("step.conv1.weight", &[], step as f32),
        ("step.fc.weight", &[], step as f32),
        ("momentum_buffer.conv1.weight", &[4, 3], 0.0),
        ("momentum_buffer.fc.weight", &[2, 4], 0.0),
    ];
    write_tensors(&folder.join("optimizer-00000-of-00001.safetensors"), optimizer);
    let mut manifest = Manifest {
        format: FORMAT,
        dtrain: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        task: "classify".into(),
        model: "resnet18".into(),
        classes: 2,
        class_names: Vec::new(),
        parameters: 20,
        step,
        epoch: step / 10,
        step_in_epoch: step % 10,
        stage: None,
        samples: step * 64,
        world_size: 2,
        loss_scale: None,
        ema_updates: None,
        extra: Value::Null,
        fields: Vec::new(),
        data_periods: Vec::new(),
        program: None,
        base: None,
        recipe: resolved("demo", &[]),
        metrics: [("accuracy".to_owned(), step as f64 / 100.0)].into(),
        best: None,
        stopping: None,
        evaluation_missing: false,
        data: None,
        files: Vec::new(),
    };
    change(&folder, &mut manifest);
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        manifest.files.push(FileEntry::of(&folder.join(&name), &name).unwrap());
    }
    manifest.write(&folder).unwrap();
    folder
}

fn link(run: &Path, name: &str, step: u64) {
    let link = run.join("checkpoints").join(name);
    let _ = fs::remove_file(&link);
    symlink(format!("step-{step:08}"), link).unwrap();
}

/// Writes a run `a` with checkpoints at these steps: `latest` is the last, `best` the first.
fn run(scene: &Scene, steps: &[u64]) -> PathBuf {
    let run = scene.path("a");
    for step in steps {
        checkpoint(&run, *step, |_, _| ());
    }
    link(&run, "best", steps[0]);
    link(&run, "latest", *steps.last().unwrap());
    let recipe = resolved("demo", &[]);
    fs::write(run.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
    run
}

/// Returns the names in the folder of checkpoints.
fn names(run: &Path) -> Vec<String> {
    let list = fs::read_dir(run.join("checkpoints")).unwrap();
    let mut names: Vec<_> = list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn damage(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut(folder: &Path) {
    let file = File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    file.set_len(100).unwrap();
}

#[test]
fn a_list_has_every_checkpoint_and_its_marks() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 25, 30, 40]);
    cut(&run.join("checkpoints/step-00000030"));
    fs::remove_file(run.join("checkpoints/step-00000025/manifest.json")).unwrap();
    fs::create_dir(run.join("checkpoints/.partial-00000050")).unwrap();
    for place in ["a", "a/checkpoints", "a/checkpoints/"] {
        let out = ckpt(&scene, &["ls", place]).expect_code(0).stdout();
        let lines: Vec<_> = out.lines().collect();
        assert!(lines[0].starts_with("a/checkpoints: 4 checkpoints, "), "{out}");
        assert!(
            lines[3].trim().starts_with("10       1      640") && lines[3].ends_with("0.1000  best"),
            "{out}"
        );
        assert!(lines[4].ends_with("-  damaged"), "{out}");
        assert!(lines[5].contains("0.3000  damaged") && lines[6].ends_with("0.4000  latest"), "{out}");
        assert!(out.contains("step-00000025: manifest.json is missing\n"), "{out}");
        assert!(out.contains("step-00000030: model.safetensors has 100 bytes"), "{out}");
        assert!(out.contains(".partial-00000050: not finished, 0 B"), "{out}");
    }
    let list = json(&scene, &["ls", "a", "--json"]);
    let found = list["checkpoints"].as_array().unwrap();
    assert_eq!(found.len(), 4);
    assert_eq!(
        (&found[0]["best"], &found[0]["whole"], &found[0]["metrics"]["accuracy"]),
        (&true.into(), &true.into(), &0.1.into())
    );
    assert_eq!(found[2]["problem"]["kind"], "size");
    assert_eq!(list["leftovers"].as_array().unwrap().len(), 1);
}

/// Checkpoints by time or at a stop have no evaluation.
#[test]
fn a_list_has_figures_for_every_checkpoint() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 25, 30]);
    fs::remove_dir_all(run.join("checkpoints/step-00000025")).unwrap();
    checkpoint(&run, 25, |_, manifest| manifest.metrics.clear());
    let lines = r#"{"step":10,"epoch":1,"loss":2.5}
{"checkpoint":{"step":10}}
{"step":25,"epoch":2,"loss":1.5}
{"eval":{"step":25,"epoch":2,"loss":1.75,"accuracy":0.625,"samples":10,"eval_ms":1.0,"best":true}}
{"eval":{"step":30,"set":"val","epoch":3,"loss":1.25,"accuracy":0.125,"samples":10,"eval_ms":1.0}}
{"step":30,"lo"#;
    fs::write(run.join("metrics.jsonl"), lines).unwrap();
    let out = ckpt(&scene, &["ls", "a"]).expect_code(0).stdout();
    let rows: Vec<Vec<&str>> = out.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert!(rows[0].ends_with(&["accuracy", "loss", "train_loss", "marks"]), "{out}");
    assert!(rows[1].ends_with(&["0.1000", "-", "2.5000", "best"]), "{out}");
    assert!(rows[2].ends_with(&["0.6250", "1.7500", "1.5000"]), "{out}");
    // The manifest's figures come first.
    assert!(rows[3].ends_with(&["0.3000", "1.2500", "-", "latest"]), "{out}");
    let list = json(&scene, &["ls", "a", "--json"]);
    assert_eq!(list["checkpoints"][1]["metrics"]["train_loss"], 1.5);
}

#[test]
fn a_checkpoint_is_shown_with_whose_the_bytes_are() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 25]);
    let other = scene.path("b");
    checkpoint(&other, 5, |_, manifest| {
        manifest.recipe = resolved("demo", &["optim.lr=0.5".into()]);
    });
    for name in ["a", "a/checkpoints/latest", "a@25", "a@latest"] {
        let shown = json(&scene, &["show", name, "--json"]);
        assert_eq!(shown["path"], "a/checkpoints/step-00000025", "{name}");
        let sizes = &shown["sizes"];
        let of = |owner: &str, kind: &str| sizes[owner]["kinds"][kind]["elements"].clone();
        assert_eq!(
            [
                of("model", "trained"),
                of("model", "buffers"),
                of("model", "not trained"),
                of("optimizer", "momentum_buffer"),
                of("optimizer", "step")
            ],
            [20, 5, 4, 20, 2]
        );
        assert_eq!(shown["recipe"]["differences"].as_array().unwrap().len(), 0);
    }
    let out = ckpt(&scene, &["show", "a@best", "--against", "b@5"]).expect_code(0).stdout();
    assert!(out.contains("1 setting different from b/checkpoints/step-00000005:"), "{out}");
    assert!(out.contains("optim.lr  0.001  0.5"), "{out}");
    let recipe = run.join("recipe.toml");
    let out = ckpt(&scene, &["show", "b", "--against", &recipe.to_string_lossy()]).expect_code(0).stdout();
    assert!(out.contains("optim.lr  0.5   0.001"), "{out}");
    cut(&run.join("checkpoints/step-00000025"));
    let out = ckpt(&scene, &["show", "a"]).expect_code(0).stdout();
    assert!(out.contains("damaged: model.safetensors has 100 bytes"), "{out}");
    fs::remove_file(run.join("checkpoints/step-00000025/manifest.json")).unwrap();
    ckpt(&scene, &["show", "a"])
        .expect_code(1)
        .expect_stderr("is not a whole checkpoint: it has no manifest.json");
}

#[test]
fn verify_names_all_that_is_wrong() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40]);
    let folder = |step: u64| run.join(format!("checkpoints/step-{step:08}"));
    let out = ckpt(&scene, &["verify", "a"]).expect_code(0).stdout();
    assert!(out.ends_with("4 checkpoints: 4 whole, 0 not\n"), "{out}");
    ckpt(&scene, &["verify", "a/checkpoints/latest"]).expect_code(0);
    damage(&folder(10));
    fs::remove_file(folder(10).join("optimizer-00000-of-00001.safetensors")).unwrap();
    let text = fs::read_to_string(folder(20).join("manifest.json")).unwrap();
    fs::write(
        folder(20).join("manifest.json"),
        text.replace(&format!("\"format\": {FORMAT}"), "\"format\": 9"),
    )
    .unwrap();
    fs::write(folder(30).join("manifest.json"), "{").unwrap();
    // The checksum is right, but the content is not.
    fs::write(folder(40).join("model.safetensors"), "12345678{").unwrap();
    let mut manifest = Manifest::read(&folder(40)).unwrap();
    for entry in &mut manifest.files {
        *entry = FileEntry::of(&folder(40).join(&entry.name), &entry.name).unwrap();
    }
    manifest.write(&folder(40)).unwrap();
    let out = ckpt(&scene, &["verify", "a"]).expect_code(1).stdout();
    for said in [
        "step-00000010: damaged\n",
        "  optimizer-00000-of-00001.safetensors is missing\n",
        "  model.safetensors has a wrong checksum\n",
        "step-00000020: of a newer dtrain\n  a newer dtrain wrote its format 9",
        "is not a checkpoint manifest: EOF",
        "  model.safetensors is not a valid safetensors file: its first 8 bytes announce",
        "4 checkpoints: 0 whole, 4 not\n",
    ] {
        assert!(out.contains(said), "{said:?} is missing in:\n{out}");
    }
    let report = json(&scene, &["verify", "a@10", "a@40", "a@40", "--json"]);
    let kinds: Vec<_> = report["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["problems"].as_array().unwrap())
        .map(|problem| problem["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["missing", "checksum", "header"]);
    ckpt(&scene, &["verify", "a", "nowhere"]).expect_code(2).expect_stderr("nowhere does not exist");
}

#[test]
fn a_folder_that_cannot_be_written_is_read_all_the_same() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30]);
    let checkpoints = run.join("checkpoints");
    fs::set_permissions(&checkpoints, fs::Permissions::from_mode(0o555)).unwrap();
    for args in [&["ls", "a"][..], &["show", "a"], &["verify", "a"], &["export", "a", "x"]] {
        ckpt(&scene, args).expect_code(0);
    }
    // Root may write anywhere.
    if !rustix::process::geteuid().is_root() {
        ckpt(&scene, &["prune", "a", "--keep", "1"]).expect_code(1).expect_stderr("cannot remove");
    }
    fs::set_permissions(&checkpoints, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let scene = Scene::new();
    run(&scene, &[10]);
    for args in [&["ls", "a"][..], &["show", "a"], &["verify", "a"], &["prune", "a"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = command(&scene, args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(0), "{args:?}");
    }
}
