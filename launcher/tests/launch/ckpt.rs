//! `dtrain ckpt` on a run directory that the test has written.

use crate::harness::{Done, Scene, wait_until};
use dtrain_common::manifest::{FORMAT, FileEntry, Manifest};
use dtrain_common::recipe::Recipe;
use rustix::process::Signal;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

fn command(scene: &Scene, args: &[&str]) -> Command {
    scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["ckpt"]).into_command(args)
}

#[track_caller]
fn ckpt(scene: &Scene, args: &[&str]) -> Done {
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
        recipe: Recipe::load("demo", &[]).unwrap(),
        metrics: [("accuracy".to_owned(), step as f64 / 100.0)].into(),
        best: None,
        evaluation_owed: false,
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
    let recipe = Recipe::load("demo", &[]).unwrap();
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

#[test]
fn a_checkpoint_is_shown_with_whose_the_bytes_are() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 25]);
    let other = scene.path("b");
    checkpoint(&other, 5, |_, manifest| {
        manifest.recipe = Recipe::load("demo", &["optim.lr=0.5".into()]).unwrap();
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
    assert!(out.contains("1 setting other than in b/checkpoints/step-00000005:"), "{out}");
    assert!(out.contains("optim.lr  0.001  0.5"), "{out}");
    let recipe = run.join("recipe.toml");
    let out = ckpt(&scene, &["show", "b", "--against", &recipe.to_string_lossy()]).expect_code(0).stdout();
    assert!(out.contains("optim.lr  0.5   0.001"), "{out}");
    cut(&run.join("checkpoints/step-00000025"));
    let out = ckpt(&scene, &["show", "a"]).expect_code(0).stdout();
    assert!(out.contains("damaged: model.safetensors has 100 bytes"), "{out}");
    fs::remove_file(run.join("checkpoints/step-00000025/manifest.json")).unwrap();
    ckpt(&scene, &["show", "a"]).expect_code(1).says("holds no manifest.json");
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
        "  model.safetensors does not have its checksum\n",
        "step-00000020: of a newer dtrain\n  it has format 9",
        "is not a checkpoint manifest: EOF",
        "  model.safetensors is no sound safetensors file: its first 8 bytes announce",
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
    ckpt(&scene, &["verify", "a", "nowhere"]).expect_code(2).says("there is no nowhere");
}

#[test]
fn prune_keeps_what_the_recipe_keeps() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40, 50]);
    let all = names(&run);
    let out = ckpt(&scene, &["prune", "a", "--dry-run"]).expect_code(0).stdout();
    assert!(out.contains("keeping the newest 2 (checkpoint.keep of a/recipe.toml)"), "{out}");
    assert!(
        out.contains("kept step-00000010: `best` points to it") && out.contains("nothing was touched"),
        "{out}"
    );
    assert_eq!(names(&run), all);
    let out = ckpt(&scene, &["prune", "a"]).expect_code(0).stdout();
    assert!(out.contains("2 folders removed, "), "{out}");
    assert_eq!(names(&run), ["best", "latest", "step-00000010", "step-00000040", "step-00000050"]);
    ckpt(&scene, &["prune", "a", "--keep", "0"]).expect_code(2);
    fs::remove_file(run.join("recipe.toml")).unwrap();
    ckpt(&scene, &["prune", "a"]).expect_code(2).says("give --keep and --keep-every");
    ckpt(&scene, &["prune", "a", "--keep", "1", "--keep-every", "40"]).expect_code(0);
    assert_eq!(names(&run).len(), 5, "40 is the last of 1 to 40");
    ckpt(&scene, &["prune", "a", "--keep", "1", "--keep-every", "0"]).expect_code(0);
    assert_eq!(names(&run).len(), 4);
}

/// The newest whole checkpoint stays, even if later ones are damaged.
#[test]
fn prune_leaves_damaged_and_young_ones_alone() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40]);
    link(&run, "best", 40);
    for step in [30, 40] {
        cut(&run.join(format!("checkpoints/step-{step:08}")));
    }
    let folder = run.join("checkpoints");
    fs::create_dir(folder.join(".partial-00000050")).unwrap();
    fs::create_dir(folder.join(".removed-step-00000005")).unwrap();
    let old = folder.join(".partial-00000045");
    fs::create_dir(&old).unwrap();
    File::open(&old).unwrap().set_modified(SystemTime::now() - Duration::from_secs(700)).unwrap();
    let args = ["prune", "a", "--keep", "1", "--keep-every", "0"];
    let out = ckpt(&scene, &args).expect_code(0).stdout();
    assert!(
        out.contains("kept step-00000030: it is damaged")
            && out.contains("kept .partial-00000050: it changed"),
        "{out}"
    );
    assert_eq!(
        names(&run),
        [".partial-00000050", "best", "latest", "step-00000020", "step-00000030", "step-00000040"]
    );
    let all = [&args[..], &["--damaged", "--force"]].concat();
    ckpt(&scene, &all).expect_code(0);
    assert_eq!(names(&run), ["best", "latest", "step-00000020", "step-00000040"]);
}

