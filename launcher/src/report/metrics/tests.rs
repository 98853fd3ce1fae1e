//! Reading of whole, growing, rewritten and damaged files.

#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write;

use super::*;

fn step(step: u64, loss: &str, elapsed_s: f64) -> String {
    format!(
        "{{\"step\":{step},\"epoch\":1,\"loss\":{loss},\"lr\":0.1,\"elapsed_s\":{elapsed_s},\"wait_ms\":{{\"data\":1,\"comm\":2}},\
         \"memory\":{{\"peak\":{},\"owners\":{{\"gradients\":{step}}}}}}}\n",
        100 - step
    )
}

struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> (Self, Reader) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, text).unwrap();
        let mut reader = Reader::new(path);
        assert!(reader.read().unwrap());
        (Self(folder), reader)
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(self.0.path().join("metrics.jsonl")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn replace(&self, text: &str) {
        fs::write(self.0.path().join("metrics.jsonl"), text).unwrap();
    }
}

#[test]
fn every_kind_of_line_is_read_and_a_loss_that_is_null_stays_a_gap() {
    let text = [
        "{\"stage\":{\"step\":1,\"name\":\"head\",\"phase\":1,\"trained\":1200}}\n".to_owned(),
        step(1, "2.5", 1.0),
        step(2, "null", 2.0),
        "{\"oom\":{\"step\":3,\"ranks\":[1],\"phase\":\"backward\",\"micro_batch\":{\"from\":8,\"to\":4}}}\n".to_owned(),
        step(3, "1.5", 0.5),
        "{\"checkpoint\":{\"step\":3,\"bytes\":10,\"blocked_ms\":4.0}}\n".to_owned(),
        "{\"eval\":{\"step\":3,\"set\":\"val\",\"epoch\":1,\"loss\":null,\"accuracy\":0.5,\"samples\":7,\"eval_ms\":3.0,\"best\":true}}\n"
            .to_owned(),
        "{\"test\":{\"checkpoint\":\"best\",\"weights\":\"raw\",\"batch\":4,\"step\":3,\"loss\":1.0,\"auc\":0.75}}\n".to_owned(),
        "{\"rollback\":{\"from\":9,\"to\":3}}\n".to_owned(),
        "{\"thought of later\":{}}\n\n".to_owned(),
    ];
    let metrics = File::new(&text.concat()).1.metrics;
    assert_eq!(metrics.steps, [1, 2, 3]);
    let loss = metrics.column(Column::Loss);
    assert!(loss[0] == 2.5 && loss[1].is_nan() && loss[2] == 1.5);
    assert_eq!((metrics.column(Column::DataMs)[0], metrics.column(Column::CommMs)[2]), (1.0, 2.0));
    assert_eq!(metrics.starts, [3]);
    let texts: Vec<_> = metrics.marks.iter().map(|mark| (mark.step, mark.text.as_str())).collect();
    let expected = [
        (1, "stage head: trains 1,200 parameters"),
        (3, "out of memory in backward on rank 1; retried with micro-batch 4 in place of 8"),
        (3, "went back from step 9 to step 3"),
    ];
    assert_eq!(texts, expected);
    let evaluation = &metrics.evaluations[0];
    assert_eq!(
        (evaluation.set.as_str(), evaluation.is_best, evaluation.figures["accuracy"]),
        ("val", true, 0.5)
    );
    assert!(evaluation.figures["loss"].is_nan());
    let names: Vec<_> = metrics.tests[0].figures.keys().map(String::as_str).collect();
    assert_eq!((names, metrics.tests[0].set.as_str()), (vec!["auc", "loss"], "test"));
    assert_eq!((metrics.checkpoints.count, metrics.unreadable, metrics.is_cut), (1, 1, false));
    assert_eq!((metrics.peaks.len(), metrics.peaks[0].step), (1, 1));
    assert_eq!(metrics.peaks[0].owners["gradients"], 1.0);
}

#[test]
fn a_growing_file_is_read_on_and_a_cut_line_when_it_is_whole() {
    let half = step(2, "1.0", 2.0);
    let (start, end) = half.split_at(20);
    let (file, mut reader) = File::new(&(step(1, "2.0", 1.0) + start));
    assert_eq!((reader.metrics.steps.as_slice(), reader.metrics.is_cut), (&[1][..], true));
    file.append(&(end.to_owned() + &step(3, "0.5", 3.0)));
    reader.read().unwrap();
    assert_eq!((reader.metrics.steps.as_slice(), reader.metrics.is_cut), (&[1, 2, 3][..], false));
    assert!(reader.metrics.starts.is_empty());
}

#[test]
fn a_rewritten_file_is_read_anew() {
    let (file, mut reader) = File::new(&(step(1, "2.0", 1.0) + &step(2, "1.0", 2.0) + &step(3, "0.5", 3.0)));
    // A resumed run has removed two lines and written more than it removed.
    file.replace(&(step(1, "2.0", 1.0) + &step(2, "1.5", 0.5) + &step(3, "1.2", 1.0) + &step(4, "1.1", 1.5)));
    reader.read().unwrap();
    assert_eq!(reader.metrics.column(Column::Loss), [2.0, 1.5, 1.2, 1.1]);
    assert_eq!(reader.metrics.starts, [2]);
    file.replace("");
    reader.read().unwrap();
    assert!(reader.metrics.is_empty());
}

#[test]
fn steps_that_are_there_twice_count_once() {
    let twice = step(1, "2.0", 1.0) + &step(2, "1.0", 2.0) + &step(2, "1.5", 2.0) + &step(3, "0.5", 3.0);
    let metrics = File::new(&twice).1.metrics;
    assert_eq!(metrics.steps, [1, 2, 3]);
    assert_eq!(metrics.column(Column::Loss), [2.0, 1.5, 0.5]);
}

#[test]
fn a_folder_in_place_of_the_file_is_a_problem_and_no_file_is_none() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!Reader::new(folder.path().join("metrics.jsonl")).read().unwrap());
    assert!(Reader::new(folder.path().to_owned()).read().is_err());
}

#[test]
fn a_process_whose_first_step_is_longer_than_the_one_before_it_ran_is_a_start() {
    let line = |step: u64, elapsed_s: f64, step_ms: f64| {
        format!("{{\"step\":{step},\"loss\":1.0,\"elapsed_s\":{elapsed_s},\"step_ms\":{step_ms}}}\n")
    };
    let text = line(1, 1.0, 900.0) + &line(2, 1.1, 99.0) + &line(3, 3.0, 2990.0) + &line(4, 3.1, 120.0);
    assert_eq!(File::new(&text).1.metrics.starts, [3]);
}
