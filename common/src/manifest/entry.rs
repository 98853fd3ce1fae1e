//! The files of a checkpoint, and whether they are as they were written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ManifestError, io_error};

/// One file of a checkpoint. In JSON it has `sha256`, where one rank has written all of it, or `parts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
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
pub struct Part {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in lower-case hexadecimal.
    pub sha256: String,
}

/// [`FileEntry`] as it is in JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    name: String,
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

impl From<Written> for FileEntry {
    fn from(written: Written) -> Self {
        let Written {
            name,
            bytes,
            sha256,
            mut parts,
        } = written;
        // Both together do not add up to the file, which is refused.
        parts.extend(sha256.map(|sha256| Part { bytes, sha256 }));
        Self { name, bytes, parts }
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
        let sha256 = if whole {
            parts.pop().map(|part| part.sha256)
        } else {
            None
        };
        Self {
            name,
            bytes,
            sha256,
            parts,
        }
    }
}

impl FileEntry {
    /// The entry of a file that one process has written.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(path: &Path, name: &str) -> io::Result<Self> {
        let (bytes, sha256) = sha256_file(path)?;
        Ok(Self {
            name: name.into(),
            bytes,
            parts: vec![Part { bytes, sha256 }],
        })
    }

    /// Checks the form, as [`super::Manifest::parse`] and `write` do for the manifest at `path`.
    pub(super) fn check(&self, path: &Path) -> Result<(), ManifestError> {
        let Self { name, bytes, parts } = self;
        let sum = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.bytes));
        if parts.is_empty() || sum != Some(*bytes) {
            return Err(ManifestError::Parts {
                path: path.into(),
                name: name.clone(),
                bytes: *bytes,
            });
        }
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let malformed = |part: &&Part| part.sha256.len() != 64 || !part.sha256.bytes().all(digit);
        match parts.iter().find(malformed) {
            None => Ok(()),
            Some(part) => Err(ManifestError::ChecksumForm {
                path: path.into(),
                name: name.clone(),
                sha256: part.sha256.clone(),
            }),
        }
    }

    /// Checks that the file in `dir` has its size.
    pub(super) fn check_size(&self, dir: &Path) -> Result<(), ManifestError> {
        let path = dir.join(&self.name);
        let meta = std::fs::metadata(&path).map_err(|source| io_error("read", &path, source))?;
        if !meta.is_file() {
            return Err(io_error("read", &path, io::Error::other("not a file")));
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
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(slices.len());
    let next = AtomicUsize::new(0);
    let check_some = || {
        let mut outcomes = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(slice) = slices.get(at) else {
                return outcomes;
            };
            outcomes.push((at, check(slice)));
        }
    };
    let mut outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..threads).map(|_| scope.spawn(check_some)).collect();
        let mut outcomes = check_some();
        for thread in threads {
            outcomes.extend(
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
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
            digest(file.take(part.bytes), read)
        };
        let (bytes, sha256) = digest().map_err(|source| io_error("read", &path, source))?;
        if bytes != part.bytes {
            return Err(ManifestError::Size {
                path,
                expected: entry.bytes,
                got: offset + bytes,
            });
        }
        if sha256 != part.sha256 {
            return Err(ManifestError::Checksum {
                path,
                range: offset..offset + bytes,
                whole: bytes == entry.bytes,
                expected: part.sha256.clone(),
                got: sha256,
            });
        }
        Ok(())
    }
}

/// Size in bytes and SHA-256 (lower-case hexadecimal) of a file's content.
///
/// # Errors
/// When the file cannot be read.
pub fn sha256_file(path: impl AsRef<Path>) -> io::Result<(u64, String)> {
    digest(File::open(path)?, |_| ())
}

/// Size in bytes and SHA-256 of what `source` has left. `read` is told of the bytes read.
fn digest(mut source: impl Read, read: impl Fn(u64)) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
                read(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((bytes, hex(&hasher.finalize())))
}

/// A checksum in lower-case hexadecimal, as manifests have it.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
