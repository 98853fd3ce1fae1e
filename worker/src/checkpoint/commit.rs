//! What rank 0 does when all parts of a checkpoint are written: the manifest, the folder's name, the links, and what is removed.
//!
//! Invariant: at any moment a crash leaves the new checkpoint or the one before it, under a name by which the next start finds it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use dtrain_common::files::symlink_atomic;
use dtrain_common::manifest::{BestSoFar, Manifest};
use dtrain_common::run_dir::{Keep, PARTIAL, RunDir};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::CheckpointError;
use super::remove::{prune, remove};

/// Makes the partial folder the checkpoint of its step, switches the links, and removes what is not kept. Rank 0
/// calls it when every rank has written. Where the disk fails, earlier checkpoints and `latest` are as they were.
pub(super) fn commit(run_dir: &RunDir, manifest: &Manifest, keep: Keep) -> Result<(), CheckpointError> {
    let partial = partial(run_dir, manifest.step);
    let folder = run_dir.checkpoint(manifest.step);
    manifest.check_sizes(&partial)?;
    manifest.write(&partial)?;
    sync(&partial)?;
    // The link is there before the checkpoint: a crash between the two leaves no doubt that the run has come so far.
    let (next, latest) = (run_dir.next(), run_dir.latest());
    point(&next, &folder)?;
    let replaced = run_dir.replaced_by(manifest.step);
    put_in_place(&partial, &folder, &replaced, exchange)?;
    sync(&run_dir.checkpoints())?;
    fs::rename(&next, &latest).map_err(CheckpointError::io("rename", &next))?;
    sync(&run_dir.checkpoints())?;
    point_to_best(run_dir, manifest.best.as_ref())?;
    prune(run_dir, keep, manifest.step);
    Ok(())
}

/// Completes the checkpoint of `step` by what an evaluation after it has found, and points `best` at the best one. Rank 0 calls it,
/// while no checkpoint is pending. Where the disk fails, the checkpoint is as it was.
pub(crate) fn amend(
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

/// Where a checkpoint is written before it is one.
pub(super) fn partial(run_dir: &RunDir, step: u64) -> PathBuf {
    run_dir.checkpoints().join(format!("{PARTIAL}{step:08}"))
}

/// A checkpoint of the same step gives way. There is one under its name at any moment, or the old one under that of `replaced`,
/// which [`RunDir::recover`] brings back.
fn put_in_place(
    partial: &Path,
    folder: &Path,
    replaced: &Path,
    exchange: impl FnOnce(&Path, &Path) -> Result<(), Errno>,
) -> Result<(), CheckpointError> {
    if !folder.exists() {
        return fs::rename(partial, folder).map_err(CheckpointError::io("rename", partial));
    }
    match exchange(partial, folder) {
        Ok(()) => remove(partial),
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            remove(replaced);
            fs::rename(folder, replaced).map_err(CheckpointError::io("move", folder))?;
            fs::rename(partial, folder).map_err(CheckpointError::io("rename", partial))?;
            remove(replaced);
        }
        Err(error) => return Err(CheckpointError::io("exchange", folder)(error.into())),
    }
    Ok(())
}

/// Gives two folders each other's name at once.
fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
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

fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(CheckpointError::io("sync", path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn place() -> (tempfile::TempDir, RunDir) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::new(folder.path());
        for (path, content) in [(run.checkpoint(16), "old"), (partial(&run, 16), "new")] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), content).unwrap();
        }
        (folder, run)
    }

    fn content(folder: &Path) -> String {
        fs::read_to_string(folder.join("file")).unwrap()
    }

    fn names(run: &RunDir) -> Vec<String> {
        let entries = fs::read_dir(run.checkpoints()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn another_checkpoint_of_the_same_step_takes_its_place() {
        let cannot = |_: &Path, _: &Path| Err(Errno::INVAL);
        for can_exchange in [true, false] {
            let (_folder, run) = place();
            let (own, replaced) = (run.checkpoint(16), run.replaced_by(16));
            // One that gave way before and cannot be removed: a file where a folder has to be.
            fs::write(&replaced, "").unwrap();
            match can_exchange {
                true => put_in_place(&partial(&run, 16), &own, &replaced, exchange),
                false => put_in_place(&partial(&run, 16), &own, &replaced, cannot),
            }
            .unwrap();
            assert_eq!(content(&own), "new");
            assert!(!partial(&run, 16).exists());
            assert_eq!(replaced.exists(), can_exchange, "it is out of the way");
        }
    }

    /// What fails behind the first of two renames is where a crash would be.
    #[test]
    fn a_crash_while_a_checkpoint_gives_way_loses_neither() {
        let (_folder, run) = place();
        let crash = |one: &Path, _: &Path| {
            fs::rename(one, one.with_file_name("gone")).unwrap();
            Err(Errno::INVAL)
        };
        let own = run.checkpoint(16);
        put_in_place(&partial(&run, 16), &own, &run.replaced_by(16), crash).unwrap_err();
        assert!(!own.exists());
        run.recover().unwrap();
        super::super::clear(&run);
        assert_eq!(content(&own), "old");

        // Where names are exchanged there is one at any moment; the old one is left under the other name, and cleared away.
        let (_folder, run) = place();
        let own = run.checkpoint(16);
        exchange(&partial(&run, 16), &own).unwrap();
        assert_eq!(content(&own), "new");
        run.recover().unwrap();
        super::super::clear(&run);
        assert_eq!((content(&own), names(&run)), ("new".to_owned(), vec!["step-00000016".to_owned()]));
    }
}
