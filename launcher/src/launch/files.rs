//! The files that a launch makes for its workers: logs and error files, before any worker starts.

use crate::output::{Log, Stream};
use anyhow::Context;
use dtrain_common::run_dir::RunDir;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An error file is read up to this size.
const LONGEST_ERROR_BYTES: u64 = 1 << 20;

/// Where the workers of one attempt leave their output and their errors.
#[derive(Debug)]
pub(super) struct Files {
    /// One folder per rank, absolute.
    folders: Vec<PathBuf>,
    /// Where logs are kept; none without a run directory.
    kept: Option<Kept>,
    /// Holds the error files otherwise, since torchrun's contract wants them in any case; removed when dropped.
    _temporary: Option<TempDir>,
}

#[derive(Debug)]
struct Kept {
    run_dir: RunDir,
    attempt: u32,
    root_was_there: bool,
}

/// The log files of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerLogs {
    pub(super) stdout: Option<Log>,
    pub(super) stderr: Option<Log>,
}

impl Files {
    /// Makes the folders: in `run_dir` for an attempt that it does not hold yet, else in a temporary place.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub(super) fn create(run_dir: Option<&RunDir>, workers: usize) -> anyhow::Result<Self> {
        let Some(run_dir) = run_dir else {
            let parent = std::env::temp_dir();
            let temporary = tempfile::Builder::new()
                .prefix("dtrain-")
                .tempdir_in(&parent)
                .with_context(|| format!("cannot make a temporary folder in {}", parent.display()))?;
            let folders = (0..workers).map(|rank| make(&temporary.path().join(format!("rank_{rank}"))));
            return Ok(Self {
                folders: folders.collect::<Result<_, _>>()?,
                kept: None,
                _temporary: Some(temporary),
            });
        };
        let root_was_there = run_dir.root().exists();
        make(&run_dir.logs())?;
        let attempt = new_attempt(run_dir)?;
        let folders = (0..workers).map(|rank| make(&run_dir.rank_logs(attempt, rank)));
        let folders = folders.collect::<Result<_, _>>()?;
        let kept = Kept {
            run_dir: run_dir.clone(),
            attempt,
            root_was_there,
        };
        Ok(Self {
            folders,
            kept: Some(kept),
            _temporary: None,
        })
    }

    /// Where the worker of `rank` writes its error; an absolute path, as the worker may change its folder.
    pub(super) fn error_file(&self, rank: usize) -> PathBuf {
        self.folders[rank].join("error.json")
    }

    /// What the worker of `rank` reported in its error file, if anything.
    pub(super) fn reported_error(&self, rank: usize) -> Option<String> {
        message_of(&self.error_text(rank)?)
    }

    /// The content of the error file of `rank`, if there is one.
    pub(super) fn error_text(&self, rank: usize) -> Option<String> {
        let mut text = String::new();
        File::open(self.error_file(rank))
            .ok()?
            .take(LONGEST_ERROR_BYTES)
            .read_to_string(&mut text)
            .ok()?;
        Some(text)
    }

    /// Where the log of this stream lies, as the user knows the run directory; none when no logs are kept.
    pub(super) fn log_path(&self, rank: usize, stream: Stream) -> Option<PathBuf> {
        let kept = self.kept.as_ref()?;
        Some(
            kept.run_dir
                .rank_logs(kept.attempt, rank)
                .join(format!("{}.log", stream.name())),
        )
    }

    /// Keeps where the worker of `rank` was when it hung, beside its logs; none when no logs are kept.
    pub(super) fn keep_stacks(&self, rank: usize, text: &str) -> Option<io::Result<PathBuf>> {
        let kept = self.kept.as_ref()?;
        let path = kept.run_dir.rank_logs(kept.attempt, rank).join("stacks.txt");
        Some(fs::write(&path, text).map(|()| path))
    }

    /// Makes the log files of `rank`; none without a run directory.
    ///
    /// # Errors
    /// A file cannot be made.
    pub(super) fn open_logs(&self, rank: usize) -> anyhow::Result<WorkerLogs> {
        let open = |stream| {
            self.log_path(rank, stream)
                .map(|path| {
                    let file = File::create(&path)
                        .with_context(|| format!("cannot make the log file {}", path.display()))?;
                    Ok::<_, anyhow::Error>(Log { file, path })
                })
                .transpose()
        };
        Ok(WorkerLogs {
            stdout: open(Stream::Stdout)?,
            stderr: open(Stream::Stderr)?,
        })
    }

    /// Takes back what [`Files::create`] made, for a launch whose program could not be started. What cannot be
    /// removed stays: the reason why nothing runs is what the user has to hear.
    pub(super) fn remove(&self) {
        let Some(kept) = &self.kept else { return };
        if let Some(attempt) = kept.run_dir.rank_logs(kept.attempt, 0).parent() {
            let _ = fs::remove_dir_all(attempt);
        }
        // These two only go if they are empty.
        let _ = fs::remove_dir(kept.run_dir.logs());
        if !kept.root_was_there {
            let _ = fs::remove_dir(kept.run_dir.root());
        }
    }
}