#[test]
fn what_a_crash_or_a_rollback_left_is_listed_and_what_a_run_needs_stays() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20]);
    let folder = run.join("checkpoints");
    for name in [".replaced-00000010", ".replaced-00000030", ".rollback-2", "rollback-1"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::create_dir(folder.join(".rollback-2/step-00000040")).unwrap();
    fs::write(folder.join(".rollback-2/rollback.json"), r#"{"from": 40, "to": 20}"#).unwrap();
    let out = ckpt(&scene, &["ls", "a"]).expect_code(0).stdout();
    for line in [
        "rollback-1: no checkpoint left, 0 B; `dtrain ckpt prune --rollbacks` removes it",
        ".rollback-2: not completed when the run went back from step 40 to step 20, 22 B; steps 40; the next start",
        ".replaced-00000010: not wholly removed, 0 B; a run may be at it, or",
        ".replaced-00000030: a checkpoint, 0 B; the next start of the run gives it its name",
    ] {
        assert!(out.contains(line), "{line} in {out}");
    }
    let list = json(&scene, &["ls", "a", "--json"]);
    assert_eq!(list["set_aside"][1]["under_way"], true);
    assert_eq!(list["leftovers"].as_array().unwrap().len(), 2);
    let args = ["prune", "a", "--keep", "9", "--keep-every", "0", "--rollbacks"];
    ckpt(&scene, &args).expect_code(0);
    let left = names(&run);
    assert!(
        [".replaced-00000030", ".rollback-2", "rollback-1"]
            .iter()
            .all(|name| left.contains(&(*name).to_owned())),
        "{left:?}"
    );
    assert!(!left.contains(&".replaced-00000010".to_owned()), "{left:?}");
    // The next start of the run does the same.
    fs::rename(folder.join(".rollback-2"), folder.join("rollback-2")).unwrap();
    ckpt(&scene, &args).expect_code(0);
    let left = names(&run);
    assert!(!left.iter().any(|name| name.contains("rollback")), "{left:?}");
}

#[test]
fn prune_keeps_what_a_rollback_that_was_broken_off_needs() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40, 50]);
    let folder = run.join("checkpoints");
    link(&run, "best", 20);
    for name in [".rollback-2", "rollback-1"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let back = "rollback-1/step-00000050";
    fs::rename(folder.join("step-00000050"), folder.join(back)).unwrap();
    fs::write(
        folder.join(".rollback-2/rollback.json"),
        format!(r#"{{"from": 40, "to": 20, "restores": "{back}"}}"#),
    )
    .unwrap();
    cut(&folder.join("step-00000030"));
    let args = ["--keep", "1", "--keep-every", "0", "--rollbacks", "--damaged"];
    let out = ckpt(&scene, &[&["prune", "a"], &args[..]].concat());
    let out = out.expect_code(0).stdout();
    assert!(
        out.contains("kept .rollback-2, and all behind step 20: the next start")
            && out.contains("kept rollback-1: the next start"),
        "{out}"
    );
    assert_eq!(
        names(&run),
        [".rollback-2", "best", "latest", "rollback-1", "step-00000020", "step-00000030", "step-00000040"]
    );
    assert!(folder.join(back).is_dir());
}

#[test]
fn epochs_of_keep_every_are_counted_by_the_plan() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40]);
    let set = ["checkpoint.keep=1".into(), "checkpoint.keep_every=\"2 epochs\"".into()];
    let recipe = Recipe::load("demo", &set).unwrap();
    fs::write(run.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
    link(&run, "best", 40);
    ckpt(&scene, &["prune", "a"]).expect_code(2).says("give --keep-every");
    fs::write(run.join("plan.json"), "{\"steps_per_epoch\": 10}").unwrap();
    let out = ckpt(&scene, &["prune", "a"]).expect_code(0).stdout();
    assert!(out.contains("the last of every 2 epochs"), "{out}");
    assert_eq!(names(&run), ["best", "latest", "step-00000020", "step-00000040"]);
}

