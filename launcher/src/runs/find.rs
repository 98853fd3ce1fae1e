//! Finds run directories below a folder. Links are not followed.

use dtrain_common::run_dir::{RunDir, newest_attempt};
use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// Levels of folders below the given one.
const DEPTH: usize = 4;
/// The most folders that are listed: the given folder may be `/`.
const FOLDERS: usize = 20_000;

/// A run directory, or a folder that cannot be listed.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) run_dir: RunDir,
    pub(super) error: Option<io::Error>,
}

/// Returns the run directories in the order of their paths, and whether folders were left out.
///
/// # Errors
///
/// The given folder cannot be listed.
pub(super) fn find(dir: &Path) -> io::Result<(Vec<Found>, bool)> {
    // The user names this folder, so it may be a link.
    let mut runs = Vec::new();
    let mut folders = VecDeque::from([(dir.to_owned(), 0)]);
    let (mut listed, mut is_cut) = (0, false);
    while let Some((folder, depth)) = folders.pop_front() {
        if listed == FOLDERS {
            is_cut = true;
            break;
        }
        listed += 1;
        match list(&folder) {
            Ok((names, _)) if is_run(&names) || has_attempts(&folder, &names) => {
                runs.push(Found { run_dir: RunDir::new(folder), error: None });
            }
            Ok((_, below)) if depth < DEPTH => {
                folders.extend(below.into_iter().map(|name| (folder.join(name), depth + 1)));
            }
            Ok(_) => {}
            Err(error) if depth == 0 => return Err(error),
            // Removed since its parent was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => runs.push(Found { run_dir: RunDir::new(folder), error: Some(error) }),
        }
    }
    runs.sort_by(|a, b| a.run_dir.root().cmp(b.run_dir.root()));
    Ok((runs, is_cut))
}

/// Returns the names in a folder, and those of visible folders.
fn list(folder: &Path) -> io::Result<(HashSet<OsString>, Vec<OsString>)> {
    let (mut names, mut folders) = (HashSet::new(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if !is_hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            folders.push(name.clone());
        }
        names.insert(name);
    }
    Ok((names, folders))
}

/// A run has a lock. Copies may lack it: a recipe alone is a user's, and `result.json` may be of any program.
fn is_run(names: &HashSet<OsString>) -> bool {
    let has = |name: &&str| names.contains(&OsString::from(name));
    [".lock", ".trainer.lock"].iter().any(has)
        || has(&"recipe.toml") && ["plan.json", "metrics.jsonl", "checkpoints", "logs"].iter().any(has)
        || has(&"result.json") && has(&"logs")
}

/// The launch of a program has no lock, and no result before its end.
fn has_attempts(folder: &Path, names: &HashSet<OsString>) -> bool {
    let logs = || newest_attempt(&folder.join("logs"));
    names.contains(&OsString::from("logs")) && logs().is_ok_and(|newest| newest.is_some())
}

/// Returns the name for tables: the path below `dir`, or `dir` itself.
pub(super) fn name<'a>(run: &'a Path, dir: &Path) -> &'a Path {
    match run.strip_prefix(dir) {
        Ok(below) if !below.as_os_str().is_empty() => below,
        _ => run,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn runs_are_found_by_their_files_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let make = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for file in [
            "b/.lock",
            "a/recipe.toml",
            "a/plan.json",
            "sweep/lr-1/.trainer.lock",
            "program/result.json",
            "program/logs/attempt_0/rank_0/stdout.log",
            // Not runs: a user's recipes, another program's result, hidden, inside a run, too deep.
            "recipes/recipe.toml",
            "other/result.json",
            ".hidden/.lock",
            "b/nested/.lock",
            "1/2/3/4/5/.lock",
            "1/2/3/4/.lock",
        ] {
            make(file);
        }
        symlink(root, root.join("sweep/loop")).unwrap();
        symlink(root.join("b"), root.join("link")).unwrap();
        let names = |dir: &Path| -> Vec<String> {
            let (runs, is_cut) = find(dir).unwrap();
            assert!(!is_cut);
            runs.iter().map(|found| name(found.run_dir.root(), dir).display().to_string()).collect()
        };
        assert_eq!(names(root), ["1/2/3/4", "a", "b", "program", "sweep/lr-1"]);
        // A link that the user names is followed; a run directory is its own list.
        let link = root.join("link");
        assert_eq!(names(&link), [link.display().to_string()]);
        assert!(find(&root.join("absent")).is_err());
    }
}
