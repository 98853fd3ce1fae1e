//! The entries of a folder of checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{REMOVED, step_of};
use crate::files::{none_if_missing, unused};

/// Renames a checkpoint's folder for its removal and returns the new path. This cannot be undone.
pub fn rename_for_removal(folder: &Path) -> io::Result<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let hidden = unused(&folder.with_file_name(format!("{REMOVED}{name}")));
    fs::rename(folder, &hidden)?;
    Ok(hidden)
}

/// Returns the steps of the checkpoints in a folder, in rising order; none without the folder.
pub(super) fn steps_in(folder: &Path) -> io::Result<Vec<u64>> {
    let mut steps: Vec<u64> = names(folder)?.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Returns the entries of a folder named `prefix` and a number, unsorted; none without the folder.
pub(super) fn numbered(folder: &Path, prefix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let number = |name: String| Some((name.strip_prefix(prefix)?.parse().ok()?, folder.join(&name)));
    Ok(names(folder)?.into_iter().filter_map(number).collect())
}

pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in none_if_missing(fs::read_dir(folder))?.into_iter().flatten() {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}
