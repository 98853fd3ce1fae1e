//! What rank 0 does when all parts of a checkpoint are written: the manifest, the folder's name, the links, and what is removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::files::symlink_atomic;
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
    // Whoever removed it by hand has no best one until the next.
    let best = manifest.best.map(|best| run_dir.checkpoint(best.step));
    if let Some(best) = best.filter(|best| best.is_dir()) {
        point(&run_dir.best(), &best)?;
    }
    prune(&run_dir, keep)?;
    Ok(folder)
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
