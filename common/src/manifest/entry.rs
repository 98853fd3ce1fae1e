//! The files of a checkpoint, and whether they are as they were written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::checksum::{Checksum, Fields, blake3_of};
use super::error::{ManifestError, failed};
use serde::{Deserialize, Serialize};

/// One file of a checkpoint. In JSON it has a checksum, where one rank has written all of it, or `parts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct FileEntry {
    /// Plain file name within the checkpoint's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// What each rank wrote of it, end to end; at least one, and together as long as the file.
    pub parts: Vec<Part>,
}

/// So many bytes of a file and their checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenPart", into = "WrittenPart")]
pub struct Part {
    /// Size in bytes.
    pub bytes: u64,
    /// Checksum of the content.
    pub checksum: Checksum,
}

/// [`Part`] as it is in JSON.
#[derive(Serialize, Deserialize)]
struct WrittenPart {
    bytes: u64,
    #[serde(flatten)]
    checksum: Fields,
}

impl TryFrom<WrittenPart> for Part {
    type Error = &'static str;

    fn try_from(written: WrittenPart) -> Result<Self, Self::Error> {
        let checksum = written.checksum.checksum()?;
        Ok(Self {
            bytes: written.bytes,
            checksum: checksum.ok_or("missing field `blake3` of a part")?,
        })
    }
}

impl From<Part> for WrittenPart {
    fn from(part: Part) -> Self {
        Self {
            bytes: part.bytes,
            checksum: part.checksum.into(),
        }
    }
}

/// [`FileEntry`] as it is in JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    name: String,
    bytes: u64,
    #[serde(flatten)]
    checksum: Fields,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

impl TryFrom<Written> for FileEntry {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written {
            name,
            bytes,
            checksum,
            mut parts,
        } = written;
        // Both together do not add up to the file, which is refused.
        parts.extend(checksum.checksum()?.map(|checksum| Part { bytes, checksum }));
        Ok(Self { name, bytes, parts })
    }
}

impl From<FileEntry> for Written {
    fn from(entry: FileEntry) -> Self {
        let FileEntry {
            name,
            bytes,
            mut parts,
        } = entry;
        let whole = parts.len() == 1 && parts[0].bytes == bytes;
        let own = if whole { parts.pop() } else { None };
        Self {
            name,
            bytes,
            checksum: own.map(|part| part.checksum.into()).unwrap_or_default(),
            parts,
        }
    }
}

impl FileEntry {
    /// The entry of a file that one process has written.
    pub fn of(path: &Path, name: &str) -> io::Result<Self> {
        let (bytes, checksum) = blake3_of(File::open(path)?, |_| ())?;
        Ok(Self {
            name: name.into(),
            bytes,
            parts: vec![Part { bytes, checksum }],
        })
    }

    /// Checks the form, as [`super::Manifest::parse`] and `write` do for the manifest at `path`.
    pub(super) fn check(&self, path: &Path) -> Result<(), ManifestError> {
        let Self { name, bytes, parts } = self;
        let sum = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.bytes));
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

    /// Checks that the file in `dir` has its size.
    pub(super) fn check_size(&self, dir: &Path) -> Result<(), ManifestError> {
        let path = dir.join(&self.name);
        let meta = std::fs::metadata(&path).map_err(failed("read", &path))?;
        if !meta.is_file() {
            return Err(failed("read", &path)(io::Error::other("not a file")));
        }
        if meta.len() != self.bytes {
            return Err(ManifestError::Size {
                path,
                expected: self.bytes,
                got: meta.len(),
            });
        }
        Ok(())
    }
}

/// Checks the content of all files in `dir`, several parts at a time. `read` is told of the bytes read.
pub(super) fn verify(
    files: &[FileEntry],
    dir: &Path,
    read: impl Fn(u64) + Sync,
) -> Result<(), ManifestError> {
    let failed = AtomicBool::new(false);
    let check = |slice: &Slice<'_>| {
        // Nobody asks any more what the others are like.
        if failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let checked = slice.check(dir, &read);
        failed.fetch_or(checked.is_err(), Ordering::Relaxed);
        checked
    };
    for_each_slice(files, check).into_iter().collect()
}

/// Everything that is wrong with the content of these files, in their order.
pub(super) fn damage(files: &[FileEntry], dir: &Path, read: impl Fn(u64) + Sync) -> Vec<ManifestError> {
    let checked = for_each_slice(files, |slice| slice.check(dir, &read));
    checked.into_iter().filter_map(Result::err).collect()
}

/// The outcomes of `check` for all parts of these files, in their order; it runs for several at a time.
fn for_each_slice<T: Send>(files: &[FileEntry], check: impl Fn(&Slice<'_>) -> T + Sync) -> Vec<T> {
    let mut slices = Vec::new();
    for entry in files {
        let mut offset = 0;
        for part in &entry.parts {
            slices.push(Slice { entry, part, offset });
            offset += part.bytes;
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let check_some = || {
        let taken = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            Some((at, check(slices.get(at)?)))
        });
        taken.collect::<Vec<_>>()
    };
    let mut outcomes = std::thread::scope(|scope| {
        let others = 1..threads.min(slices.len());
        let others: Vec<_> = others.map(|_| scope.spawn(check_some)).collect();
        let mut outcomes = check_some();
        for thread in others {
            let joined = thread.join();
            outcomes.extend(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcomes
    });
    outcomes.sort_unstable_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// One part of one file.
struct Slice<'a> {
    entry: &'a FileEntry,
    part: &'a Part,
    /// Where it begins in the file.
    offset: u64,
}

impl Slice<'_> {
    fn check(&self, dir: &Path, read: &(impl Fn(u64) + Sync)) -> Result<(), ManifestError> {
        let Self { entry, part, offset } = *self;
        let path = dir.join(&entry.name);
        let digest = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            part.checksum.again(file.take(part.bytes), read)
        };
        let (bytes, checksum) = digest().map_err(failed("read", &path))?;
        if bytes != part.bytes {
            return Err(ManifestError::Size {
                path,
                expected: entry.bytes,
                got: offset + bytes,
            });
        }
        if checksum != part.checksum {
            return Err(ManifestError::Checksum {
                path,
                range: offset..offset + bytes,
                whole: bytes == entry.bytes,
                expected: part.checksum.digits().to_owned(),
                got: checksum.digits().to_owned(),
            });
        }
        Ok(())
    }
}
