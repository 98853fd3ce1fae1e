#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use safetensors::serialize;
use safetensors::tensor::TensorView;

use super::*;

fn file(values: &[f32], count: i64) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let count = count.to_le_bytes();
    let tensors = [
        (
            "w",
            TensorView::new(Dtype::F32, vec![values.len()], &bytes).unwrap(),
        ),
        ("n", TensorView::new(Dtype::I64, vec![], &count).unwrap()),
    ];
    serialize(tensors, None).unwrap()
}

#[test]
fn differences_are_absolute_and_the_largest_counts() {
    let one = file(&[1.0, -2.0, 0.0], 3);
    let apart = |other: Vec<u8>| largest_difference(&one, &other);
    assert_eq!(apart(one.clone()).unwrap(), 0.0);
    assert_eq!(apart(file(&[1.25, -2.5, 0.0], 3)).unwrap(), 0.5);
    assert_eq!(apart(file(&[1.0, f32::NAN, 0.0], 3)).unwrap(), f64::INFINITY);
    assert!(
        apart(file(&[1.0, -2.0, 0.0], 4))
            .unwrap_err()
            .to_string()
            .contains('n')
    );
    assert!(
        apart(file(&[1.0, -2.0], 3))
            .unwrap_err()
            .to_string()
            .contains("shape")
    );
    assert!(apart(b"no tensors".to_vec()).is_err());
}

#[test]
fn only_partial_folders_are_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(folder.path());
    assert_eq!(being_written(&run), None);
    for name in ["step-00000003", ".removed-step-00000003"] {
        fs::create_dir_all(run.checkpoints().join(name)).unwrap();
    }
    assert_eq!(being_written(&run), None);
    fs::create_dir(run.checkpoints().join(".partial-00000012")).unwrap();
    assert_eq!(being_written(&run), Some(12));
}

#[test]
fn a_folder_without_a_manifest_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(folder.path());
    assert_eq!(verify(&run).unwrap(), (0, Vec::new()));
    fs::create_dir_all(run.checkpoint(6)).unwrap();
    let (whole, damaged) = verify(&run).unwrap();
    assert!(
        whole == 0 && damaged.len() == 1 && damaged[0].starts_with("step 6"),
        "{damaged:?}"
    );
}

#[test]
fn a_run_ends_with_the_checkpoint_of_its_last_step_and_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(folder.path());
    fs::create_dir_all(run.checkpoint(6)).unwrap();
    let lines = "{\"step\":6,\"loss\":1.0}\n{\"checkpoint\":{\"step\":6}}\n{\"step\":7,\"lo";
    fs::write(run.metrics(), lines).unwrap();
    assert_eq!(last_step(&run), 6);
    assert!(ended(&run, 6).is_err());
    symlink("step-00000006", run.latest()).unwrap();
    ended(&run, 6).unwrap();
    assert!(ended(&run, 9).unwrap_err().to_string().contains("step 9"));
    fs::create_dir(run.checkpoints().join(".partial-00000007")).unwrap();
    assert!(
        ended(&run, 6)
            .unwrap_err()
            .to_string()
            .contains(".partial-00000007")
    );
}
