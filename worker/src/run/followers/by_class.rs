//! A file for each evaluation with figures by class.

use std::fs;
use std::io;
use std::path::PathBuf;

use dtrain_common::files::{remedy, write_atomic};
use dtrain_common::run_dir::RunDir;
use dtrain_parts::figures::OfClasses;
use dtrain_recipe::OnFailure;
use serde::Serialize;

use crate::metrics::{EvalRecord, Line};
use crate::run::error::{Result, TrainError};
use crate::run::follower::Follower;
use crate::tasks::TEST;

/// Writes the files. Only rank 0 has one.
pub(crate) struct ByClass<'a> {
    run_dir: &'a RunDir,
    on_failure: OnFailure,
}

/// The content of a file, see docs/run-directory.md.
#[derive(Serialize)]
struct Content<'a> {
    step: u64,
    epoch: u64,
    set: &'a str,
    figures: &'a [OfClasses],
}

impl<'a> ByClass<'a> {
    /// Begins for a run that continues after `done` steps: files of later steps are removed.
    pub(crate) fn new(run_dir: &'a RunDir, done: u64, on_failure: OnFailure) -> io::Result<Self> {
        run_dir.drop_later_evaluations(done)?;
        Ok(Self::of(run_dir, on_failure))
    }

    /// Returns one for the tests at the end of a run.
    pub(crate) fn of(run_dir: &'a RunDir, on_failure: OnFailure) -> Self {
        Self { run_dir, on_failure }
    }

    /// Writes the file of an evaluation, if it has figures by class.
    pub(crate) fn write(&self, record: &EvalRecord) -> Result<(), (PathBuf, io::Error)> {
        if record.by_class.is_empty() {
            return Ok(());
        }
        let set = record.set.as_deref().unwrap_or(TEST);
        let path = self.run_dir.evaluation(record.step, set);
        let content = Content { step: record.step, epoch: record.epoch, set, figures: &record.by_class };
        let written = fs::create_dir_all(self.run_dir.evaluations())
            .and_then(|()| serde_json::to_vec(&content).map_err(io::Error::from))
            .and_then(|json| write_atomic(&path, &json));
        match written {
            Err(error) if self.on_failure == OnFailure::Continue => {
                tracing::warn!(
                    "cannot write {}: {error}{}; on_failure = \"continue\"",
                    path.display(),
                    remedy(&error)
                );
                Ok(())
            }
            written => written.map_err(|error| (path, error)),
        }
    }
}

impl Follower for ByClass<'_> {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        match line {
            Line::Eval(record) => {
                self.write(record).map_err(|(path, source)| TrainError::ByClass { path, source })
            }
            _ => Ok(()),
        }
    }
}
