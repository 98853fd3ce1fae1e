//! Commits a checkpoint on rank 0 after all parts are written: manifest, folder name, links, removals.
//!
//! Invariant: after a crash at any moment, the next start finds the new checkpoint or the one before it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::agent_lease;
use dtrain_common::files::sync_folder;
use dtrain_common::manifest::{BestSoFar, Manifest, Stopping};
use dtrain_common::run_dir::{Keep, PARTIAL, RunDir, point};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::CheckpointError;
use super::remove::{prune, remove};

/// Gives the partial folder its name, switches the links, and removes old checkpoints. Rank 0 calls this
/// after every rank has written. If the disk fails or the agent's lease has ended, earlier checkpoints and `latest` are unchanged.
pub(super) fn commit(run_dir: &RunDir, manifest: &Manifest, keep: &Keep) -> Result<(), CheckpointError> {
    let partial = partial_folder(run_dir, manifest.step);
    let folder = run_dir.checkpoint(manifest.step);
    manifest.check_sizes(&partial)?;
    manifest.write(&partial)?;
    sync(&partial)?;
    agent_lease::check()?;
    // The link comes first: after a crash in between, it proves that the run has come this far.
    let (next, latest) = (run_dir.next(), run_dir.latest());
    point_link(&next, &folder)?;
    let replaced = run_dir.replaced_by(manifest.step);
    agent_lease::check()?;
    put_in_place(&partial, &folder, &replaced, exchange)?;
    sync(&run_dir.checkpoints())?;
    agent_lease::check()?;
    fs::rename(&next, &latest).map_err(CheckpointError::io("rename", &next))?;
    sync(&run_dir.checkpoints())?;
    point_to_best(run_dir, manifest.best.as_ref())?;
    prune(run_dir, keep, manifest.step);
    Ok(())
}

/// What an evaluation adds to the checkpoint of its step.
#[derive(Debug, Default)]
pub(crate) struct Amendment {
    pub(crate) metrics: BTreeMap<String, f64>,
    pub(crate) best: Option<BestSoFar>,
    pub(crate) stopping: Option<Stopping>,
}

/// Adds the results of its evaluation to the checkpoint of `step`, updates `best`, and removes the earlier best if it is
/// not kept. Rank 0 calls this while no checkpoint is pending. If the disk fails, the checkpoint is unchanged.
pub(crate) fn amend(
    run_dir: &RunDir,
    step: u64,
    amendment: Amendment,
    keep: &Keep,
) -> Result<(), CheckpointError> {
    let folder = run_dir.checkpoint(step);
    let Amendment { metrics, best, stopping } = amendment;
    let manifest =
        Manifest { metrics, best, stopping, evaluation_missing: false, ..Manifest::read(&folder)? };
    agent_lease::check()?;
    manifest.write(&folder)?;
    point_to_best(run_dir, manifest.best.as_ref())?;
    prune(run_dir, keep, step);
    Ok(())
}

/// Returns the folder in which a checkpoint is written before it gets its name.
pub(super) fn partial_folder(run_dir: &RunDir, step: u64) -> PathBuf {
    run_dir.checkpoints().join(format!("{PARTIAL}{step:08}"))
}

/// Replaces a checkpoint of the same step. At any moment a checkpoint has this name, or the old checkpoint is
/// at `replaced`, from which [`RunDir::recover`] restores it.
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
        // Not every file system supports the exchange.
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

/// Exchanges the names of two folders atomically.
fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// Points `link` at a checkpoint, unless it already does.
fn point_link(link: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    point(link, &name).map_err(CheckpointError::io("point the link to", folder))
}

fn point_to_best(run_dir: &RunDir, best: Option<&BestSoFar>) -> Result<(), CheckpointError> {
    // If the best checkpoint was removed by hand, there is no link until the next one.
    let folder = best.map(|best| run_dir.checkpoint(best.step));
    match folder.filter(|folder| folder.is_dir()) {
        Some(folder) => point_link(&run_dir.best(), &folder),
        None => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), CheckpointError> {
    sync_folder(path).map_err(CheckpointError::io("sync", path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn old_and_new() -> (tempfile::TempDir, RunDir) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::new(folder.path());
        for (path, content) in [(run.checkpoint(16), "old"), (partial_folder(&run, 16), "new")] {
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
    fn a_checkpoint_of_the_same_step_is_replaced() {
        let cannot = |_: &Path, _: &Path| Err(Errno::INVAL);
        for can_exchange in [true, false] {
            let (_folder, run) = old_and_new();
            let (own, replaced) = (run.checkpoint(16), run.replaced_by(16));
            // Remains of an earlier replacement that cannot be removed: a file in place of a folder.
            fs::write(&replaced, "").unwrap();
            match can_exchange {
                true => put_in_place(&partial_folder(&run, 16), &own, &replaced, exchange),
                false => put_in_place(&partial_folder(&run, 16), &own, &replaced, cannot),
            }
            .unwrap();
            assert_eq!(content(&own), "new");
            assert!(!partial_folder(&run, 16).exists());
            assert_eq!(replaced.exists(), can_exchange, "after an exchange the file stays");
        }
    }

    /// Simulates a crash by a failure after the first of two renames.
    #[test]
    fn a_crash_during_a_replacement_keeps_one_checkpoint() {
        let (_folder, run) = old_and_new();
        let crash = |one: &Path, _: &Path| {
            fs::rename(one, one.with_file_name("gone")).unwrap();
            Err(Errno::INVAL)
        };
        let own = run.checkpoint(16);
        put_in_place(&partial_folder(&run, 16), &own, &run.replaced_by(16), crash).unwrap_err();
        assert!(!own.exists());
        run.recover().unwrap();
        super::super::clear(&run);
        assert_eq!(content(&own), "old");

        // After an exchange the new checkpoint has the name; `clear` removes the old one.
        let (_folder, run) = old_and_new();
        let own = run.checkpoint(16);
        exchange(&partial_folder(&run, 16), &own).unwrap();
        assert_eq!(content(&own), "new");
        run.recover().unwrap();
        super::super::clear(&run);
        assert_eq!((content(&own), names(&run)), ("new".to_owned(), vec!["step-00000016".to_owned()]));
    }
}
