//! Trainings on samples in larger files: tar archives and Parquet.

use std::fs;
use std::path::Path;

use dtrain_test_kit::thorough;
use dtrain_tests::runs::Sandbox;

use crate::bad_input::folder_recipe;
use crate::checkpoints::assert_same;

/// Copies the reference files, so that indexes are written beside the copies.
fn sandbox() -> Sandbox {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let (entry, to) = (entry.as_ref().unwrap(), to.join(entry.as_ref().unwrap().file_name()));
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let sandbox = Sandbox::new(&folder_recipe());
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("parity/reference/packs"), &sandbox.path("data"));
    sandbox
}

/// Python's tarfile and pyarrow have written the files, in the order of the folder.
#[test]
fn packed_folders_train_as_the_folders() {
    let sandbox = sandbox();
    let changes = "data.augment=resized-crop-flip";
    let indexed = [
        "data.kind=parquet",
        "data.train=indexed-train",
        "data.test=indexed-test.parquet",
        "data.fields={ image = \"image:picture\", label = \"class:kind\" }",
    ];
    let kinds: [(&str, &[&str]); 4] = [
        ("shards", &["data.kind=shards", "data.train=train-{000..001}.tar"]),
        ("parquet", &["data.kind=parquet"]),
        ("indexed", &indexed),
        ("numbered", &["data.kind=shards"]),
    ];
    for &ranks in thorough::cases(&[2, 1, 3], 1) {
        let folders = sandbox.train(ranks, &format!("folders-{ranks}"), &[changes]);
        for (kind, sets) in &kinds[..if ranks == 2 { 4 } else { 2 }] {
            let sets = [&[changes], *sets].concat();
            let packed = sandbox.train(ranks, &format!("{kind}-{ranks}"), &sets);
            assert_eq!(folders.per_step("loss"), packed.per_step("loss"), "{kind} {ranks}");
            assert_eq!(folders.result().final_metrics, packed.result().final_metrics, "{kind} {ranks}");
            assert_same(&folders.0.checkpoint(2), &packed.0.checkpoint(2), &["model.safetensors"]);
        }
    }
    assert!(sandbox.path("data/.train-000.tar.dtrain-index").is_file());
}
