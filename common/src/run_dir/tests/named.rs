//! The same command with a named checkpoint goes back once and then resumes.

use super::rollback::{broken_off, commit, run_of};
use super::*;

/// A rollback that brings step 48 back to a run that went back to step 16.
const RESTORES_48: &str = r#"{"from": 24, "to": 16, "restores": "rollback-1/step-00000048"}"#;

fn launch(run: &RunDir, resume: &Resume) -> Start {
    run.begin(&recipe(&[]), resume).unwrap().0
}

/// Makes a run that went back to step 16, which the command names, and has reached step 24.
fn gone_back() -> (Place, Resume) {
    let place = run_of(&[16, 32, 48]);
    let run = &place.run;
    let from = Resume::From(run.checkpoint(16));
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));
    assert!(!run.has_begun_with(&run.checkpoint(16)).unwrap());
    // Until the run has begun with it, the same command begins with it.
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    assert!(run.has_begun_with(&run.checkpoint(16)).unwrap());
    commit(run, 24);
    (place, from)
}

#[test]
fn the_same_command_resumes_with_only_checkpoints_left() {
    let (Place { run, .. }, from) = &gone_back();
    assert!(!run.result().exists());
    for _ in 0..2 {
        assert_eq!(launch(run, from), Start::Resume(run.checkpoint(24)));
    }
    // The checkpoint that it began with may be gone by then.
    fs::remove_dir_all(run.checkpoint(16)).unwrap();
    assert_eq!(launch(run, from), Start::Resume(run.checkpoint(24)));
}

#[test]
fn the_same_command_rolls_back_again_after_a_good_end_or_another_command() {
    let (Place { run, .. }, from) = &gone_back();
    run.record_end().unwrap();
    assert!(run.has_begun_with(&run.checkpoint(16)).unwrap());
    assert_eq!(launch(run, from), Start::Resume(run.checkpoint(16)));

    let (Place { run, .. }, from) = &gone_back();
    launch(run, &Resume::Auto);
    assert_eq!(launch(run, from), Start::Resume(run.checkpoint(16)));

    let (Place { run, .. }, from) = &gone_back();
    let other = Resume::From(run.checkpoint(24));
    assert_eq!(launch(run, &other), Start::Resume(run.checkpoint(24)));
    assert_eq!(launch(run, from), Start::Resume(run.checkpoint(16)));
}

#[test]
fn the_same_command_resumes_after_a_crash_while_restoring() {
    let run = &gone_back().0.run;
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let from = Resume::From(aside.clone());
    assert_eq!(launch(run, &from), Start::Resume(aside.clone()));
    broken_off(run, 2, RESTORES_48, &[]);
    assert!(run.has_begun_with(&aside).unwrap());
    assert_eq!(launch(run, &from), Start::Resume(aside.clone()));
    run.recover().unwrap();
    run.start_from(&run.checkpoint(48), 48, None).unwrap();
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(48)));
}

#[test]
fn a_run_that_died_before_its_first_checkpoint_starts_from_the_named_one_again() {
    let run = &place().run;
    let foreign = run.root().parent().unwrap().join("foreign");
    write_checkpoint(&foreign, 3, &recipe(&[]));
    let from = Resume::From(foreign.clone());
    for _ in 0..2 {
        assert_eq!(launch(run, &from), Start::Resume(foreign.clone()));
        run.start_from(&foreign, 3, None).unwrap();
    }
    // It cannot resume from the newest one: it has written none.
    assert!(!run.resumes_newest(&foreign).unwrap());
    // Never a silent fresh start.
    let error = prepare_error(run, &recipe(&[]), &Resume::Auto);
    let text = error.to_string();
    assert!(matches!(error, RunDirError::BeganElsewhere { .. }), "{text}");
    assert!(text.contains(&format!("--resume {}", foreign.display())), "{text}");
    commit(run, 4);
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(4)));
}

#[test]
fn the_same_command_resumes_in_a_moved_run_directory() {
    let (place, _) = gone_back();
    let moved = RunDir::new(place.run.root().with_file_name("moved"));
    fs::rename(place.run.root(), moved.root()).unwrap();
    let from = Resume::From(moved.checkpoint(16));
    assert_eq!(launch(&moved, &from), Start::Resume(moved.checkpoint(24)));

    // Also by another path to it.
    let link = RunDir::new(moved.root().with_file_name("link"));
    std::os::unix::fs::symlink("moved", link.root()).unwrap();
    let from = Resume::From(link.checkpoint(16));
    assert_eq!(launch(&moved, &from), Start::Resume(moved.checkpoint(24)));
}

#[test]
fn a_copied_run_directory_has_not_started_from_the_original_checkpoint() {
    let (place, from) = gone_back();
    let copy = RunDir::new(place.run.root().with_file_name("copy"));
    fs::create_dir(copy.root()).unwrap();
    for path in [copy.recipe(), copy.resume()] {
        let original = place.run.root().join(path.file_name().unwrap());
        fs::copy(original, path).unwrap();
    }
    write_checkpoint(&copy.checkpoint(24), 24, &recipe(&[]));
    let error = prepare_error(&copy, &recipe(&[]), &from);
    assert!(matches!(error, RunDirError::CheckpointElsewhere { .. }), "{error}");
}

#[test]
fn a_restored_checkpoint_resumes_after_another_early_end() {
    let run = &gone_back().0.run;
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let from = Resume::From(aside.clone());
    launch(run, &from);
    broken_off(run, 2, RESTORES_48, &[]);
    launch(run, &from);
    // The trainer completes it, and ends before its first step.
    run.recover().unwrap();
    assert!(!aside.exists());
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(48)));
    // Also if the rollback's folder is gone.
    fs::remove_dir_all(aside.parent().unwrap()).unwrap();
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(48)));
}
