//! What writing a checkpoint asks of a file system, and a file system that fails on request.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use dtrain_common::env::{DTRAIN_FAULT, EnvError};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// A file system. Several ranks may write into one file.
pub(super) trait Disk: Send + Sync {
    /// Opens a file, which is made with this size where it is not there.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File>;

    /// Writes all bytes at this place.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when what was written would survive a loss of power.
    fn sync(&self, file: &File) -> io::Result<()>;
}

/// The one of the system.
pub(super) struct SystemDisk;

/// Bytes that are written in one go.
const CHUNK: usize = 16 << 20;

impl Disk for SystemDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        // A disk without room says so before anything is written.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                if file.metadata()?.len() < bytes {
                    file.set_len(bytes)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(file)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut offset = offset;
        for chunk in bytes.chunks(CHUNK) {
            file.write_all_at(chunk, offset)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// One on which a rank's writing fails after so many bytes, for tests: `DTRAIN_FAULT=write:rank=1,after=4096,error=ENOSPC`.
pub(super) struct FaultyDisk {
    left: AtomicI64,
    error: Errno,
    /// How many times it fails; the disk is whole again then.
    times: AtomicI64,
}

impl FaultyDisk {
    /// What the variable asks for on `rank`, if it asks for that.
    ///
    /// # Errors
    /// [`EnvError::Invalid`] where it asks for a failure to write in another form.
    pub(super) fn from_env(rank: usize) -> Result<Option<Self>, EnvError> {
        let Ok(value) = std::env::var(DTRAIN_FAULT) else {
            return Ok(None);
        };
        let Some(words) = value.strip_prefix(WRITE_FAULT) else {
            return Ok(None);
        };
        let invalid = || EnvError::Invalid {
            name: DTRAIN_FAULT,
            value: value.clone(),
            expected: "such as write:rank=1,after=4096,error=ENOSPC, or error=EIO, and optionally times",
        };
        let (mut of, mut after, mut error, mut times) = (None, None, None, 1);
        for word in words.split(',') {
            let (key, text) = word.split_once('=').ok_or_else(invalid)?;
            match key {
                "rank" => of = text.parse().ok(),
                "after" => after = text.parse().ok(),
                "times" => times = text.parse().map_err(|_| invalid())?,
                "error" => {
                    error = match text {
                        "ENOSPC" => Some(Errno::NOSPC),
                        "EIO" => Some(Errno::IO),
                        _ => None,
                    };
                }
                _ => return Err(invalid()),
            }
        }
        let (of, after, error): (usize, i64, Errno) = (of
            .zip(after)
            .zip(error)
            .map(|((of, after), error)| (of, after, error)))
        .ok_or_else(invalid)?;
        Ok((of == rank).then(|| Self {
            left: AtomicI64::new(after),
            error,
            times: AtomicI64::new(times),
        }))
    }
}

/// What DTRAIN_FAULT begins with where a write is to fail.
pub(crate) const WRITE_FAULT: &str = "write:";

impl Disk for FaultyDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        SystemDisk.create(path, bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = bytes.len() as i64;
        let left = self.left.fetch_sub(length, Ordering::Relaxed);
        if left >= length || self.times.load(Ordering::Relaxed) == 0 {
            return SystemDisk.write_at(file, bytes, offset);
        }
        self.times.fetch_sub(1, Ordering::Relaxed);
        // What was written before the failure stays, as on a disk.
        let some = usize::try_from(left).unwrap_or(0);
        SystemDisk.write_at(file, &bytes[..some], offset)?;
        Err(self.error.into())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        SystemDisk.sync(file)
    }
}