/// Makes a folder and those above it; answers its absolute path.
fn make(folder: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    std::path::absolute(folder)
        .with_context(|| format!("cannot find the absolute path of {}", folder.display()))
}

/// Makes the folder of the first attempt that the run directory does not hold yet: a run that goes on keeps the logs
/// of its earlier starts, and their error files are not taken for new ones.
fn new_attempt(run_dir: &RunDir) -> anyhow::Result<u32> {
    let mut attempt = 0;
    loop {
        let rank_folder = run_dir.rank_logs(attempt, 0);
        let folder = rank_folder.parent().unwrap_or(&rank_folder);
        match fs::create_dir(folder) {
            Ok(()) => return Ok(attempt),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => attempt += 1,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder {}", folder.display()));
            }
        }
    }
}

/// The message in an error file of torchrun's form, `{"message": {"message": ...}}` or `{"message": "..."}`.
fn message_of(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let outer = json.get("message")?;
    let message = outer.get("message").unwrap_or(outer).as_str()?.trim();
    (!message.is_empty()).then(|| message.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn error_files_of_both_forms_are_understood() {
        let ours = r#"{"message":{"message":"no data","extraInfo":{"py_callstack":"","timestamp":"1"}}}"#;
        assert_eq!(message_of(ours).as_deref(), Some("no data"));
        assert_eq!(message_of(r#"{"message":" short "}"#).as_deref(), Some("short"));
        for useless in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"message":{}}"#,
            r#"{"message":{"message":""}}"#,
            r#"{"message":3}"#,
        ] {
            assert_eq!(message_of(useless), None, "{useless}");
        }
    }

    #[test]
    fn every_start_in_a_run_directory_has_logs_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        let first = Files::create(Some(&run_dir), 2).unwrap();
        fs::write(first.error_file(1), r#"{"message":"old"}"#).unwrap();
        let second = Files::create(Some(&run_dir), 2).unwrap();
        assert_eq!(first.reported_error(1).as_deref(), Some("old"));
        assert_eq!(second.reported_error(1), None);
        assert!(
            second
                .error_file(1)
                .ends_with("run/logs/attempt_1/rank_1/error.json")
        );
        second.remove();
        assert!(!run_dir.rank_logs(1, 0).exists() && run_dir.rank_logs(0, 1).exists());
    }

    #[test]
    fn what_was_made_is_taken_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let new = RunDir::new(folder.path().join("new"));
        let files = Files::create(Some(&new), 1).unwrap();
        files.open_logs(0).unwrap();
        files.remove();
        assert!(!new.root().exists());
        let there = RunDir::new(folder.path());
        Files::create(Some(&there), 1).unwrap().remove();
        assert!(there.root().exists() && !there.logs().exists());
    }

    #[test]
    fn without_a_run_directory_error_files_have_a_temporary_place_and_no_logs_are_kept() {
        let files = Files::create(None, 2).unwrap();
        let error_file = files.error_file(1);
        assert!(error_file.parent().unwrap().is_dir());
        assert!(files.open_logs(1).unwrap().stdout.is_none());
        drop(files);
        assert!(!error_file.parent().unwrap().exists());
    }
}
