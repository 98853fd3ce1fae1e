//! The lease of a node's agent, which its workers read: a file of 8 bytes with the end of the lease, little
//! endian, in nanoseconds of CLOCK_BOOTTIME. That clock counts the time of a suspended machine.
//!
//! The file is memory without a name, which the agent's guardian holds, so that no disk delays a heartbeat. The agent
//! rewrites it in place. When the lease has ended, the leader may start another epoch
//! elsewhere: a worker that continues must not change the run directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::env::DTRAIN_LEASE;

/// An error of a worker that may not change the run directory.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error(
        "this node has lost the leader: its lease ended {0:.1?} ago, and another epoch of the run may have started. Nothing was \
         committed; the run continues with the other nodes"
    )]
    Over(Duration),
    #[error("cannot read the lease of this node's agent, {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

/// The file of a lease.
#[derive(Debug)]
pub struct Lease {
    file: File,
}

impl Lease {
    /// Creates the file, or opens it, for the agent. Call [`Lease::write`] before a worker reads it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        Ok(Self { file: options.create(true).truncate(false).read(true).write(true).open(path)? })
    }

    /// Opens the file for a worker.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// Sets the end of the lease, on the clock of [`Lease::now`]. With None, it never ends.
    pub fn write(&self, end: Option<Duration>) -> io::Result<()> {
        let limit = u64::MAX - 1;
        let nanos =
            end.map_or(u64::MAX, |end| u64::try_from(end.as_nanos()).map_or(limit, |at| at.min(limit)));
        self.file.write_all_at(&nanos.to_le_bytes(), 0)
    }

    /// Returns whether the lease has ended. A file that is too short is an error.
    pub fn is_over(&self) -> io::Result<bool> {
        Ok(self.over_since(Self::now())?.is_some())
    }

    /// Returns how long before `now` the lease ended.
    fn over_since(&self, now: Duration) -> io::Result<Option<Duration>> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0)?;
        let end = u64::from_le_bytes(bytes);
        Ok(now.checked_sub(Duration::from_nanos(end)).filter(|_| end < u64::MAX))
    }

    /// Returns the time since the machine started, including suspension.
    pub fn now() -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }
}

/// Checks that this worker may change the run directory: its agent has no lease, or the lease lasts. Call
/// this directly before each change that others see.
pub fn check() -> Result<(), LeaseError> {
    let Some(path) = std::env::var_os(DTRAIN_LEASE).filter(|path| !path.is_empty()) else { return Ok(()) };
    check_file(Path::new(&path))
}

fn check_file(path: &Path) -> Result<(), LeaseError> {
    let over = Lease::open(path).and_then(|lease| lease.over_since(Lease::now()));
    match over.map_err(|source| LeaseError::Read { path: path.to_owned(), source })? {
        Some(since) => Err(LeaseError::Over(since)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lease_lasts_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease");
        let agent = Lease::create(&path).unwrap();
        let worker = Lease::open(&path).unwrap();
        assert_eq!(worker.is_over().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let now = Lease::now();
        let past = now - Duration::from_millis(10);
        let future = now + Duration::from_secs(1000);
        for (end, is_over) in [
            (Some(future), false),
            (Some(past), true),
            (None, false),
            (Some(Duration::MAX), false),
            (Some(Duration::ZERO), true),
        ] {
            agent.write(end).unwrap();
            assert_eq!(worker.is_over().unwrap(), is_over, "{end:?}");
            assert_eq!(check_file(&path).is_err(), is_over, "{end:?}");
        }
        agent.write(Some(now)).unwrap();
        assert_eq!(worker.over_since(now).unwrap(), Some(Duration::ZERO));
        assert_eq!(worker.over_since(now + Duration::from_secs(2)).unwrap(), Some(Duration::from_secs(2)));
        assert_eq!(std::fs::read(&path).unwrap(), (now.as_nanos() as u64).to_le_bytes());
        // The agent keeps the file when it opens it again.
        Lease::create(&path).unwrap();
        assert!(worker.is_over().unwrap());
    }

    #[test]
    fn an_unreadable_lease_is_an_error_that_names_the_file() {
        let text = check_file(Path::new("/missing/lease")).unwrap_err().to_string();
        assert!(text.contains("/missing/lease"), "{text}");
    }
}
