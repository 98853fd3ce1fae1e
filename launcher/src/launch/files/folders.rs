//! The folders of attempts and ranks. Runs may share a folder of logs: each rank's folder is made once, by its run.

use anyhow::Context;
use dtrain_common::run_dir::{attempt_folder, newest_attempt};
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Creates a folder and its parents.
pub(super) fn make(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))
}

/// Creates the folders of these ranks, and returns their absolute paths. If one exists, it is another run's: returns
/// `None`, and leaves nothing.
pub(super) fn rank_folders(attempt: &Path, ranks: Range<usize>) -> anyhow::Result<Option<Vec<PathBuf>>> {
    let mut made = Vec::new();
    for rank in ranks {
        let folder = rank_folder(attempt, rank);
        match fs::create_dir(&folder) {
            Ok(()) => made.push(
                std::path::absolute(&folder)
                    .with_context(|| format!("cannot find the absolute path of {}", folder.display()))?,
            ),
            // Not found: another run has just removed the folder of its attempt.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
                for folder in made {
                    // Fails if another process has written there.
                    let _ = fs::remove_dir(folder);
                }
                return Ok(None);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create the folder {}", folder.display()));
            }
        }
    }
    Ok(Some(made))
}

/// Creates the folder of the next attempt, so that earlier starts keep their logs and errors.
pub(super) fn new_attempt(root: &Path) -> anyhow::Result<PathBuf> {
    let mut number = next_attempt(root);
    loop {
        let folder = attempt_folder(root, number);
        match fs::create_dir(&folder) {
            // Another launch was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
            made => {
                made.with_context(|| format!("cannot create the folder {}", folder.display()))?;
                return Ok(folder);
            }
        }
    }
}

/// Creates the folder of attempt `number`, which other nodes use too, and those of these ranks. `number` becomes larger
/// if this node has logs of a later attempt, or logs of one of the ranks in this one: another run may write them now.
pub(super) fn shared_attempt(
    root: &Path,
    number: &mut u32,
    ranks: &Range<usize>,
) -> anyhow::Result<(PathBuf, Option<Vec<PathBuf>>)> {
    *number = newest(root).map_or(*number, |newest| newest.max(*number));
    loop {
        let attempt = attempt_folder(root, *number);
        make(&attempt)?;
        match rank_folders(&attempt, ranks.clone())? {
            None if *number < u32::MAX => *number += 1,
            folders => return Ok((attempt, folders)),
        }
    }
}

/// Returns the number after that of the newest attempt. A number without a folder is not used again: numbers are in
/// the order of time.
pub(in crate::launch) fn next_attempt(root: &Path) -> u32 {
    newest(root).map_or(0, |newest| newest.saturating_add(1))
}

fn newest(root: &Path) -> Option<u32> {
    newest_attempt(root).ok().flatten()
}

/// Returns a rank's folder in an attempt's folder; the layout of [`RunDir::rank_logs`](dtrain_common::run_dir::RunDir::rank_logs).
pub(super) fn rank_folder(attempt: &Path, rank: usize) -> PathBuf {
    attempt.join(format!("rank_{rank}"))
}
