//! Files of a checkpoint that several ranks write at once; tests can make writes fail.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use std::{fs, io};

use dtrain_common::env::{DTRAIN_FAULT, EnvError};
use dtrain_common::files::sync;
use dtrain_common::trace::{self, Kind};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::background::lower_priority;
use super::copying::CompleteCopy;
use super::error::CheckpointError;
use super::layout::Digest;
use super::memory::PAGE;
use crate::faults::WRITE_FAULT;

pub(super) struct Output {
    file: File,
    /// The same file past the page cache, if the file system supports that. A checkpoint is rarely read
    /// again: in the cache it would displace the data set, and cost a copy and as much memory again.
    direct: Option<File>,
}

/// Bytes of one write.
const CHUNK: usize = 16 << 20;

/// Smaller writes gain nothing from direct access.
const MIN_DIRECT: usize = 256 << 10;

impl Output {
    /// Opens a file, or creates it with this size.
    pub(super) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let file = options.open(path)?;
        // If the disk is full, this fails before anything is written.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        // A file left by an earlier write may be longer.
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        Ok(Self { file, direct: direct.ok() })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Self { file, direct } = self;
        let (head, pages) = split_at_pages(bytes, offset);
        let Some(direct) = direct.as_ref().filter(|_| pages >= MIN_DIRECT) else {
            return file.write_all_at(bytes, offset);
        };
        let (head, rest) = bytes.split_at(head);
        let (pages, tail) = rest.split_at(pages);
        file.write_all_at(head, offset)?;
        let mut offset = offset + head.len() as u64;
        for chunk in pages.chunks(CHUNK) {
            match direct.write_all_at(chunk, offset) {
                // The disk has larger blocks, or the file system rejects direct access after all.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    file.write_all_at(chunk, offset)?;
                }
                other => other?,
            }
            offset += chunk.len() as u64;
        }
        file.write_all_at(tail, offset)
    }

    /// Returns when the written data would survive a power failure.
    pub(super) fn sync(&self) -> io::Result<()> {
        sync(&self.file).map(drop)
    }
}

/// Returns the number of bytes before the file's first whole page, and of bytes in whole pages. The latter is
/// 0 if memory and file are aligned differently.
fn split_at_pages(bytes: &[u8], offset: u64) -> (usize, usize) {
    let behind = (offset % PAGE as u64) as usize;
    let head = ((PAGE - behind) % PAGE).min(bytes.len());
    if bytes.as_ptr().addr() % PAGE != behind {
        return (head, 0);
    }
    (head, (bytes.len() - head) / PAGE * PAGE)
}

/// The file system. For tests, a rank's writes fail or pause after a number of bytes:
/// `DTRAIN_FAULT=write:rank=1,after=4096,error=ENOSPC`, or `pause=5s` instead of an error.
pub(super) struct Disk(Option<Fault>);

struct Fault {
    left: AtomicI64,
    /// How many times the fault occurs; then the disk works again.
    times: AtomicI64,
    effect: Effect,
}

enum Effect {
    Error(Errno),
    Pause(Duration),
}

impl Disk {
    /// Reads the fault for `rank` from DTRAIN_FAULT, if any.
    pub(super) fn from_env(rank: usize) -> Result<Self, EnvError> {
        let value = std::env::var(DTRAIN_FAULT).unwrap_or_default();
        let Some(words) = value.strip_prefix(WRITE_FAULT) else { return Ok(Self(None)) };
        let (of, fault) = Fault::parse(words).ok_or_else(|| EnvError::Invalid {
            name: DTRAIN_FAULT,
            value: value.clone(),
            expected: "such as write:rank=1,after=4096,error=ENOSPC, or error=EIO or pause=5s, and optionally times",
        })?;
        Ok(Self((of == rank).then_some(fault)))
    }

    pub(super) fn write_at(&self, file: &Output, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(fault) = &self.0 else { return file.write_at(bytes, offset) };
        let length = bytes.len() as i64;
        let left = fault.left.fetch_sub(length, Ordering::Relaxed);
        if left >= length || fault.times.load(Ordering::Relaxed) == 0 {
            return file.write_at(bytes, offset);
        }
        fault.times.fetch_sub(1, Ordering::Relaxed);
        match fault.effect {
            Effect::Pause(pause) => {
                std::thread::sleep(pause);
                file.write_at(bytes, offset)
            }
            Effect::Error(error) => {
                // As on a disk, bytes before the failure stay.
                let some = usize::try_from(left).unwrap_or(0);
                file.write_at(&bytes[..some], offset)?;
                Err(error.into())
            }
        }
    }
}

