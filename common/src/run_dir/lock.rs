//! Locks that keep two runs out of one folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{RunDir, RunDirError, io_error};

/// Held by whoever has begun the run: a launcher, or rank 0 of workers that nobody launched.
const RUN: &str = ".lock";
/// Held by rank 0 itself: it may outlive a launcher that was killed by a moment.
const TRAINER: &str = ".trainer.lock";
/// A launcher that was killed a moment ago is still ending.
const ENDING: Duration = Duration::from_secs(1);
/// How often a lock that is waited for is tried.
const PAUSE: Duration = Duration::from_millis(20);

/// Keeps others out of a run directory until it is dropped, or its process ends in whatever way.
#[derive(Debug)]
pub struct RunLock {
    /// None on a file system that knows no locks.
    _file: Option<File>,
}

impl RunDir {
    /// Claims the folder, which is there, for a run that begins or goes on; waits a moment for one that is ending.
    ///
    /// # Errors
    /// [`RunDirError::InUse`] while another run has it.
    pub fn claim(&self) -> Result<RunLock, RunDirError> {
        self.lock(RUN, ENDING)
    }

    /// Claims the folder for rank 0 of a training, and waits so long for the end of one whose launcher is gone.
    ///
    /// # Errors
    /// [`RunDirError::InUse`] where it does not end.
    pub fn claim_training(&self, patience: Duration) -> Result<RunLock, RunDirError> {
        self.lock(TRAINER, patience)
    }

    fn lock(&self, name: &str, patience: Duration) -> Result<RunLock, RunDirError> {
        let path = self.root().join(name);
        let begun = Instant::now();
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|source| io_error("write", &path, source))?;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < patience => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
                    return Err(RunDirError::InUse {
                        path: self.root().to_owned(),
                        holder: holder.trim().to_owned(),
                    });
                }
                // Without locks it is as it was before there were any.
                Err(TryLockError::Error(_)) => return Ok(RunLock { _file: None }),
            }
        }
        // Only for the message of whoever comes next.
        let _ = introduce(&mut file);
        Ok(RunLock { _file: Some(file) })
    }
}

/// Whether an entry of a folder is one of the locks, which alone are no run.
pub(super) fn is_lock(name: &Path) -> bool {
    name == Path::new(RUN) || name == Path::new(TRAINER)
}

fn introduce(file: &mut File) -> io::Result<()> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    file.set_len(0)?;
    writeln!(file, "process {} on {}", std::process::id(), host.trim())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let first = run_dir.claim().unwrap();
        let refused = run_dir.claim().unwrap_err().to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        // The trainer's is another.
        let trainer = run_dir.claim_training(Duration::ZERO).unwrap();
        drop(first);
        run_dir.claim().unwrap();
        let waiting = std::thread::spawn({
            let run_dir = run_dir.clone();
            move || run_dir.claim_training(Duration::from_secs(30)).is_ok()
        });
        drop(trainer);
        assert!(waiting.join().unwrap());
    }
}
