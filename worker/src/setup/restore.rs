//! Reads the checkpoint that a run resumes from.

use std::path::Path;
use std::time::{Duration, Instant};

use dtrain_common::manifest::Manifest;

use crate::checkpoint;
use crate::setup::error::{Result, WorkerError};
use crate::step::{Replica, StepError};

/// A checkpoint that was read.
pub(crate) struct Resumed {
    /// The named best checkpoint may be missing; rank 0 checks that.
    pub(crate) manifest: Manifest,
    pub(crate) took: Duration,
}

pub(crate) fn read_manifest(folder: &Path, unreadable: Option<&Manifest>) -> Result<Manifest> {
    let read = || Manifest::read(folder).map_err(|error| WorkerError::Resume(error.into()));
    unreadable.cloned().map_or_else(read, Ok)
}

/// Restores the checkpoint, or of an unreadable one what its manifest has.
pub(crate) fn restore(
    folder: &Path,
    unreadable: Option<&Manifest>,
    replica: &mut Replica,
) -> Result<Resumed> {
    let begun = Instant::now();
    let manifest = match unreadable {
        Some(manifest) => {
            if let (Some(average), Some(updates)) = (&mut replica.model.average, manifest.ema_updates) {
                average.restore(updates);
            }
            manifest.clone()
        }
        None => checkpoint::restore(folder, &mut replica.model).map_err(WorkerError::Resume)?,
    };
    replica.precision.resume(manifest.loss_scale).map_err(StepError::from)?;
    Ok(Resumed { manifest, took: begun.elapsed() })
}
