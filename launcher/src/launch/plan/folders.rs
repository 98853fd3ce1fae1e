//! The run directory that is named, or a new one.

use anyhow::{Context, bail};
use dtrain_agent::clock::Begun;
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::{Resume, RunDir, RunLock, Start};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Prepares the run directory that was named, or a new one.
pub(super) fn prepare(
    name: &str,
    recipe: &Recipe,
    resume: &Resume,
    named: Option<&Path>,
    begun: Begun,
) -> anyhow::Result<(RunDir, Start, RunLock)> {
    if let Some(named) = named {
        let run_dir = RunDir::new(named);
        let (start, lock) = run_dir.begin(recipe, resume)?;
        return Ok((run_dir, start, lock));
    }
    let root = RunDir::default_root(name, begun.wall);
    let parent = root.parent().unwrap_or(Path::new("."));
    let parent_was_there = parent.exists();
    fs::create_dir_all(parent).with_context(|| format!("cannot make the folder {}", parent.display()))?;
    let root = claim(&root)?;
    let run_dir = RunDir::new(&root);
    run_dir
        .begin(recipe, resume)
        .map(|(start, lock)| (run_dir, start, lock))
        .map_err(|error| {
            // Both only go if they are empty.
            let _ = fs::remove_dir(&root);
            if !parent_was_there {
                let _ = fs::remove_dir(parent);
            }
            error.into()
        })
}

/// Makes a new folder of this name, or with a number after it when another launch of the same second has it.
fn claim(root: &Path) -> anyhow::Result<PathBuf> {
    let mut candidate = root.to_owned();
    let mut number = 1;
    loop {
        match fs::create_dir(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                number += 1;
                let mut next = root.as_os_str().to_owned();
                next.push(format!("-{number}"));
                candidate = next.into();
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder {}", candidate.display()));
            }
        }
    }
}

/// A program's run directory, which must not hold anything yet.
pub(super) fn new_or_empty(path: &Path) -> anyhow::Result<RunDir> {
    let shown = path.display();
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(RunDir::new(path)),
            Some(_) => bail!("{shown} is not empty; give a new or empty folder as --run-dir for a program"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => Ok(RunDir::new(path)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("{shown} is not a folder; choose another --run-dir")
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot list the folder {shown}; choose another --run-dir"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn launches_of_the_same_second_get_folders_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("demo-1");
        let names: Vec<_> = (0..3).map(|_| claim(&root).unwrap()).collect();
        assert_eq!(
            names,
            [
                root.clone(),
                folder.path().join("demo-1-2"),
                folder.path().join("demo-1-3")
            ]
        );
    }

    #[test]
    fn a_programs_run_directory_is_new_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(new_or_empty(folder.path()).is_ok());
        assert!(new_or_empty(&folder.path().join("a/b")).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            new_or_empty(folder.path())
                .unwrap_err()
                .to_string()
                .contains("is not empty")
        );
        assert!(
            new_or_empty(&file)
                .unwrap_err()
                .to_string()
                .contains("is not a folder")
        );
        assert!(new_or_empty(&file.join("below")).is_err());
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(new_or_empty(&dangling).is_err());
    }
}