impl Fault {
    fn parse(words: &str) -> Option<(usize, Self)> {
        let (mut rank, mut after, mut effect, mut times) = (None, None, None, 1);
        for word in words.split(',') {
            match word.split_once('=')? {
                ("rank", text) => rank = Some(text.parse().ok()?),
                ("after", text) => after = Some(text.parse().ok()?),
                ("times", text) => times = text.parse().ok()?,
                ("error", "ENOSPC") => effect = Some(Effect::Error(Errno::NOSPC)),
                ("error", "EIO") => effect = Some(Effect::Error(Errno::IO)),
                ("pause", text) => {
                    effect = Some(Effect::Pause(Duration::from_secs(text.strip_suffix('s')?.parse().ok()?)));
                }
                _ => return None,
            }
        }
        let fault = Self { left: AtomicI64::new(after?), times: AtomicI64::new(times), effect: effect? };
        Some((rank?, fault))
    }
}

/// Writes the copy into `folder`, creating it if missing. Another thread computes the checksums of its parts.
pub(super) fn write(
    copied: &CompleteCopy,
    folder: &Path,
    disk: &Disk,
) -> Result<Vec<Digest>, CheckpointError> {
    let _write = trace::span(Kind::Checkpoint, "write a checkpoint");
    std::thread::scope(|scope| {
        let hashing = scope.spawn(|| {
            lower_priority();
            checksums(copied)
        });
        let written = write_files(copied, folder, disk);
        let digests = hashing.join().map_err(|_| CheckpointError::Writer)?;
        written.and(digests)
    })
}

/// Returns the checksums of the copy's parts.
pub(super) fn checksums(copied: &CompleteCopy) -> Result<Vec<Digest>, CheckpointError> {
    let parts = copied.parts.iter();
    Ok(parts.map(|part| blake3::hash(copied.bytes_of(part)).into()).collect())
}

fn write_files(copied: &CompleteCopy, folder: &Path, disk: &Disk) -> Result<(), CheckpointError> {
    fs::create_dir_all(folder).map_err(CheckpointError::io("create the folder", folder))?;
    for (layout, parts) in copied.by_file() {
        let path = folder.join(&layout.name);
        let file = Output::create(&path, layout.bytes).map_err(CheckpointError::io("create", &path))?;
        for part in parts {
            disk.write_at(&file, copied.bytes_of(part), part.offset)
                .map_err(CheckpointError::io("write", &path))?;
        }
        file.sync().map_err(CheckpointError::io("sync", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::memory::Memory;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Two writers of one file whose ranges meet inside a page, with and without the page cache.
        #[test]
        fn reads_return_the_written_bytes(cut in 0usize..1_200_000, shift in prop_oneof![Just(0), 1usize..64]) {
            let bytes = 1_200_000;
            let mut memory = Memory::allocate(bytes + 2 * PAGE).unwrap();
            let content: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let folder = tempfile::tempdir_in(".").unwrap();
            let path = folder.path().join("file");
            for range in [0..cut, cut..bytes] {
                // With a shift, memory and file are aligned differently, and no page is written directly.
                let start = range.start % PAGE + shift;
                let aligned = start..start + range.len();
                memory[aligned.clone()].copy_from_slice(&content[range.clone()]);
                let output = Output::create(&path, bytes as u64).unwrap();
                output.write_at(&memory[aligned], range.start as u64).unwrap();
                output.sync().unwrap();
            }
            prop_assert!(std::fs::read(&path).unwrap() == content);
        }
    }

    #[test]
    fn a_longer_file_is_truncated() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        for bytes in [10, 0, 20] {
            let output = Output::create(&path, bytes).unwrap();
            output.write_at(&vec![1; bytes as usize], 0).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), vec![1; bytes as usize]);
        }
    }

    #[test]
    fn pages_are_aligned_in_file_and_memory() {
        let memory = Memory::allocate(4 * PAGE).unwrap();
        let whole = |range: std::ops::Range<usize>, offset| split_at_pages(&memory[range], offset);
        let page = PAGE as u64;
        assert_eq!(whole(0..4 * PAGE, 3 * page), (0, 4 * PAGE));
        assert_eq!(whole(10..4 * PAGE, page + 10), (PAGE - 10, 3 * PAGE));
        assert_eq!(whole(10..4 * PAGE - 1, 10), (PAGE - 10, 2 * PAGE));
        assert_eq!(whole(10..20, 10), (10, 0));
        assert_eq!(whole(0..4 * PAGE, 8).1, 0);
        assert_eq!(whole(0..0, 8), (0, 0));
    }
}
