//! The folder of a try, beside the run directory that the run would have.

use anyhow::Context;
use dtrain_common::run_dir::RunDir;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A new folder: it stays until [`Folder::remove`].
pub(super) struct Folder {
    root: PathBuf,
    /// The folders above it that were made for it, the lowest first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Makes the folder. `run_dir`: that of the command line.
    pub(super) fn create(run_dir: Option<&Path>, recipe: &str) -> anyhow::Result<Self> {
        let stem = Path::new(recipe).file_stem().unwrap_or_default().to_string_lossy();
        let usual = RunDir::default_root(&format!("{stem}-try.toml"), SystemTime::now());
        let parent =
            run_dir.or(Some(&usual)).and_then(Path::parent).filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new(".")).to_owned();
        let is_missing = |folder: &&Path| *folder != Path::new("") && !folder.exists();
        let made = parent.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        fs::create_dir_all(&parent)
            .with_context(|| format!("cannot create the folder {}", parent.display()))?;
        let first = parent.join(usual.file_name().unwrap_or_default());
        let (mut root, mut number) = (first.clone(), 1);
        while let Err(error) = fs::create_dir(&root) {
            if error.kind() != ErrorKind::AlreadyExists {
                return Err(error).with_context(|| format!("cannot create the folder {}", root.display()));
            }
            number += 1;
            root = format!("{}-{number}", first.display()).into();
        }
        Ok(Self { root, made })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the folder of run directories.
    pub(super) fn parent(&self) -> &Path {
        self.root.parent().unwrap_or(Path::new("."))
    }

    /// Removes the folder with all that is in it.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(&self.root).with_context(|| format!("cannot remove {}", self.root.display()))?;
        // Fails if something else is there now.
        self.made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_try_is_beside_the_run_directory_and_leaves_nothing() {
        let scene = tempfile::tempdir().unwrap();
        let runs = scene.path().join("new/runs");
        let create = || Folder::create(Some(&runs.join("a")), "x/small.toml").unwrap();
        let (one, other) = (create(), create());
        assert!(one.root().is_dir() && one.root() != other.root());
        assert!(one.root().file_name().unwrap().to_str().unwrap().starts_with("small-try-"));
        assert_eq!((one.parent(), one.made.len(), other.made.len()), (&*runs, 2, 0));
        other.remove().unwrap();
        one.remove().unwrap();
        assert!(!scene.path().join("new").exists());
    }
}
