//! What writing a checkpoint asks of a file system, and a file system that fails on request.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dtrain_common::env::{DTRAIN_FAULT, EnvError};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::staging::PAGE;
use crate::step::WRITE_FAULT;

/// A file system. Several ranks may write into one file.
pub(super) trait Disk: Send + Sync {
    /// Opens a file, which is made with this size where it is not there.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Output>;

    /// Writes all bytes at this place.
    fn write_at(&self, file: &Output, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when what was written would survive a loss of power.
    fn sync(&self, file: &Output) -> io::Result<()>;
}

/// A file that is written.
pub(super) struct Output {
    file: File,
    /// The same past the system's cache, where the file system has such a way. A checkpoint is not read again as long as all goes
    /// well: in the cache it would drive out the data set, and take a copy and as much memory again.
    direct: Option<File>,
}

/// The one of the system.
pub(super) struct SystemDisk;

/// Bytes that are written in one go.
const CHUNK: usize = 16 << 20;

/// Less is not worth a way of its own.
const LEAST_DIRECT: usize = 256 << 10;

impl Disk for SystemDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Output> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let file = options.open(path)?;
        // A disk without room says so before anything is written.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        // One that an earlier write has left may be longer.
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        Ok(Output {
            file,
            direct: direct.ok(),
        })
    }

    fn write_at(&self, output: &Output, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Output { file, direct } = output;
        let (head, pages) = to_whole_pages(bytes, offset);
        let Some(direct) = direct.as_ref().filter(|_| pages >= LEAST_DIRECT) else {
            return file.write_all_at(bytes, offset);
        };
        let (head, rest) = bytes.split_at(head);
        let (pages, tail) = rest.split_at(pages);
        file.write_all_at(head, offset)?;
        let mut offset = offset + head.len() as u64;
        for chunk in pages.chunks(CHUNK) {
            match direct.write_all_at(chunk, offset) {
                // A disk with larger blocks, or a file system that has changed its mind.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    file.write_all_at(chunk, offset)?;
                }
                other => other?,
            }
            offset += chunk.len() as u64;
        }
        file.write_all_at(tail, offset)
    }

    fn sync(&self, output: &Output) -> io::Result<()> {
        output.file.sync_all()
    }
}

/// How many of the bytes come before the first whole page of the file, and how many are whole pages; none are where the memory
/// begins at another place of a page than they do in the file.
fn to_whole_pages(bytes: &[u8], offset: u64) -> (usize, usize) {
    let behind = (offset % PAGE as u64) as usize;
    let head = ((PAGE - behind) % PAGE).min(bytes.len());
    if bytes.as_ptr().addr() % PAGE != behind {
        return (head, 0);
    }
    (head, (bytes.len() - head) / PAGE * PAGE)
}

/// One on which a rank's writing fails or stops for a while after so many bytes, for tests:
/// `DTRAIN_FAULT=write:rank=1,after=4096,error=ENOSPC`, or `pause=5s` instead of an error.
pub(super) struct FaultyDisk {
    left: AtomicI64,
    fault: WriteFault,
    /// How many times it fails; the disk is whole again then.
    times: AtomicI64,
}

