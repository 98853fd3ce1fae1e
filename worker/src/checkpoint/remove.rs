//! Removes old checkpoints. A failure only costs space: it is a warning, and the next checkpoint tries again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::run_dir::{Keep, PARTIAL, REMOVED, RunDir, rename_for_removal};

/// Removes the remains of an attempt that ended while writing. Rank 0 calls this before any rank writes,
/// after [`RunDir::recover`].
pub(crate) fn clear(run_dir: &RunDir) {
    for prefix in [PARTIAL, REMOVED] {
        for folder in entries_with_prefix(run_dir, prefix) {
            remove_or_warn(&folder);
        }
    }
    for folder in [run_dir.root(), &run_dir.checkpoints()] {
        if folder.is_dir()
            && let Err(error) = dtrain_common::files::remove_temporary(folder)
        {
            let folder = folder.display();
            tracing::warn!("cannot remove temporary files in {folder}: {error}; they only use disk space");
        }
    }
}

/// Removes checkpoints that are not kept, and retries earlier failures. Keeps the just written `newest` and
/// the targets of `latest` and `best`. Rank 0 calls this after a commit.
pub(super) fn prune(run_dir: &RunDir, keep: &Keep, newest: u64) {
    for folder in entries_with_prefix(run_dir, REMOVED) {
        // The first failure was a warning.
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::debug!("still cannot remove {}: {error}", folder.display());
        }
    }
    let steps = match run_dir.steps() {
        Ok(steps) => steps,
        Err(error) => {
            let folder = run_dir.checkpoints();
            let folder = folder.display();
            return tracing::warn!("cannot list {folder}: {error}; older checkpoints are kept for now");
        }
    };
    for step in run_dir.excess(keep, &steps, |step| run_dir.is_whole(step)) {
        if step != newest {
            remove(&run_dir.checkpoint(step));
        }
    }
}

/// Removes a checkpoint so that it is always complete or absent, and cannot come back. The folder may be
/// missing.
pub(super) fn remove(folder: &Path) {
    match rename_for_removal(folder) {
        Ok(hidden) => remove_or_warn(&hidden),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn(folder, &error),
    }
}

/// Returns the entries of the checkpoints' folder with this prefix.
fn entries_with_prefix(run_dir: &RunDir, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_dir.checkpoints()).into_iter().flatten().flatten();
    let begins = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    entries.filter(begins).map(|entry| entry.path()).collect()
}

fn remove_or_warn(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        warn(folder, &error);
    }
}

fn warn(folder: &Path, error: &io::Error) {
    tracing::warn!("cannot remove {}: {error}; the next checkpoint tries again", folder.display());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use dtrain_common::manifest::{FORMAT, Manifest};
    use dtrain_recipe::Recipe;

    use super::*;

    /// A run with whole checkpoints, without tensors, after these steps.
    fn run_of(steps: &[u64]) -> (tempfile::TempDir, RunDir) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::new(folder.path());
        for step in steps {
            fs::create_dir_all(run.checkpoint(*step)).unwrap();
            let recipe = serde_json::to_value(Recipe::load("demo", &[]).unwrap().plain().unwrap()).unwrap();
            let json = serde_json::json!({
                "format": FORMAT, "dtrain": "", "libtorch": "", "task": "", "model": "", "classes": 2, "parameters": 1,
                "step": step, "epoch": 0, "step_in_epoch": 0, "samples": 0, "world_size": 1, "recipe": recipe, "files": [],
            });
            serde_json::from_value::<Manifest>(json).unwrap().write(&run.checkpoint(*step)).unwrap();
        }
        (folder, run)
    }

    #[test]
    fn a_commit_keeps_itself_and_the_targets_of_latest_and_best() {
        let (_folder, run) = run_of(&[16, 32, 48, 64, 128]);
        symlink("step-00000048", run.latest()).unwrap();
        symlink("step-00000016", run.best()).unwrap();
        prune(&run, &Keep::newest(1), 64);
        assert_eq!(run.steps().unwrap(), [16, 48, 64, 128]);
    }

    #[test]
    fn a_failed_removal_is_retried_after_the_next_checkpoint() {
        let (_folder, run) = run_of(&[16, 32]);
        // A file in place of a folder cannot be removed as a folder.
        let hidden = run.checkpoints().join(".removed-step-00000016");
        fs::write(&hidden, "").unwrap();
        prune(&run, &Keep::newest(1), 32);
        // A second checkpoint of the same step is not affected.
        assert!(hidden.exists());
        assert_eq!(run.steps().unwrap(), [32]);
        fs::remove_file(&hidden).unwrap();
        fs::create_dir(&hidden).unwrap();
        prune(&run, &Keep::newest(1), 32);
        assert!(!hidden.exists());
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_neither_counts_nor_goes() {
        let (_folder, run) = run_of(&[8, 16, 24, 32]);
        for unreadable in [8, 24] {
            // Reading a link to itself is an error of the system, as EIO.
            let manifest = run.checkpoint(unreadable).join("manifest.json");
            fs::remove_file(&manifest).unwrap();
            symlink("manifest.json", &manifest).unwrap();
        }
        prune(&run, &Keep::newest(2), 32);
        assert_eq!(run.steps().unwrap(), [8, 16, 24, 32], "16 and 32 are the newest two");
        prune(&run, &Keep::newest(1), 32);
        assert_eq!(run.steps().unwrap(), [8, 24, 32]);
    }

    #[test]
    fn clearing_continues_after_a_failed_removal() {
        let (_folder, run) = run_of(&[32]);
        fs::write(run.checkpoints().join(".partial-00000040"), "").unwrap();
        fs::create_dir(run.checkpoints().join(".partial-00000048")).unwrap();
        fs::create_dir(run.checkpoints().join(".removed-step-00000016")).unwrap();
        clear(&run);
        let left: Vec<_> = fs::read_dir(run.checkpoints())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.as_encoded_bytes().starts_with(b"."))
            .collect();
        assert_eq!(left, [".partial-00000040"]);
    }
}
