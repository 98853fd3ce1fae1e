//! `dtrain ckpt export`.

use super::*;
use crate::harness::words;

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
    ckpt(&scene, &["export", "a", "out.safetensors"]).expect_code(2).expect_stderr("--force overwrites it");
    let raw = words("export a out.safetensors --force --weights raw --names huggingface --dtype bf16");
    ckpt(&scene, &raw).expect_code(0);
    assert_eq!(first("resnet.embedder.embedder.convolution.weight"), (Dtype::BF16, vec![0xc0, 0x3f]));
    assert_eq!(
        first("resnet.embedder.embedder.normalization.num_batches_tracked"),
        (Dtype::I64, 7_i64.to_le_bytes().to_vec())
    );
    ckpt(&scene, &["export", "a@10", "x", "--weights", "ema"])
        .expect_code(2)
        .expect_stderr("keeps no moving average");
    ckpt(&scene, &["export", "a", "a/checkpoints/latest/model.safetensors", "--force"])
        .expect_code(2)
        .expect_stderr("is a checkpoint, which must not change");
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o444, 0o444, "others may read it");
}

#[test]
fn failed_exports_leave_no_file() {
    let scene = Scene::new();
    let run = run(&scene, &[10]);
    checkpoint(&run, 20, |folder, manifest| {
        manifest.model = "unet".into();
        write_tensors(&folder.join("model.safetensors"), &[("big", &[3], 1e6)]);
    });
    ckpt(&scene, &["export", "a@20", "x", "--names", "timm"])
        .expect_code(2)
        .expect_stderr("timm has no model like \"unet\"");
    ckpt(&scene, &["export", "a@20", "x", "--dtype", "f16"])
        .expect_code(1)
        .expect_stderr("3 numbers in 1 tensor (the first is \"big\") would become infinite in float16");
    damage(&run.join("checkpoints/step-00000010"));
    ckpt(&scene, &["export", "a@10", "x"])
        .expect_code(1)
        .expect_stderr("is damaged, use another one: model.safetensors has a wrong checksum");
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
    done.expect_code(130).expect_stderr("stopped by SIGINT; out/x was not written");
    assert_eq!(count(), 0);
}
