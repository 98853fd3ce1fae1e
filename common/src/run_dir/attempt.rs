//! The attempts of a run: their folders, and the record that the launcher writes when one begins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::entries::numbered;
use super::lease::holder::Holder;
use super::{Life, Presence, RunDir};
use crate::files::write_atomic;

/// The folder of an attempt has this name, followed by its number.
const PREFIX: &str = "attempt_";

/// The job of a batch system that an attempt runs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobId {
    /// The batch system's name, such as `Slurm`. A reader must expect unknown names.
    pub system: String,
    /// The job's name or number, as the batch system's commands take it.
    pub id: String,
}

/// The content of `logs/attempt_A/attempt.json`. The node of rank 0 writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptRecord {
    /// Begin of the attempt in milliseconds since the Unix epoch.
    pub began_ms: u64,
    /// The node of rank 0.
    pub host: String,
    /// The launcher's process id on that node.
    pub pid: u32,
    /// Start of the process in the kernel's ticks, and its kernel and namespace: another may get its id later.
    pub started: u64,
    pub namespace: String,
    /// Workers on all nodes.
    pub nproc: usize,
    pub nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
}

impl AttemptRecord {
    /// Returns a record of this process, without the rest.
    pub fn of_this_process() -> Self {
        let Holder { pid, started, host, namespace } = Holder::this();
        Self { pid, started, host, namespace, ..Self::default() }
    }

    /// Returns the process, if this one can see whether it lives. The launch of a program has no lease.
    pub fn presence(&self) -> Option<Presence> {
        let Self { pid, started, host, namespace, .. } = self.clone();
        let holder = Holder { pid, started, host, namespace };
        let life = if holder.is_alive(&Holder::this())? { Life::Running } else { Life::Ended };
        Some(Presence { pid, host: holder.host, life })
    }

    /// Returns the record's path in the folder of an attempt.
    pub fn path(attempt: &Path) -> PathBuf {
        attempt.join("attempt.json")
    }

    /// Writes the record into the folder of its attempt, whole or not at all.
    pub fn write(&self, attempt: &Path) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        write_atomic(&Self::path(attempt), &json)
    }

    /// Returns the start of the attempt; `None` if it is unknown, or a time that the clock does not have.
    pub fn began(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.began_ms)).filter(|_| self.began_ms > 0)
    }
}

impl RunDir {
    /// Returns the folder of an attempt: `logs/attempt_0`.
    pub fn attempt(&self, number: u32) -> PathBuf {
        attempt_folder(&self.logs(), number)
    }

    /// Returns the number of the newest attempt; `None` before the first.
    ///
    /// # Errors
    ///
    /// The folder of the logs cannot be listed.
    pub fn newest_attempt(&self) -> io::Result<Option<u32>> {
        newest_attempt(&self.logs())
    }
}

/// Returns the folder of an attempt in a folder of logs.
pub fn attempt_folder(logs: &Path, number: u32) -> PathBuf {
    logs.join(format!("{PREFIX}{number}"))
}

/// Returns the number of the newest attempt in a folder of logs.
pub fn newest_attempt(logs: &Path) -> io::Result<Option<u32>> {
    let is_logs = fs::metadata(logs).is_ok_and(|about| about.is_dir());
    if !is_logs {
        return Ok(None);
    }
    let numbers = numbered(logs, PREFIX)?.into_iter();
    Ok(numbers.filter_map(|(number, _)| u32::try_from(number).ok()).max())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_record_of_the_newest_attempt_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(run_dir.newest_attempt().unwrap(), None);
        for name in ["attempt_2", "attempt_10", "attempt_x", "attempt_99999999999"] {
            fs::create_dir_all(run_dir.logs().join(name)).unwrap();
        }
        assert_eq!(run_dir.newest_attempt().unwrap(), Some(10));
        let job = JobId { system: "Slurm".to_owned(), id: "77".to_owned() };
        let record =
            AttemptRecord { began_ms: 1_000, nproc: 2, nodes: 1, job: Some(job), ..Default::default() };
        record.write(&run_dir.attempt(10)).unwrap();
        let text = fs::read(AttemptRecord::path(&run_dir.attempt(10))).unwrap();
        assert_eq!(serde_json::from_slice::<AttemptRecord>(&text).unwrap(), record);
        assert_eq!(record.began(), Some(UNIX_EPOCH + Duration::from_secs(1)));
        // Records of other versions.
        let other = br#"{"began_ms": 3, "thought-of-later": 1}"#;
        assert_eq!(serde_json::from_slice::<AttemptRecord>(other).unwrap().began_ms, 3);
    }

    #[test]
    fn logs_that_are_no_folder_hold_no_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        fs::write(run_dir.logs(), "").unwrap();
        assert_eq!(run_dir.newest_attempt().unwrap(), None);
    }
}
