//! What rank 0 does when all parts of a checkpoint are written: the manifest, the folder's name, the links, and what is removed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::files::{remove_temporary, symlink_atomic};
use dtrain_common::manifest::{BestSoFar, Manifest};
pub use dtrain_common::run_dir::Keep;
use dtrain_common::run_dir::{PARTIAL, REMOVED, RunDir};

use super::error::CheckpointError;
use super::writer::Commit;

/// Makes the partial folder the checkpoint of its step, points `latest` and `best` at theirs, and removes what is not kept.
/// Returns the folder. Rank 0 calls it when every rank has written and synced its part.
///
/// # Errors
/// Where the disk fails. Earlier checkpoints and `latest` are as they were then, unless only the removal of old ones failed.
pub(super) fn commit(commit: Commit) -> Result<PathBuf, CheckpointError> {
    let Commit {
        run_dir,
        partial,
        manifest,
        keep,
    } = commit;
    let folder = run_dir.checkpoint(manifest.step);
    manifest.check_sizes(&partial)?;
    manifest.write(&partial)?;
    sync(&partial)?;
    put_in_place(&partial, &folder)?;
    sync(&run_dir.checkpoints())?;
    point(&run_dir.latest(), &folder)?;
    point_to_best(&run_dir, manifest.best.as_ref())?;
    prune(&run_dir, keep)?;
    Ok(folder)
}

/// Completes the checkpoint of `step` by what an evaluation after it has found, and points `best` at the best one. Rank 0 calls it,
/// while no checkpoint is under way.
///
/// # Errors
/// Where the checkpoint is not there or the disk fails; the checkpoint is as it was then.
pub fn amend(
    run_dir: &RunDir,
    step: u64,
    metrics: BTreeMap<String, f64>,
    best: Option<BestSoFar>,
) -> Result<(), CheckpointError> {
    let folder = run_dir.checkpoint(step);
    let mut manifest = Manifest::read(&folder)?;
    (manifest.metrics, manifest.best, manifest.evaluation_owed) = (metrics, best, false);
    manifest.write(&folder)?;
    point_to_best(run_dir, manifest.best.as_ref())
}

/// Removes what an attempt that ended in the middle of writing has left. Rank 0 calls it before any rank writes.
///
/// # Errors
/// Where it cannot be removed.
pub fn clear(run_dir: &RunDir) -> Result<(), CheckpointError> {
    let parent = run_dir.checkpoints();
    let entries = match fs::read_dir(&parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(CheckpointError::io("list", &parent))?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PARTIAL) || name.starts_with(REMOVED) {
            remove_dir(&entry.path())?;
        }
    }
    for folder in [run_dir.root(), &parent] {
        remove_temporary(folder).map_err(CheckpointError::io("tidy up", folder))?;
    }
    Ok(())
}

/// Where a checkpoint is written before it is one.
pub(super) fn partial(run_dir: &RunDir, step: u64) -> PathBuf {
    run_dir.checkpoints().join(format!("{PARTIAL}{step:08}"))
}

/// A checkpoint of the same step, left by a run that was resumed from an earlier one, gives way.
fn put_in_place(partial: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let old = hidden(folder);
    remove_dir(&old)?;
    if folder.exists() {
        fs::rename(folder, &old).map_err(CheckpointError::io("move", folder))?;
    }
    fs::rename(partial, folder).map_err(CheckpointError::io("rename", partial))?;
    remove_dir(&old)
}

/// Points a link beside the checkpoints at one of them, where it does not already.
fn point(link: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let name = folder.file_name().map(PathBuf::from).unwrap_or_default();
    if fs::read_link(link).is_ok_and(|target| target == name) {
        return Ok(());
    }
    symlink_atomic(&name, link).map_err(CheckpointError::io("point the link to", folder))
}

fn point_to_best(run_dir: &RunDir, best: Option<&BestSoFar>) -> Result<(), CheckpointError> {
    // Whoever removed it by hand has no best one until the next.
    let folder = best.map(|best| run_dir.checkpoint(best.step));
    match folder.filter(|folder| folder.is_dir()) {
        Some(folder) => point(&run_dir.best(), &folder),
        None => Ok(()),
    }
}

fn prune(run_dir: &RunDir, keep: Keep) -> Result<(), CheckpointError> {
    let parent = run_dir.checkpoints();
    let steps = run_dir.steps().map_err(CheckpointError::io("list", &parent))?;
    let best = fs::canonicalize(run_dir.best()).ok();
    let is_best = |folder: &Path| best.is_some() && fs::canonicalize(folder).ok() == best;
    for step in keep.excess(&steps) {
        let folder = run_dir.checkpoint(step);
        if !is_best(&folder) {
            let hidden = hidden(&folder);
            remove_dir(&hidden)?;
            fs::rename(&folder, &hidden).map_err(CheckpointError::io("move", &folder))?;
            remove_dir(&hidden)?;
        }
    }
    Ok(())
}

fn hidden(folder: &Path) -> PathBuf {
    let name = folder
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default();
    folder.with_file_name(format!("{REMOVED}{name}"))
}

pub(super) fn remove_dir(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(CheckpointError::io("sync", path))
}
