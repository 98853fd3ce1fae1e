//! metrics.jsonl: one JSON object per line, appended during the run.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use dtrain_common::metrics::drop_later;
use serde::Serialize;

/// The open file. Only rank 0 has one.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    file: File,
}

impl MetricsLog {
    /// Opens the file for a run that continues after `done` steps. Drops what a resumed run writes again: lines of later
    /// steps, and the last evaluation if it `is_repeated`. Also drops an incomplete last line.
    pub(crate) fn open(path: &Path, done: u64, is_repeated: bool) -> io::Result<Self> {
        drop_later(path, done, is_repeated)?;
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends a line ([`super::Line`]) in one write, so that a reader never sees a part of it.
    pub(crate) fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_common::metrics::step_of;

    use super::super::{EvalRecord, Figures, Line, MicroBatches, OomRecord};
    use super::*;

    #[test]
    fn a_resumed_run_drops_lines_of_later_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let eval = |step| EvalRecord {
            step,
            epoch: 1,
            loss: 1.0,
            metrics: Figures(vec![("accuracy".to_owned(), 0.5)]),
            samples: 10,
            eval_ms: 1.0,
            best: None,
        };
        let oom = |step| OomRecord {
            step,
            ranks: vec![1],
            phase: "backward",
            micro_batch: MicroBatches { from: 8, to: 4 },
            grad_accum_steps: 2,
            recompute: false,
            agree_ms: 1.5,
        };
        {
            let mut log = MetricsLog::open(&path, 0, false).unwrap();
            for step in 1..=4 {
                log.append(&Line::Oom(&oom(step))).unwrap();
                log.append(&Line::Eval(&eval(step))).unwrap();
                log.append(&serde_json::json!({"step": step, "stage": "full"})).unwrap();
                log.append(&serde_json::json!({"stage": {"step": step + 1}})).unwrap();
            }
            log.file.write_all(b"{\"step\": 2, \"lo").unwrap();
        }
        let reopen = |is_repeated| {
            drop(MetricsLog::open(&path, 2, is_repeated).unwrap());
            let text = std::fs::read_to_string(&path).unwrap();
            let steps: Vec<_> = text.lines().map(|line| step_of(line.as_bytes()).unwrap()).collect();
            (steps, text.matches("{\"eval\":").count())
        };
        let steps = vec![1, 1, 1, 2, 2, 2, 2];
        assert_eq!(reopen(false), (steps, 2), "the stage that begins with step 3 begins again");
        assert_eq!(reopen(true), (vec![1, 1, 1, 2, 2, 2], 1), "the evaluation after step 2 is repeated");
    }
}
