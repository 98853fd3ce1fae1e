//! A process that does not end after SIGKILL, as in an uninterruptible wait for a file server.

use crate::need::{self, Need, Skipped};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup/freezer";

/// A control group whose processes stand still. Only version 1 of the freezer also holds back SIGKILL.
#[derive(Debug)]
pub struct Freezer(PathBuf);

impl Freezer {
    /// Creates the control group.
    ///
    /// # Errors
    /// As [`need::require`]: there is no freezer of version 1, or it cannot be used.
    #[track_caller]
    pub fn new() -> Result<Self, Skipped> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("{ROOT}/dtrain-test-{}-{number}", std::process::id()));
        let made = fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()));
        need::require(Need::Freezer, made).map(|()| Self(folder))
    }

    /// Freezes a process, until the freezer is dropped.
    pub fn freeze(&self, pid: u32) {
        self.write("cgroup.procs", &pid.to_string());
        self.write("freezer.state", "FROZEN");
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.write("freezer.state", "THAWED");
        let deadline = Instant::now() + Duration::from_secs(10);
        // Its processes must have ended.
        let is_busy = || fs::remove_dir(&self.0).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy);
        while is_busy() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
