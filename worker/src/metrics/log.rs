//! metrics.jsonl: one JSON object per line, appended during the run.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dtrain_common::files::remedy;
use dtrain_common::metrics::drop_later;
use dtrain_recipe::OnFailure;
use serde::Serialize;

/// Time between attempts to write lines that the disk refused.
const RETRY: Duration = Duration::from_secs(1);
/// The most bytes of lines that wait for the disk: those of some 20,000 steps.
const MOST_HELD: usize = 16 << 20;

/// The open file. Only rank 0 has one.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: File,
    /// The length of the file's whole lines.
    length: u64,
    /// Whether the file may have a part of a line behind that.
    is_torn: bool,
    on_failure: OnFailure,
    held: Held,
}

/// Lines that the disk refused.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    tried: Option<Instant>,
    /// Lines for which there was no room.
    lost: u64,
}

impl MetricsLog {
    /// Opens the file for a run that continues after `done` steps. Drops what a resumed run writes again: lines of later
    /// steps, and the last evaluation if it `is_repeated`. Also drops an incomplete last line.
    pub(crate) fn open(path: &Path, done: u64, is_repeated: bool) -> io::Result<Self> {
        drop_later(path, done, is_repeated)?;
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            path: path.to_owned(),
            length: file.metadata()?.len(),
            file,
            is_torn: false,
            on_failure: OnFailure::Stop,
            held: Held::default(),
        })
    }

    /// Sets what follows an error of the disk. To continue, lines wait in memory until the disk takes them.
    pub(crate) fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Appends a line ([`super::Line`]) in one write, so that a reader never sees a part of it.
    pub(crate) fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        if self.held.bytes.is_empty() {
            let Err(error) = self.write(&bytes) else { return Ok(()) };
            if self.on_failure == OnFailure::Stop {
                return Err(error);
            }
            tracing::warn!(
                "cannot write {}: {error}{}; on_failure = \"continue\": training continues, and its lines are written later",
                self.path.display(),
                remedy(&error)
            );
            self.held.tried = Some(Instant::now());
        }
        match self.held.bytes.len() + bytes.len() <= MOST_HELD {
            true => self.held.bytes.extend(bytes),
            false => self.held.lost += 1,
        }
        if self.held.tried.is_none_or(|tried| tried.elapsed() >= RETRY) {
            let _ = self.write_held();
        }
        Ok(())
    }

    /// Writes the lines that the disk has refused. The file is opened again: its server may have lost it.
    fn write_held(&mut self) -> io::Result<()> {
        if self.held.bytes.is_empty() {
            return Ok(());
        }
        self.held.tried = Some(Instant::now());
        self.file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let length = self.file.metadata()?.len();
        self.is_torn = length > self.length;
        self.length = length.min(self.length);
        let bytes = std::mem::take(&mut self.held.bytes);
        if let Err(error) = self.write(&bytes) {
            self.held.bytes = bytes;
            return Err(error);
        }
        let lost = std::mem::take(&mut self.held).lost;
        let without = if lost > 0 {
            format!(", without {lost} later ones, which did not fit in memory")
        } else {
            String::new()
        };
        tracing::warn!("{} has the lines that the disk refused{without}", self.path.display());
        Ok(())
    }

    /// Appends whole lines, or leaves the file as it was.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.length)?;
            self.is_torn = false;
        }
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.is_torn = self.file.set_len(self.length).is_err();
                Err(error)
            }
        }
    }
}

impl Drop for MetricsLog {
    /// Tries for the last time to write the lines that the disk refused.
    fn drop(&mut self) {
        if let Err(error) = self.write_held() {
            let lines = self.held.bytes.iter().filter(|byte| **byte == b'\n').count() as u64 + self.held.lost;
            tracing::warn!("{lines} lines of {} are lost: {error}{}", self.path.display(), remedy(&error));
        }
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
            intervals: Vec::new(),
            by_class: Vec::new(),
            shown: Vec::new(),
            set: None,
            step,
            epoch: 1,
            loss: 1.0,
            metrics: Figures(vec![("accuracy".to_owned(), 0.5)]),
            samples: 10,
            unreadable: 0,
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

    /// A log after two lines, whose disk has taken a part of the second and then refuses.
    fn refused(path: &Path, on_failure: OnFailure) -> (MetricsLog, io::Result<()>) {
        let mut log = MetricsLog::open(path, 0, false).unwrap().on_failure(on_failure);
        log.append(&serde_json::json!({"step": 1})).unwrap();
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"{\"st").unwrap();
        // Neither writes nor cuts.
        log.file = File::open(path).unwrap();
        let outcome = log.append(&serde_json::json!({"step": 2}));
        (log, outcome)
    }

    #[test]
    fn refused_lines_wait_for_the_disk_or_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let (log, outcome) = refused(&path, OnFailure::Stop);
        outcome.unwrap_err();
        drop(log);
        std::fs::remove_file(&path).unwrap();

        let (mut log, outcome) = refused(&path, OnFailure::Continue);
        outcome.unwrap();
        assert!(log.is_torn);
        log.append(&serde_json::json!({"step": 3})).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"st", "not tried again at once");
        log.held.tried = None;
        log.append(&serde_json::json!({"step": 4})).unwrap();
        let lines = |last| (1..=last).map(|step| format!("{{\"step\":{step}}}\n")).collect::<String>();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(4));
        // The end of the run is the last attempt.
        log.file = File::open(&path).unwrap();
        log.append(&serde_json::json!({"step": 5})).unwrap();
        drop(log);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(5));
    }

    #[test]
    fn lines_beyond_the_memory_for_them_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let (mut log, outcome) = refused(&path, OnFailure::Continue);
        outcome.unwrap();
        log.held.bytes.resize(MOST_HELD, b'\n');
        log.append(&serde_json::json!({"step": 3})).unwrap();
        assert_eq!((log.held.lost, log.held.bytes.len()), (1, MOST_HELD));
    }
}
