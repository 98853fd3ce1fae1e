//! The files of a checkpoint, and the check of their content.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::checksum::Checksum;
use super::error::{ManifestError, failed};
use serde::{Deserialize, Serialize};

/// One file of a checkpoint. In JSON it has a checksum if one rank wrote all of it, else `parts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FileEntryJson", into = "FileEntryJson")]
pub struct FileEntry {
    /// Plain file name within the checkpoint's folder.
    pub name: String,
    pub bytes: u64,
    /// The parts that the ranks wrote, end to end; at least one, and together as long as the file.
    pub parts: Vec<Part>,
}

/// A part of a file and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub bytes: u64,
    #[serde(flatten)]
    pub checksum: Checksum,
}

#[derive(Serialize, Deserialize)]
struct FileEntryJson {
    name: String,
    bytes: u64,
    #[serde(flatten)]
    checksum: Option<Checksum>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

impl From<FileEntryJson> for FileEntry {
    fn from(FileEntryJson { name, bytes, checksum, mut parts }: FileEntryJson) -> Self {
        // A file with a checksum and parts fails the check: its parts are longer than the file.
        parts.extend(checksum.map(|checksum| Part { bytes, checksum }));
        Self { name, bytes, parts }
    }
}

impl From<FileEntry> for FileEntryJson {
    fn from(FileEntry { name, bytes, mut parts }: FileEntry) -> Self {
        let is_whole = parts.len() == 1 && parts[0].bytes == bytes;
        let whole = parts.pop_if(|_| is_whole);
        Self { name, bytes, checksum: whole.map(|part| part.checksum), parts }
    }
}

impl FileEntry {
    /// Computes the entry of a file that one process has written.
    pub fn of(path: &Path, name: &str) -> io::Result<Self> {
        let (bytes, checksum) = Checksum::Blake3(String::new()).recompute(File::open(path)?, |_| ())?;
        Ok(Self { name: name.into(), bytes, parts: vec![Part { bytes, checksum }] })
    }

    /// Checks the form, as [`super::Manifest::parse`] and `write` do for the manifest at `path`.
    pub(super) fn check(&self, path: &Path) -> Result<(), ManifestError> {
        let Self { name, bytes, parts } = self;
        let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.bytes));
        if parts.is_empty() || sum != Some(*bytes) {
            return Err(ManifestError::Parts(path.into(), name.clone(), *bytes));
        }
        match parts.iter().find(|part| !part.checksum.is_well_formed()) {
            None => Ok(()),
            Some(part) => {
                let digits = part.checksum.digits().to_owned();
                Err(ManifestError::ChecksumForm(path.into(), name.clone(), digits))
            }
        }
    }

    pub(super) fn check_size(&self, dir: &Path) -> Result<(), ManifestError> {
        let path = dir.join(&self.name);
        let meta = std::fs::metadata(&path).map_err(failed("read", &path))?;
        if !meta.is_file() {
            return Err(failed("read", &path)(io::Error::other("not a file")));
        }
        if meta.len() != self.bytes {
            return Err(ManifestError::Size { path, expected: self.bytes, got: meta.len() });
        }
        Ok(())
    }
}

/// Returns the errors in the content of these files, in their order. With `first_only`, checking stops after
/// the first error. Calls `read` with the bytes of each read.
pub(super) fn errors(
    files: &[FileEntry],
    dir: &Path,
    first_only: bool,
    read: impl Fn(u64) + Sync,
) -> Vec<ManifestError> {
    let mut slices = Vec::new();
    for entry in files {
        let mut offset = 0;
        for part in &entry.parts {
            slices.push(Slice { entry, part, offset });
            offset += part.bytes;
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, is_enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let check_some = || {
        let taken = std::iter::from_fn(|| {
            if is_enough.load(Ordering::Relaxed) {
                return None;
            }
            let at = next.fetch_add(1, Ordering::Relaxed);
            let checked = slices.get(at)?.check(dir, &read);
            is_enough.fetch_or(first_only && checked.is_err(), Ordering::Relaxed);
            Some(checked.err().map(|error| (at, error)))
        });
        taken.flatten().collect::<Vec<_>>()
    };
    let mut found = std::thread::scope(|scope| {
        let others = 1..threads.min(slices.len());
        let others: Vec<_> = others.map(|_| scope.spawn(check_some)).collect();
        let mut found = check_some();
        for thread in others {
            found.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        found
    });
    found.sort_unstable_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, error)| error).collect()
}

struct Slice<'a> {
    entry: &'a FileEntry,
    part: &'a Part,
    offset: u64,
}

impl Slice<'_> {
    fn check(&self, dir: &Path, read: &(impl Fn(u64) + Sync)) -> Result<(), ManifestError> {
        let Self { entry, part, offset } = *self;
        let path = dir.join(&entry.name);
        let digest = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            part.checksum.recompute(file.take(part.bytes), read)
        };
        let (bytes, checksum) = digest().map_err(failed("read", &path))?;
        if bytes != part.bytes {
            return Err(ManifestError::Size { path, expected: entry.bytes, got: offset + bytes });
        }
        if checksum != part.checksum {
            let (range, whole) = (offset..offset + bytes, bytes == entry.bytes);
            return Err(ManifestError::Checksum { path, range, whole });
        }
        Ok(())
    }
}
