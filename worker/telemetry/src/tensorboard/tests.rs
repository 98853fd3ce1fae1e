#![allow(clippy::unwrap_used)]

use std::io::Write;

use proptest::prelude::*;

use super::message::Content;
use super::*;
use crate::Telemetry;

/// Returns all values of the event files: tag, step and number; None for other values.
fn values(folder: &Path) -> Vec<(String, i64, Option<f32>)> {
    let mut found = Vec::new();
    for path in file::files(folder).unwrap() {
        file::read(&path, |event| {
            let Some(What::Summary(summary)) = event.what else { return };
            found.extend(summary.values.into_iter().map(|value| match value.content {
                Some(Content::Scalar(number)) => (value.tag, event.step, Some(number)),
                _ => (value.tag, event.step, None),
            }));
        })
        .unwrap();
    }
    found
}

fn losses(folder: &Path) -> Vec<(i64, f32)> {
    let of_steps = values(folder).into_iter().filter(|(tag, ..)| tag == OF_STEPS);
    of_steps.map(|(_, step, loss)| (step, loss.unwrap())).collect()
}

/// Takes the steps after `from` up to `to`, as an attempt that resumes there. Its losses are those of `attempt`.
fn attempt(run_dir: &RunDir, from: u64, to: u64, attempt: u64, outcome: Option<Outcome>) {
    dtrain_common::metrics::drop_later(&run_dir.metrics(), from, false).unwrap();
    let mut metrics = File::options().create(true).append(true).open(run_dir.metrics()).unwrap();
    let length = metrics.metadata().unwrap().len();
    let mut telemetry = Telemetry::default().with_tensorboard(run_dir, length, Experiment::default());
    for step in from + 1..=to {
        let line = serde_json::json!({"step": step, "loss": attempt as f64, "step_ms": 1.0});
        writeln!(metrics, "{line}").unwrap();
        telemetry.record(&line);
    }
    match outcome {
        Some(outcome) => telemetry.finish(outcome),
        None => drop(telemetry),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_step_is_there_once_and_of_the_latest_attempt(
        attempts in prop::collection::vec((0u64..12, 0u64..12), 1..5), cut in 0u64..200,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let mut expected: Vec<(i64, f32)> = Vec::new();
        for (number, (from, steps)) in (0..).zip(attempts) {
            let from = from.min(expected.len() as u64);
            expected.truncate(from as usize);
            expected.extend((from + 1..=from + steps).map(|step| (step as i64, number as f32)));
            attempt(&run_dir, from, from + steps, number, None);
            prop_assert_eq!(&losses(folder.path()), &expected);
            // A kill leaves a part of a record.
            let path = file::files(folder.path()).unwrap().pop().unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len().saturating_sub(cut)).unwrap();
        }
    }
}

#[test]
fn times_of_earlier_attempts_stay() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    attempt(&run_dir, 0, 3, 0, Some(Outcome::Stopped));
    let before = times(folder.path()).unwrap();
    attempt(&run_dir, 2, 4, 1, Some(Outcome::Complete));
    let after = times(folder.path()).unwrap();
    assert_eq!((after[&1], after[&2]), (before[&1], before[&2]));
    assert!(after[&3] > before[&3], "taken again");
    assert_eq!(after.len(), 4);
    assert_eq!(file::files(folder.path()).unwrap().len(), 1);
    let end = values(folder.path()).into_iter().filter(|(tag, ..)| tag == "_hparams_/session_end_info");
    assert_eq!(end.count(), 1);
}

#[test]
fn samples_of_an_evaluation_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    let samples = run_dir.samples(7, "val");
    fs::create_dir_all(&samples).unwrap();
    let picture = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &[0, 0, 0, 6], &[0, 0, 0, 4]].concat();
    fs::write(samples.join("0.png"), &picture).unwrap();
    let list = [
        Sample { picture: Some("0.png".into()), caption: "label cat".into(), ..Sample::default() },
        Sample { text: Some("once".into()), caption: "target".into(), ..Sample::default() },
    ];
    fs::write(samples.join(SAMPLES), serde_json::to_vec(&list).unwrap()).unwrap();
    let mut telemetry = Telemetry::default().with_tensorboard(&run_dir, 0, Experiment::default());
    telemetry.record(&serde_json::json!({"eval": {"step": 7, "set": "val", "loss": 1.0}}));
    telemetry.finish(Outcome::Stopped);
    let found: Vec<_> =
        values(folder.path()).into_iter().filter(|(_, step, _)| *step == 7).map(|(tag, ..)| tag).collect();
    assert_eq!(found, ["val/loss", "val_pictures/0", "val_texts/1", "val_pictures/captions"]);
    remove_files(folder.path()).unwrap();
    assert!(file::files(folder.path()).unwrap().is_empty());
}
