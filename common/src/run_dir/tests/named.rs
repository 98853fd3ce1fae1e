//! The same command with a named checkpoint goes back once, and then goes on.

use super::rollback::{point, run_of};
use super::*;

fn launch(run: &RunDir, resume: &Resume) -> Start {
    run.begin(&recipe(&[]), resume).unwrap().0
}

/// A run that has gone back to step 16 by a command that names it, and has come to step 24.
fn gone_back() -> (Place, Resume) {
    let place = run_of(&[16, 32, 48]);
    let run = &place.run;
    let from = Resume::From(run.checkpoint(16));
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));
    assert!(!run.has_begun_with(&run.checkpoint(16)).unwrap());
    // Before it has begun with it, the same command begins with it.
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));
    run.begin_after(&run.checkpoint(16), 16, None).unwrap();
    assert!(run.has_begun_with(&run.checkpoint(16)).unwrap());
    write_checkpoint(&run.checkpoint(24), 24, &recipe(&[]));
    point(&run.latest(), 24);
    (place, from)
}

#[test]
fn the_same_command_goes_on_after_a_launch_of_which_nothing_is_left_but_checkpoints() {
    let (place, from) = gone_back();
    let run = &place.run;
    assert!(!run.result().exists());
    for _ in 0..2 {
        assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(24)));
    }
    // The checkpoint that it began with may be gone by then.
    fs::remove_dir_all(run.checkpoint(16)).unwrap();
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(24)));
}

#[test]
fn the_same_command_goes_back_once_more_after_a_good_end_or_another_command() {
    let (place, from) = gone_back();
    let run = &place.run;
    run.note_ended().unwrap();
    assert!(run.has_begun_with(&run.checkpoint(16)).unwrap());
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));

    let (place, from) = gone_back();
    let run = &place.run;
    launch(run, &Resume::Auto);
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));

    let (place, from) = gone_back();
    let run = &place.run;
    let other = Resume::From(run.checkpoint(24));
    assert_eq!(launch(run, &other), Start::Resume(run.checkpoint(24)));
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(16)));
}

#[test]
fn a_checkpoint_that_a_crash_left_on_its_way_back_is_gone_on_from_by_the_same_command() {
    let (place, _) = gone_back();
    let run = &place.run;
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let from = Resume::From(aside.clone());
    assert_eq!(launch(run, &from), Start::Resume(aside.clone()));
    let folder = run.checkpoints().join(".rollback-2");
    fs::create_dir(&folder).unwrap();
    let written = r#"{"from": 24, "to": 16, "restores": "rollback-1/step-00000048"}"#;
    fs::write(folder.join("rollback.json"), written).unwrap();
    assert!(run.has_begun_with(&aside).unwrap());
    assert_eq!(launch(run, &from), Start::Resume(aside.clone()));
    run.recover().unwrap();
    run.begin_after(&run.checkpoint(48), 48, None).unwrap();
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(48)));
}

#[test]
fn a_run_that_died_before_its_first_checkpoint_begins_elsewhere_again() {
    let place = place();
    let run = &place.run;
    let foreign = run.root().parent().unwrap().join("foreign");
    write_checkpoint(&foreign, 3, &recipe(&[]));
    let from = Resume::From(foreign.clone());
    for _ in 0..2 {
        assert_eq!(launch(run, &from), Start::Resume(foreign.clone()));
        run.begin_after(&foreign, 3, None).unwrap();
    }
    write_checkpoint(&run.checkpoint(4), 4, &recipe(&[]));
    point(&run.latest(), 4);
    assert_eq!(launch(run, &from), Start::Resume(run.checkpoint(4)));
}
