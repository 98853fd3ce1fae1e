//! Starting from a named checkpoint.

use super::rollback::{broken_off, point, run_of};
use super::*;
use crate::manifest::ManifestError;

#[test]
fn from_starts_a_new_folder_from_another_runs_checkpoint() {
    let run = &place().run;
    let old = run.root().parent().unwrap().join("old/step-00000007");
    write_checkpoint(&old, 7, &recipe(&[]));
    let start = run.prepare(&recipe(&["train.epochs=50"]), &Resume::From(old.clone())).unwrap();
    assert_eq!(start, Start::Resume(old));
    assert_eq!(saved(run).train.epochs, Some(50));
}

#[test]
fn from_with_an_unsuitable_checkpoint_is_an_error() {
    let run = &place().run;
    let parent = run.root().parent().unwrap().to_path_buf();
    let from = |path: &str| Resume::From(parent.join(path));
    write_checkpoint(&parent.join("other"), 7, &recipe(&["model.name=resnet34"]));
    let error = prepare_error(run, &recipe(&[]), &from("other"));
    assert!(matches!(error, RunDirError::CheckpointDiffers { .. }), "{error}");
    assert!(error.to_string().contains("model.name is \"resnet34\" there and \"resnet18\" here"), "{error}");
    assert!(!run.root().exists());

    fs::create_dir(parent.join("empty")).unwrap();
    let error = prepare_error(run, &recipe(&[]), &from("empty"));
    assert!(matches!(error, RunDirError::Checkpoint(ManifestError::Missing { .. })), "{error}");
    assert!(matches!(prepare_error(run, &recipe(&[]), &from("no")), RunDirError::Checkpoint(_)));
    write_checkpoint(&parent.join("cut"), 7, &recipe(&[]));
    fs::write(parent.join("cut/model.safetensors"), "").unwrap();
    let error = prepare_error(run, &recipe(&[]), &from("cut"));
    assert!(matches!(error, RunDirError::Checkpoint(ManifestError::Size { .. })), "{error}");
}

#[test]
fn from_goes_into_a_run_only_by_its_own_checkpoints() {
    let run = &place().run;
    let foreign = run.root().parent().unwrap().join("foreign");
    write_checkpoint(&foreign, 3, &recipe(&[]));
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    fs::write(run.plan(), "{}").unwrap();
    let error = prepare_error(run, &recipe(&[]), &Resume::From(foreign.clone()));
    assert!(matches!(error, RunDirError::CheckpointElsewhere { .. }), "{error}");

    for step in [3, 4] {
        write_checkpoint(&run.checkpoint(step), step, &recipe(&[]));
    }
    let own = Resume::From(run.checkpoint(3));
    assert_eq!(run.prepare(&recipe(&[]), &own).unwrap(), Start::Resume(run.checkpoint(3)));
    assert!(matches!(
        prepare_error(run, &recipe(&[]), &Resume::From(foreign)),
        RunDirError::CheckpointElsewhere { .. }
    ));

    symlink_atomic(Path::new("step-00000004"), &run.latest()).unwrap();
    let real = fs::canonicalize(run.checkpoint(4)).unwrap();
    assert_eq!(run.prepare(&recipe(&[]), &Resume::From(run.latest())).unwrap(), Start::Resume(real));
}

#[test]
fn a_folder_without_a_run_is_an_error_with_from_too() {
    let run = &place().run;
    let old = run.root().parent().unwrap().join("old");
    write_checkpoint(&old, 7, &recipe(&[]));
    fs::create_dir_all(run.root()).unwrap();
    fs::write(run.root().join("x"), "").unwrap();
    assert!(matches!(prepare_error(run, &recipe(&[]), &Resume::From(old)), RunDirError::NotARun { .. }));
}

#[test]
fn a_launch_killed_after_writing_the_recipe_starts_from_the_named_checkpoint_again() {
    let run = &place().run;
    let foreign = run.root().parent().unwrap().join("foreign");
    write_checkpoint(&foreign, 3, &recipe(&[]));
    let from = Resume::From(foreign.clone());
    // recipe.toml exists, but resume.json does not.
    run.prepare(&recipe(&[]), &from).unwrap();
    assert_eq!(run.begin(&recipe(&[]), &from).unwrap().0, Start::Resume(foreign));
}

#[test]
fn latest_resolves_as_after_recovery() {
    let run = &run_of(&[16, 32, 48]).run;
    let latest = || run.prepare(&recipe(&[]), &Resume::From(run.latest())).unwrap();
    // A commit: the checkpoint has its final name, but `latest` does not point to it yet.
    point(&run.next(), 48);
    point(&run.latest(), 32);
    assert_eq!(latest(), Start::Resume(run.checkpoint(48)));
    // A rollback that has moved nothing yet.
    broken_off(run, 1, r#"{"from": 48, "to": 16}"#, &[]);
    assert_eq!(latest(), Start::Resume(run.checkpoint(16)));
}