#[derive(Clone, Copy)]
enum WriteFault {
    Error(Errno),
    Pause(Duration),
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
            expected: "such as write:rank=1,after=4096,error=ENOSPC, or error=EIO or pause=5s, and optionally times",
        };
        let (mut of, mut after, mut fault, mut times) = (None, None, None, 1);
        for word in words.split(',') {
            let (key, text) = word.split_once('=').ok_or_else(invalid)?;
            match key {
                "rank" => of = text.parse().ok(),
                "after" => after = text.parse().ok(),
                "times" => times = text.parse().map_err(|_| invalid())?,
                "error" => {
                    fault = match text {
                        "ENOSPC" => Some(WriteFault::Error(Errno::NOSPC)),
                        "EIO" => Some(WriteFault::Error(Errno::IO)),
                        _ => None,
                    };
                }
                "pause" => {
                    let seconds = text.strip_suffix('s').and_then(|text| text.parse().ok());
                    fault = seconds.map(|seconds| WriteFault::Pause(Duration::from_secs(seconds)));
                }
                _ => return Err(invalid()),
            }
        }
        let (of, after, fault): (usize, i64, WriteFault) = (of
            .zip(after)
            .zip(fault)
            .map(|((of, after), fault)| (of, after, fault)))
        .ok_or_else(invalid)?;
        Ok((of == rank).then(|| Self {
            left: AtomicI64::new(after),
            fault,
            times: AtomicI64::new(times),
        }))
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Output> {
        SystemDisk.create(path, bytes)
    }

    fn write_at(&self, file: &Output, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = bytes.len() as i64;
        let left = self.left.fetch_sub(length, Ordering::Relaxed);
        if left >= length || self.times.load(Ordering::Relaxed) == 0 {
            return SystemDisk.write_at(file, bytes, offset);
        }
        self.times.fetch_sub(1, Ordering::Relaxed);
        let error = match self.fault {
            WriteFault::Error(error) => error,
            WriteFault::Pause(pause) => {
                std::thread::sleep(pause);
                return SystemDisk.write_at(file, bytes, offset);
            }
        };
        // What was written before the failure stays, as on a disk.
        let some = usize::try_from(left).unwrap_or(0);
        SystemDisk.write_at(file, &bytes[..some], offset)?;
        Err(error.into())
    }

    fn sync(&self, file: &Output) -> io::Result<()> {
        SystemDisk.sync(file)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::staging::Memory;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Two writers of one file, whose ranges meet in the middle of a page, past the cache and through it.
        #[test]
        fn what_is_written_is_what_is_read(cut in 0usize..1_200_000, shift in prop_oneof![Just(0), 1usize..64]) {
            let bytes = 1_200_000;
            let mut memory = Memory::of(bytes + 2 * PAGE).unwrap();
            let content: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let folder = tempfile::tempdir_in(".").unwrap();
            let path = folder.path().join("file");
            for range in [0..cut, cut..bytes] {
                // Shifted, memory and file do not agree, and no page is written past the cache.
                let start = range.start % PAGE + shift;
                let place = start..start + range.len();
                memory[place.clone()].copy_from_slice(&content[range.clone()]);
                let output = SystemDisk.create(&path, bytes as u64).unwrap();
                SystemDisk.write_at(&output, &memory[place], range.start as u64).unwrap();
                SystemDisk.sync(&output).unwrap();
            }
            prop_assert!(std::fs::read(&path).unwrap() == content);
        }
    }

    #[test]
    fn a_file_that_a_longer_write_has_left_gets_its_size() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        for bytes in [10, 0, 20] {
            let output = SystemDisk.create(&path, bytes).unwrap();
            SystemDisk.write_at(&output, &vec![1; bytes as usize], 0).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), vec![1; bytes as usize]);
        }
    }

    #[test]
    fn pages_are_those_of_the_file_and_of_the_memory() {
        let memory = Memory::of(4 * PAGE).unwrap();
        let whole = |range: std::ops::Range<usize>, offset| to_whole_pages(&memory[range], offset);
        let page = PAGE as u64;
        assert_eq!(whole(0..4 * PAGE, 3 * page), (0, 4 * PAGE));
        assert_eq!(whole(10..4 * PAGE, page + 10), (PAGE - 10, 3 * PAGE));
        assert_eq!(whole(10..4 * PAGE - 1, 10), (PAGE - 10, 2 * PAGE));
        assert_eq!(whole(10..20, 10), (10, 0));
        assert_eq!(whole(0..4 * PAGE, 8).1, 0);
        assert_eq!(whole(0..0, 8), (0, 0));
    }
}
