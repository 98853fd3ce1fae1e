//! A folder for each evaluation with some of its samples: pictures, texts and captions.

use std::fs;
use std::io;
use std::path::Path;

use dtrain_common::files::{none_if_missing, remedy, temporary_folder};
use dtrain_common::run_dir::RunDir;
use dtrain_telemetry::{SAMPLES, Sample};

use crate::metrics::{EvalRecord, Line, ShownSample};
use crate::run::error::Result;
use crate::run::follower::Follower;
use crate::tasks::TEST;

/// Writes the folders. Only rank 0 has one.
pub(crate) struct SampleFolders<'a> {
    run_dir: &'a RunDir,
    has_warned: bool,
}

impl<'a> SampleFolders<'a> {
    pub(crate) fn new(run_dir: &'a RunDir) -> Self {
        Self { run_dir, has_warned: false }
    }

    /// Writes the folder of an evaluation, if samples are shown. A failure is a warning: no figure depends on it.
    pub(crate) fn write(&mut self, record: &EvalRecord) {
        if record.shown.is_empty() {
            return;
        }
        let set = record.set.as_deref().unwrap_or(TEST);
        let folder = self.run_dir.samples(record.step, set);
        let written = write(&self.run_dir.evaluations(), &folder, &record.shown);
        if let (Err(error), false) = (written, std::mem::replace(&mut self.has_warned, true)) {
            tracing::warn!(
                "cannot write {}: {error}{}; log.pictures = 0 keeps no samples",
                folder.display(),
                remedy(&error)
            );
        }
    }
}

fn write(parent: &Path, folder: &Path, shown: &[ShownSample]) -> io::Result<()> {
    fs::create_dir_all(parent)?;
    // Only its owner reads a temporary folder; the one within it gets its name.
    let temporary = temporary_folder(parent)?;
    let new = temporary.path().join("samples");
    fs::create_dir(&new)?;
    let mut samples = Vec::new();
    for (number, ShownSample { png, text, caption }) in shown.iter().enumerate() {
        let picture = png.as_ref().map(|_| format!("{number}.png"));
        if let (Some(name), Some(png)) = (&picture, png) {
            fs::write(new.join(name), png)?;
        }
        samples.push(Sample { picture, text: text.clone(), caption: caption.clone() });
    }
    fs::write(new.join(SAMPLES), serde_json::to_vec_pretty(&samples)?)?;
    // An evaluation that a resumed run repeats.
    none_if_missing(fs::remove_dir_all(folder))?;
    fs::rename(new, folder)
}

impl Follower for SampleFolders<'_> {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        if let Line::Eval(record) = line {
            self.write(record);
        }
        Ok(())
    }
}
