//! Rollback to an earlier checkpoint of the same run, and a crash at any moment of it.

use super::*;
use crate::manifest::BestSoFar;

const METRICS: &str =
    "{\"step\": 16}\n{\"eval\": {\"step\": 32}}\n{\"step\": 48}\n{\"checkpoint\": {\"step\": 64}}\n";

/// Makes a run with checkpoints after these steps; the last is the latest.
pub(super) fn run_of(steps: &[u64]) -> Place {
    let place = place();
    let run = &place.run;
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    steps.iter().for_each(|step| commit(run, *step));
    fs::write(run.metrics(), METRICS).unwrap();
    place
}

/// Writes a checkpoint, which is then the latest.
pub(super) fn commit(run: &RunDir, step: u64) {
    write_checkpoint(&run.checkpoint(step), step, &recipe(&[]));
    point(&run.latest(), step);
}

pub(super) fn point(link: &Path, step: u64) {
    symlink_atomic(Path::new(&format!("step-{step:08}")), link).unwrap();
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Makes the state after a crash: the plan is written and the checkpoints `moved` have moved.
pub(super) fn broken_off(run: &RunDir, number: u64, rollback: &str, moved: &[u64]) -> PathBuf {
    let folder = run.checkpoints().join(format!(".rollback-{number}"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("rollback.json"), rollback).unwrap();
    for step in moved {
        let own = run.checkpoint(*step);
        fs::rename(&own, folder.join(file_name(&own))).unwrap();
    }
    folder
}

/// Returns the steps of the lines of metrics.jsonl in a folder.
fn lines(folder: &Path) -> Vec<u64> {
    let text = fs::read(folder.join("metrics.jsonl")).unwrap();
    text.split(|byte| *byte == b'\n').filter_map(crate::metrics::step_of).collect()
}

fn set_aside(run: &RunDir) -> Vec<(String, Vec<u64>)> {
    let told = |one: SetAside| (file_name(&one.folder), one.steps);
    run.set_aside().unwrap().into_iter().map(told).collect()
}

pub(super) fn newest(run: &RunDir) -> Option<PathBuf> {
    run.newest_checkpoint().unwrap().map(|(folder, _)| folder)
}

#[test]
fn a_rollback_sets_later_checkpoints_aside() {
    let run = &run_of(&[16, 32, 48, 64]).run;
    point(&run.best(), 48);
    let (own, told) = run.start_from(&run.checkpoint(32), 32, Some(16)).unwrap();
    assert_eq!(own, run.checkpoint(32));
    let told = told.unwrap();
    let rollback = Rollback { from: 64, to: 32, restores: None };
    assert_eq!((told.steps, told.rollback), (vec![48, 64], Some(rollback)));
    assert_eq!(run.steps().unwrap(), [16, 32]);
    assert_eq!(run.linked(&run.latest()), Some(32));
    assert_eq!(run.linked(&run.best()), Some(16));
    assert_eq!(set_aside(run), [("rollback-1".to_owned(), vec![48, 64])]);
    assert_eq!(newest(run), Some(run.checkpoint(32)));
    let text = fs::read_to_string(run.metrics()).unwrap();
    let told = r#"{"rollback":{"folder":"rollback-1","from":64,"to":32}}"#;
    assert_eq!(text, format!("{{\"step\": 16}}\n{{\"eval\": {{\"step\": 32}}}}\n{told}\n"));
    let left = fs::read_to_string(run.checkpoints().join("rollback-1/metrics.jsonl")).unwrap();
    assert_eq!(left, "{\"step\": 48}\n{\"checkpoint\": {\"step\": 64}}\n");

    // No checkpoint is later than the newest one, so nothing is done.
    let before = snapshot(run.root());
    let (_, told) = run.start_from(&run.checkpoint(32), 32, None).unwrap();
    assert!(told.is_none());
    assert_eq!(snapshot(run.root()), before);
}

#[test]
fn resuming_from_a_set_aside_checkpoint_restores_it() {
    let run = &run_of(&[16, 32, 48, 64]).run;
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    commit(run, 24);
    commit(run, 40);
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let start = run.prepare(&recipe(&[]), &Resume::From(aside.clone())).unwrap();
    assert_eq!(start, Start::Resume(aside.clone()));
    let (own, told) = run.start_from(&aside, 48, None).unwrap();
    assert_eq!((own, told.unwrap().steps), (run.checkpoint(48), vec![24, 40]));
    assert_eq!(run.steps().unwrap(), [16, 48]);
    assert_eq!(run.linked(&run.latest()), Some(48));
    let expected = [("rollback-1".to_owned(), vec![32, 64]), ("rollback-2".to_owned(), vec![24, 40])];
    assert_eq!(set_aside(run), expected);
    // The lines of the restored line are back, and the last line reports the rollback.
    assert_eq!(lines(run.root()), [16, 16, 32, 48, 16]);
}

/// Interrupts at every point by removing the next thing to move, then begins again.
#[test]
fn an_interrupted_rollback_is_completed_by_the_next_start() {
    for moved in 0..=2 {
        let run = &run_of(&[16, 32, 48, 64]).run;
        let folder = run.checkpoints().join(".rollback-1");
        fs::create_dir(&folder).unwrap();
        // Before the plan is written, nothing is to be done.
        assert_eq!(newest(run), Some(run.checkpoint(64)));
        fs::write(folder.join(".dtrain-abc.tmp"), "{").unwrap();
        run.recover().unwrap();
        assert!(!folder.exists());
        broken_off(run, 1, r#"{"from": 64, "to": 32}"#, &[48, 64][..moved]);
        // The resume point is visible without completing the rollback, even before `latest` is switched.
        assert_eq!(newest(run), Some(run.checkpoint(32)));
        assert_eq!(run.recover().unwrap().unwrap().steps, [48, 64]);
        let (_, told) = run.start_from(&run.checkpoint(32), 32, None).unwrap();
        assert!(told.is_none());
        assert_eq!(set_aside(run), [("rollback-1".to_owned(), vec![48, 64])]);
        assert!(!folder.exists());
        assert_eq!(run.linked(&run.latest()), Some(32));
        let text = fs::read_to_string(run.metrics()).unwrap();
        assert_eq!(text.matches("rollback").count(), 2, "{text}");
    }
}

#[test]
fn an_interrupted_restore_is_completed_by_the_next_start() {
    let run = &run_of(&[16, 32, 48]).run;
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    commit(run, 24);
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let written = r#"{"from": 24, "to": 16, "restores": "rollback-1/step-00000048"}"#;
    broken_off(run, 2, written, &[24]);
    assert_eq!(newest(run), Some(aside.clone()));
    // The checkpoint has come back; the rest has not been done.
    fs::rename(&aside, run.checkpoint(48)).unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    run.recover().unwrap();
    run.start_from(&run.checkpoint(48), 48, None).unwrap();
    assert_eq!(run.steps().unwrap(), [16, 48]);
    assert_eq!(run.linked(&run.latest()), Some(48));
    let expected = [("rollback-1".to_owned(), vec![32]), ("rollback-2".to_owned(), vec![24])];
    assert_eq!(set_aside(run), expected);
    // The plan stays: the line set aside branches from the present one at step 16.
    let rollback = run.set_aside().unwrap().remove(1).rollback.unwrap();
    assert_eq!((rollback.from, rollback.to), (24, 16));
    let aside = run.checkpoints().join("rollback-2/step-00000024");
    run.start_from(&aside, 24, None).unwrap();
    assert_eq!(run.steps().unwrap(), [16, 24]);
}

#[test]
fn a_restored_checkpoint_follows_the_line_of_all_later_rollbacks() {
    let run = &run_of(&[8, 16, 32, 48]).run;
    fs::write(run.metrics(), "{\"step\": 8}\n{\"step\": 16}\n{\"step\": 48}\n").unwrap();
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    run.start_from(&run.checkpoint(8), 8, None).unwrap();
    // After the branch from the line of step 48, and before the step at which the earlier rollback left it.
    commit(run, 12);
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    run.start_from(&aside, 48, None).unwrap();
    assert_eq!(run.steps().unwrap(), [8, 48]);
    let told: Vec<_> = run.set_aside().unwrap().into_iter().map(|one| one.steps).collect();
    assert_eq!(told, [vec![32], vec![16], vec![12]]);
    // metrics.jsonl has a line for each rollback; the second one's comes back too.
    assert_eq!(lines(run.root()), [8, 8, 16, 16, 48, 8]);
}

#[test]
fn an_interrupted_rollback_is_completed_before_the_next() {
    let run = &run_of(&[16, 32, 48, 64]).run;
    let folder = broken_off(run, 1, r#"{"from": 64, "to": 32}"#, &[48]);
    fs::write(folder.join("metrics.jsonl"), "{\"step\": 48}\n{\"step\": 64}\n").unwrap();
    let told = "{\"rollback\":{\"folder\":\"rollback-1\",\"from\":64,\"to\":32}}\n";
    fs::write(run.metrics(), format!("{{\"step\": 16}}\n{{\"step\": 32}}\n{told}")).unwrap();
    run.recover().unwrap();
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    let expected = [("rollback-1".to_owned(), vec![48, 64]), ("rollback-2".to_owned(), vec![32])];
    assert_eq!(set_aside(run), expected);
    assert_eq!(lines(&run.checkpoints().join("rollback-1")), [48, 64]);
    assert_eq!(lines(&run.checkpoints().join("rollback-2")), [32, 32]);
}

#[test]
fn best_is_updated_after_a_restore() {
    let run = &run_of(&[16, 32, 48]).run;
    point(&run.best(), 48);
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    assert_eq!(run.linked(&run.best()), None);
    // The best step of the given-up line equals the best step of the restored one.
    commit(run, 24);
    point(&run.best(), 24);
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    run.start_from(&aside, 48, Some(48)).unwrap();
    assert_eq!(run.linked(&run.best()), Some(48));
}

#[test]
fn an_interrupted_commit_is_completed() {
    let run = &run_of(&[16, 32]).run;
    // The link was announced, but the checkpoint was not written.
    point(&run.next(), 48);
    assert_eq!(newest(run), Some(run.checkpoint(32)));
    run.recover().unwrap();
    assert!(!run.next().is_symlink());
    // The checkpoint was written, but `latest` was not switched.
    point(&run.next(), 48);
    write_checkpoint(&run.checkpoint(48), 48, &recipe(&[]));
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    run.recover().unwrap();
    assert_eq!(run.linked(&run.latest()), Some(48));
    assert!(!run.next().is_symlink());
    // The old checkpoint of this step was moved for a new one, which was not written.
    fs::rename(run.checkpoint(48), run.replaced_by(48)).unwrap();
    assert_eq!(newest(run), Some(run.replaced_by(48)));
    run.recover().unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    // The new one was written: the old one does not return, even if the new one is removed later.
    write_checkpoint(&run.replaced_by(48), 48, &recipe(&["train.epochs=50"]));
    run.recover().unwrap();
    let manifest = Manifest::read(&run.checkpoint(48)).unwrap();
    assert_eq!(manifest.recipe, recipe(&[]).recipe);
    fs::remove_dir_all(run.checkpoint(48)).unwrap();
    point(&run.latest(), 32);
    run.recover().unwrap();
    assert_eq!(run.steps().unwrap(), [16, 32]);
}

#[test]
fn restoring_a_missing_checkpoint_is_an_error() {
    let run = &run_of(&[16, 32, 48]).run;
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    let written = r#"{"from": 16, "to": 15, "restores": "rollback-1/step-00000048"}"#;
    broken_off(run, 2, written, &[]);
    fs::remove_dir_all(run.checkpoints().join("rollback-1")).unwrap();
    let before = snapshot(&run.checkpoints());
    let error = run.recover().unwrap_err();
    assert!(matches!(error, RunDirError::RestoredIsGone { .. }), "{error}");
    assert!(error.to_string().contains("rename the folder to rollback-2"), "{error}");
    assert_eq!(snapshot(&run.checkpoints()), before);
    // The remedy of the message works.
    let folder = run.checkpoints();
    fs::rename(folder.join(".rollback-2"), folder.join("rollback-2")).unwrap();
    run.recover().unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(16)));
}

#[test]
fn a_run_with_only_set_aside_checkpoints_does_not_start_fresh() {
    let run = &run_of(&[16, 32]).run;
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    fs::remove_dir_all(run.checkpoint(16)).unwrap();
    let error = prepare_error(run, &recipe(&[]), &Resume::Auto);
    assert!(matches!(error, RunDirError::OnlySetAside { .. }), "{error}");
    assert!(error.to_string().contains("rollback-1"), "{error}");
}

#[test]
fn a_checkpoint_moved_by_an_interrupted_rollback_is_found() {
    let run = &run_of(&[16, 32, 48, 64]).run;
    broken_off(run, 1, r#"{"from": 64, "to": 32}"#, &[]);
    let named = run.checkpoint(64);
    let start = run.prepare(&recipe(&[]), &Resume::From(named.clone())).unwrap();
    assert_eq!(start, Start::Resume(named.clone()));
    let completed = run.recover().unwrap().unwrap();
    let moved = completed.moved(&named).unwrap();
    assert_eq!(moved, completed.folder.join("step-00000064"));
    // Existing checkpoints, and those in other folders, have not been moved by it.
    assert_eq!(completed.moved(&run.checkpoint(32)), None);
    let elsewhere = run.root().join("step-00000064");
    assert_eq!(completed.moved(&elsewhere), None);
    let (own, _) = run.start_from(&moved, 64, None).unwrap();
    assert_eq!(own, named);
    assert_eq!(run.steps().unwrap(), [16, 32, 64]);
}

#[test]
fn the_linked_best_is_read_from_its_manifest() {
    let run = &run_of(&[16, 32, 48]).run;
    assert_eq!(run.linked_best(48), None);
    point(&run.best(), 32);
    assert_eq!(run.linked_best(48), None, "it says nothing of a best one");
    let mut manifest = Manifest::read(&run.checkpoint(32)).unwrap();
    let best = BestSoFar { by: "min loss".parse().unwrap(), value: 1.5, step: 32 };
    manifest.best = Some(best.clone());
    manifest.write(&run.checkpoint(32)).unwrap();
    assert_eq!(run.linked_best(48), Some(best));
    assert_eq!(run.linked_best(31), None);
}
