//! Which checkpoint a run goes on from.

use std::path::{Path, PathBuf};

use dtrain_common::manifest::{Manifest, ManifestError};
use dtrain_common::run_dir::{Resume, RunDir, RunDirError};

/// The checkpoint to go on from, every byte of which is as it was written; none for a run that begins. Rank 0 calls it, before
/// any rank reads one. With [`Resume::Auto`] it is the newest whole one of the run, and those that are passed over for it are
/// named.
///
/// # Errors
/// A checkpoint that was asked for and is damaged, one that a newer dtrain wrote, and a run whose checkpoints are all damaged.
pub fn choose(run_dir: &RunDir, resume: &Resume) -> Result<Option<PathBuf>, RunDirError> {
    match resume {
        Resume::Never => return Ok(None),
        Resume::From(folder) => {
            verify(folder)?;
            // A link such as `best` moves on during the run, perhaps before every rank has read through it.
            let fixed = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            return Ok(Some(fixed));
        }
        Resume::Auto => {}
    }
    if run_dir.latest().is_symlink() && !run_dir.latest().exists() {
        tracing::warn!("{} points nowhere", run_dir.latest().display());
    }
    for folder in run_dir.candidates()? {
        match verify(&folder) {
            Ok(()) => return Ok(Some(folder)),
            Err(error @ ManifestError::NewerFormat { .. }) => return Err(error.into()),
            Err(error) => tracing::warn!("{} is passed over: {error}", folder.display()),
        }
    }
    run_dir.none_to_begin_with().map(|()| None)
}

/// Whether every byte of the checkpoint is as it was written.
///
/// # Errors
/// What is wrong with it.
pub fn verify(folder: &Path) -> Result<(), ManifestError> {
    Manifest::read(folder)?.verify(folder)
}
