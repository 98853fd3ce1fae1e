//! `dtrain ckpt average`.

use super::*;

/// Returns the first value of a tensor of an averaged checkpoint.
fn first(scene: &Scene, folder: &str, name: &str) -> Vec<u8> {
    let content = fs::read(scene.path(folder).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&content).unwrap();
    let tensor = file.tensor(name).unwrap();
    tensor.data()[..tensor.dtype().bitsize() / 8].to_vec()
}

#[test]
fn the_mean_of_the_last_checkpoints_is_a_checkpoint() {
    let scene = Scene::new();
    let run = run(&scene, &[10]);
    for (step, weight, count) in [(20, 2.5, 8.0), (30, 4.5, 9.0)] {
        let tensors: Vec<_> = MODEL
            .iter()
            .map(|&(name, shape, value)| match name {
                "conv1.weight" => (name, shape, weight),
                "bn1.num_batches_tracked" => (name, shape, count),
                _ => (name, shape, value),
            })
            .collect();
        checkpoint(&run, step, |folder, manifest| {
            write_tensors(&folder.join("model.safetensors"), &tensors);
            fs::write(folder.join("tokenizer.json"), "{}").unwrap();
            manifest.ema_updates = Some(20);
        });
    }
    link(&run, "latest", 30);
    let said = ckpt(&scene, &["average", "a", "-o", "mean"]).expect_code(0).stdout();
    assert!(said.contains("3 checkpoints, of the steps 10, 20, 30"), "{said}");
    assert_eq!(first(&scene, "mean", "conv1.weight"), (8.5f32 / 3.0).to_le_bytes());
    assert_eq!(first(&scene, "mean", "bn1.num_batches_tracked"), 9i64.to_le_bytes());
    ckpt(&scene, &["verify", "mean"]).expect_code(0);
    let names: Vec<_> = Manifest::read(&scene.path("mean")).unwrap().files;
    let names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["model.safetensors", "tokenizer.json"]);
    ckpt(&scene, &["average", "a", "--last", "2", "-o", "two"]).expect_code(0);
    assert_eq!(first(&scene, "two", "conv1.weight"), 3.5f32.to_le_bytes());
    ckpt(&scene, &["average", "a@10", "a@30", "-o", "named"]).expect_code(0);
    assert_eq!(first(&scene, "named", "conv1.weight"), 3f32.to_le_bytes());
    for (args, part) in [
        (&["average", "a", "-o", "mean"][..], "mean exists"),
        (&["average", "a", "--last", "4", "-o", "x"], "has 3 whole checkpoints"),
        (&["average", "a@10", "-o", "x"], "needs two checkpoints at least"),
        (&["average", "a@10", "a@10", "-o", "x"], "named twice"),
        (&["average", "a@10", "a", "-o", "x"], "is a run directory"),
        (&["average", "a@10", "a@20", "--last", "2", "-o", "x"], "leave it out"),
    ] {
        ckpt(&scene, args).expect_code(2).expect_stderr(part);
    }
    // A slash at the end, and a copy whose links are folders.
    ckpt(&scene, &["average", "a@10", "a@20", "-o", "slash/"]).expect_code(0);
    assert!(scene.path("slash/manifest.json").is_file());
    let copy = run.join("checkpoints/latest");
    fs::remove_file(&copy).unwrap();
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(run.join("checkpoints/step-00000030")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let said = ckpt(&scene, &["average", "a", "-o", "copied"]).expect_code(0).stdout();
    assert!(said.contains("3 checkpoints, of the steps 10, 20, 30"), "{said}");
    ckpt(&scene, &["average", "a@30", "a/checkpoints/latest", "-o", "x"])
        .expect_code(2)
        .expect_stderr("same weights");
    ckpt(&scene, &["average", "a", "-o", "step-00000100"]).expect_code(2).expect_stderr("another step");
    checkpoint(&run, 40, |folder, _| {
        write_tensors(&folder.join("model.safetensors"), &[("conv1.weight", &[4, 4], 0.0)]);
    });
    ckpt(&scene, &["average", "a@10", "a@40", "-o", "x"]).expect_code(2).expect_stderr("different models");
    fs::write(run.join("checkpoints/step-00000020/model.safetensors"), "damaged").unwrap();
    ckpt(&scene, &["average", "a@10", "a@20", "-o", "x"]).expect_code(1);
    assert!(!scene.path("x").exists() && !scene.path("x.partial").exists());
}
