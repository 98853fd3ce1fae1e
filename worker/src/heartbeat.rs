//! Heartbeats for the launcher, which detects a hang if they stop.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use dtrain_common::env::{DTRAIN_HEARTBEAT_FILE, HEARTBEAT_WRITING};

/// Interval of heartbeats while a checkpoint is written; less than the smallest `--hang-timeout`, 1 s.
const EVERY: Duration = Duration::from_millis(500);
/// After this time of writing, heartbeats stop and `--hang-timeout` begins to count.
const LONGEST_WRITE: Duration = Duration::from_secs(30 * 60);
/// The same for a copy from a device to memory.
const LONGEST_COPY: Duration = Duration::from_secs(2 * 60);

/// A file whose modification time is that of the latest progress. Its content marks the writing of a
/// checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heartbeat(Option<Arc<File>>);

impl Heartbeat {
    /// Opens the file that the launcher has named, if any.
    pub(crate) fn from_env() -> Self {
        std::env::var_os(DTRAIN_HEARTBEAT_FILE).map_or_else(Self::default, |path| Self::at(path.as_ref()))
    }

    /// Opens or creates the file. If that fails, the training runs without heartbeats.
    fn at(path: &Path) -> Self {
        let mut options = File::options();
        let opened = options.create(true).truncate(false).write(true).open(path);
        let opened = opened.inspect_err(|error| {
            let path = path.display();
            tracing::warn!("cannot create {path}: {error}; the launcher cannot detect a hang of this worker");
        });
        Self(opened.ok().map(Arc::new))
    }

    pub(crate) fn touch(&self) {
        self.0.as_deref().map(touch);
    }

    /// As [`Heartbeat::guard_write`], for at most two minutes: a copy from a device that hangs does not end.
    #[must_use = "the copy is over when this is dropped"]
    pub(crate) fn guard_copy(&self) -> Option<WriteGuard> {
        self.0.as_ref().map(|file| WriteGuard::begin(file, LONGEST_COPY))
    }

    /// Sends heartbeats from a thread until the returned value is dropped, for at most 30 minutes, so that a
    /// write longer than `--hang-timeout` is no hang. The file's content makes the launcher wait for the
    /// write, instead of killing the worker after `--shutdown-timeout`.
    ///
    /// Called only where the training waits for a write; steps send heartbeats themselves. One write at a
    /// time.
    #[must_use = "the write is over when this is dropped"]
    pub(crate) fn guard_write(&self) -> Option<WriteGuard> {
        self.0.as_ref().map(|file| WriteGuard::begin(file, LONGEST_WRITE))
    }
}

fn touch(file: &File) {
    log_failure(file.set_modified(SystemTime::now()));
}

fn log_failure(written: io::Result<()>) {
    if let Err(error) = written {
        // The file is on a local disk, and only many missing heartbeats are a hang.
        tracing::debug!("cannot send a heartbeat: {error}");
    }
}

/// A checkpoint that is being written; see [`Heartbeat::guard_write`].
pub(crate) struct WriteGuard {
    file: Arc<File>,
    /// Sends no messages: dropping it ends the thread.
    _alive: Sender<()>,
}

impl WriteGuard {
    fn begin(file: &Arc<File>, longest: Duration) -> Self {
        log_failure(file.write_all_at(HEARTBEAT_WRITING.as_bytes(), 0));
        let (alive, end) = mpsc::channel();
        let (touched, begun) = (Arc::clone(file), Instant::now());
        let send_heartbeats = move || {
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if begun.elapsed() < longest {
                    touch(&touched);
                }
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        if let Err(error) = thread.spawn(send_heartbeats) {
            tracing::debug!("cannot send heartbeats while a checkpoint is written: {error}");
        }
        let file = Arc::clone(file);
        Self { file, _alive: alive }
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        log_failure(self.file.set_len(0));
        touch(&self.file);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Sets the file's last heartbeat back by an hour, and returns the new time.
    fn set_back(path: &Path) -> SystemTime {
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(long_ago).unwrap();
        long_ago
    }

    fn touched_since(path: &Path, long_ago: SystemTime) -> bool {
        path.metadata().unwrap().modified().unwrap() > long_ago + Duration::from_secs(3000)
    }

    fn wait_for_heartbeat(path: &Path, long_ago: SystemTime) {
        let begun = Instant::now();
        while !touched_since(path, long_ago) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no heartbeat");
            std::thread::sleep(EVERY / 10);
        }
    }

    fn heartbeat_in_folder() -> (tempfile::TempDir, PathBuf, Heartbeat) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("beat");
        let heartbeat = Heartbeat::at(&path);
        (folder, path, heartbeat)
    }

    #[test]
    fn a_heartbeat_sets_the_time_and_a_missing_file_is_no_error() {
        let (folder, path, heartbeat) = heartbeat_in_folder();
        let long_ago = set_back(&path);
        heartbeat.touch();
        assert!(touched_since(&path, long_ago));
        Heartbeat::at(&folder.path().join("no/such/folder")).touch();
        Heartbeat::default().touch();
        drop(Heartbeat::default().guard_write());
    }

    #[test]
    fn a_guarded_write_sends_heartbeats_and_marks_the_file() {
        let (_folder, path, heartbeat) = heartbeat_in_folder();
        let writing = heartbeat.guard_write();
        wait_for_heartbeat(&path, set_back(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), HEARTBEAT_WRITING);
        let long_ago = set_back(&path);
        drop(writing);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert!(touched_since(&path, long_ago), "its end sends a heartbeat");
    }

    #[test]
    fn heartbeats_stop_after_the_longest_write() {
        let (_folder, path, heartbeat) = heartbeat_in_folder();
        let guard = WriteGuard::begin(heartbeat.0.as_ref().unwrap(), Duration::ZERO);
        let long_ago = set_back(&path);
        std::thread::sleep(3 * EVERY);
        assert!(!touched_since(&path, long_ago));
        drop(guard);
    }
}
