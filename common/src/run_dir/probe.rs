//! What a run needs of its file system, tried before its first step: a training must not learn at its first checkpoint
//! that none can be kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::RunDir;
use crate::files::{self, remedy, temporary_folder};

/// What a file system lacks that a run can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Symbolic links.
    pub links: bool,
    /// Writing files and folders through to the disk.
    pub sync: bool,
}

/// Why a run cannot use a file system.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.reason(), self.remedy())]
pub struct ProbeError {
    folder: PathBuf,
    action: &'static str,
    /// Why a run needs this; empty if that is obvious.
    need: &'static str,
    #[source]
    source: io::Error,
}

impl ProbeError {
    /// Returns what failed.
    pub fn reason(&self) -> String {
        let Self { folder, action, need, source } = self;
        format!("the file system of {} cannot {action}: {source}{need}", folder.display())
    }

    /// Returns what to do.
    pub fn remedy(&self) -> &'static str {
        let of_cause = remedy(&self.source);
        // A folder that was just created may be renamed: the file system refuses it to everybody.
        let is_refused = self.source.kind() == io::ErrorKind::PermissionDenied && !self.need.is_empty();
        match of_cause.strip_prefix("; ") {
            Some(remedy) if !is_refused => remedy,
            _ => "use a folder on another disk, such as a local one",
        }
    }
}

/// Tries everything that a run does in `folder`, in a temporary folder that is removed.
pub fn probe(folder: &Path) -> Result<FileSystem, ProbeError> {
    let tried = |action, need| move |source| ProbeError { folder: folder.to_owned(), action, need, source };
    let own = temporary_folder(folder).map_err(tried("create a folder", ""))?;
    let at = |name: &str| own.path().join(name);
    let (inner, file) = (at("folder"), at("folder/file"));
    fs::create_dir(&inner).map_err(tried("create a folder", ""))?;
    let mut written = File::create(&file).map_err(tried("create a file", ""))?;
    written.write_all(b"a").map_err(tried("write a file", ""))?;
    let synced = |outcome: io::Result<bool>| outcome.map_err(tried("write files through to the disk", ""));
    let is_file_synced = synced(files::sync(&written))?;
    drop(written);
    files::write_atomic(&file, b"b").map_err(tried("replace a file", ", which every checkpoint does"))?;
    let is_folder_synced = synced(File::open(&inner).and_then(|folder| files::sync(&folder)))?;
    let append = || {
        let mut opened = OpenOptions::new().append(true).open(&file)?;
        opened.write_all(b"c")?;
        drop(opened);
        match &fs::read(&file)?[..] {
            b"bc" => Ok(()),
            other => Err(io::Error::other(format!("it has {} bytes and not 2", other.len()))),
        }
    };
    append().map_err(tried("append to a file", ", by which metrics.jsonl grows"))?;
    write_parts(&at("folder/parts"))
        .map_err(tried("write at any place of a file", ", as the ranks write their parts of a checkpoint"))?;
    let links = std::os::unix::fs::symlink("folder", at("link")).is_ok() && at("link").join("file").exists();
    let renamed = fs::rename(&inner, at("renamed")).and_then(|()| fs::metadata(at("renamed/file")));
    renamed.map_err(tried("rename a folder", ", by which a checkpoint is there whole or not at all"))?;
    Ok(FileSystem { links, sync: is_file_synced && is_folder_synced })
}

/// Writes a file of known size from its end to its start, by two descriptors.
fn write_parts(path: &Path) -> io::Result<()> {
    const FIRST: u64 = 8192;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let (one, other) = (options.open(path)?, options.open(path)?);
    one.set_len(FIRST + 1)?;
    one.write_all_at(b"b", FIRST)?;
    other.write_all_at(&[b'a'; FIRST as usize], 0)?;
    drop((one, other));
    let written = fs::read(path)?;
    match written.split_last() {
        Some((b'b', rest)) if rest == [b'a'; FIRST as usize] => Ok(()),
        _ => {
            Err(io::Error::other(format!("it has {} bytes, and not those that were written", written.len())))
        }
    }
}

impl RunDir {
    /// Tries the file systems of the run directory and of its checkpoints, which may be elsewhere.
    pub fn probe(&self) -> Result<FileSystem, ProbeError> {
        let mut found = probe(self.root())?;
        if self.checkpoints().is_dir() {
            let other = probe(&self.checkpoints())?;
            found = FileSystem { links: other.links, sync: found.sync && other.sync };
        }
        Ok(found)
    }
}