#[test]
fn names_of_classes_are_shown_and_exported() {
    let scene = Scene::new();
    let run = run(&scene, &[10]);
    checkpoint(&run, 20, |_, manifest| {
        manifest.class_names = vec!["cat".into(), "dog".into()];
    });
    let said = ckpt(&scene, &["show", "a@20"]).expect_code(0).stdout();
    assert!(said.contains("2: cat, dog"), "{said}");
    ckpt(&scene, &["export", "a@20", "out.safetensors"]).expect_code(0);
    let bytes = fs::read(scene.path("out.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header["__metadata__"]["class_names"], r#"["cat","dog"]"#);
}

#[test]
fn an_export_is_one_file_of_the_weights_asked_for() {
    let scene = Scene::new();
    let run = run(&scene, &[10]);
    checkpoint(&run, 20, |folder, manifest| {
        manifest.ema_updates = Some(20);
        write_tensors(&folder.join("ema.safetensors"), &[("conv1.weight", &[4, 3], 2.5)]);
    });
    link(&run, "latest", 20);
    let out = scene.path("out.safetensors");
    let first = |name: &str| {
        let content = fs::read(&out).unwrap();
        let file = SafeTensors::deserialize(&content).unwrap();
        let tensor = file.tensor(name).unwrap();
        (tensor.dtype(), tensor.data()[..tensor.dtype().bitsize() / 8].to_vec())
    };
    let f32 = |value: f32| (Dtype::F32, value.to_le_bytes().to_vec());
    let said = ckpt(&scene, &["export", "a", "out.safetensors"]).expect_code(0).stdout();
    assert!(
        said.contains("weights     the moving average") && said.contains("float32 (4), int64 (1)"),
        "{said}"
    );
    assert_eq!((first("conv1.weight"), first("fc.weight")), (f32(2.5), f32(-2.0)));
    ckpt(&scene, &["export", "a", "out.safetensors"]).expect_code(2).says("--force overwrites it");
    let raw = [
        "export",
        "a",
        "out.safetensors",
        "--force",
        "--weights",
        "raw",
        "--names",
        "huggingface",
        "--dtype",
        "bf16",
    ];
    ckpt(&scene, &raw).expect_code(0);
    assert_eq!(first("resnet.embedder.embedder.convolution.weight"), (Dtype::BF16, vec![0xc0, 0x3f]));
    assert_eq!(
        first("resnet.embedder.embedder.normalization.num_batches_tracked"),
        (Dtype::I64, 7_i64.to_le_bytes().to_vec())
    );
    ckpt(&scene, &["export", "a@10", "x", "--weights", "ema"]).expect_code(2).says("keeps no moving average");
    ckpt(&scene, &["export", "a", "a/checkpoints/latest/model.safetensors", "--force"])
        .expect_code(2)
        .says("is a checkpoint, whose files are not to be touched");
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o444, 0o444, "others may read it");
}

#[test]
fn what_cannot_be_exported_leaves_no_file() {
    let scene = Scene::new();
    let run = run(&scene, &[10]);
    checkpoint(&run, 20, |folder, manifest| {
        manifest.model = "unet".into();
        write_tensors(&folder.join("model.safetensors"), &[("big", &[3], 1e6)]);
    });
    ckpt(&scene, &["export", "a@20", "x", "--names", "timm"])
        .expect_code(2)
        .says("timm has no model like \"unet\"");
    ckpt(&scene, &["export", "a@20", "x", "--dtype", "f16"])
        .expect_code(1)
        .says("3 numbers in 1 tensor (the first is \"big\") would become infinite in float16");
    damage(&run.join("checkpoints/step-00000010"));
    ckpt(&scene, &["export", "a@10", "x"])
        .expect_code(1)
        .says("is damaged, use another one: model.safetensors does not have its checksum");
    let left: Vec<_> = fs::read_dir(scene.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !matches!(name.as_str(), "a" | ".out" | ".err"))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// Ctrl-C during the write leaves no file, not even a part.
#[test]
fn an_export_that_is_stopped_leaves_no_file() {
    let scene = Scene::new();
    let run = scene.path("a");
    checkpoint(&run, 10, |folder, manifest| {
        manifest.model = "gpt".into();
        let tensors: Tensors<'_> = &[
            ("transformer.wte.weight", &[1 << 15, 64], 1.0),
            // A matrix of long columns is read in many small pieces.
            ("transformer.h.0.mlp.c_fc.weight", &[1 << 22, 4], 1.0),
        ];
        write_tensors(&folder.join("model.safetensors"), tensors);
    });
    fs::create_dir(scene.path("out")).unwrap();
    let export = scene.start(command(&scene, &["export", "a@10", "out/x", "--names", "huggingface"]));
    let count = || fs::read_dir(scene.path("out")).unwrap().count();
    wait_until("a temporary file", || count() > 0);
    export.signal(Signal::INT);
    let done = export.wait();
    done.expect_code(130).says("stopped by SIGINT; out/x was not written");
    assert_eq!(count(), 0);
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
        ckpt(&scene, &["prune", "a", "--keep", "1"]).expect_code(1).says("cannot remove");
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
