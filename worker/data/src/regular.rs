//! Reading of regular files only: a named pipe among the images must not hang a run.
//!
//! A file that one read holds takes three system calls: open, read, close. Nothing asks for its kind or size
//! unless that read fails or is not enough.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;

/// The first part of a file that is read for its header.
pub(super) const HEADER_BYTES: usize = 4 << 10;
/// The second part, for long profiles and previews before the header.
const LONG_HEADER_BYTES: usize = 64 << 10;
/// The least room for a whole file.
const WHOLE_BYTES: usize = 64 << 10;

/// How much of a file is read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Header,
    /// As much as `bytes` has room for.
    Whole,
}

/// Replaces `bytes` with the content of a regular file.
pub(super) fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    open_file(path)?.read_to_end(bytes)?;
    Ok(())
}

/// Opens a regular file.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    only_file(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads the beginning of a regular file into `bytes` and calls `decode`, again with more of the file as long as
/// that fails and there is more.
pub(super) fn decode<T, E: From<io::Error>>(
    path: &Path,
    first: First,
    bytes: &mut Vec<u8>,
    mut decode: impl FnMut(&[u8]) -> Result<T, E>,
) -> Result<T, E> {
    bytes.clear();
    let mut file = open(path)?;
    let room = match first {
        First::Header => {
            bytes.shrink_to(HEADER_BYTES);
            HEADER_BYTES
        }
        First::Whole => bytes.capacity().max(WHOLE_BYTES),
    };
    let is_full = read_part(&mut file, path, bytes, room)?;
    let mut failed = None;
    // A whole file that fills the room is longer.
    if first == First::Header || !is_full {
        match decode(bytes) {
            Ok(decoded) => return Ok(decoded),
            Err(error) => failed = Some(error),
        }
    }
    only_file(file.metadata()?.file_type())?;
    if first == First::Header && is_full {
        read_part(&mut file, path, bytes, LONG_HEADER_BYTES)?;
        match decode(bytes) {
            Ok(decoded) => return Ok(decoded),
            Err(error) => failed = Some(error),
        }
    }
    // Some file systems return fewer bytes than requested before the end of the file.
    let more = file.read_to_end(bytes)?;
    if bytes.len() == bytes.capacity() {
        // Otherwise every further file of this size would fill the room.
        bytes.reserve_exact(1);
    }
    match (more, failed) {
        (0, Some(error)) => Err(error),
        _ => decode(bytes),
    }
}

/// As [`decode`] for a part of a file, `(start, length)` in bytes.
pub(super) fn decode_range<T, E: From<io::Error>>(
    path: &Path,
    (start, length): (u64, u64),
    first: First,
    bytes: &mut Vec<u8>,
    mut decode: impl FnMut(&[u8]) -> Result<T, E>,
) -> Result<T, E> {
    bytes.clear();
    let file = open(path)?;
    let steps: &[u64] = match first {
        First::Header => &[HEADER_BYTES as u64, LONG_HEADER_BYTES as u64],
        First::Whole => &[],
    };
    for &step in steps.iter().filter(|step| **step < length) {
        read_range(&file, start, step, bytes)?;
        if let Ok(decoded) = decode(bytes) {
            return Ok(decoded);
        }
    }
    read_range(&file, start, length, bytes)?;
    decode(bytes)
}

/// Continues `bytes` to `length` bytes of a file from `start` on.
fn read_range(file: &File, start: u64, length: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let known = bytes.len();
    bytes.resize(length as usize, 0);
    file.read_exact_at(&mut bytes[known..], start + known as u64).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let message = "the file that holds it has become shorter; copy or download that file again";
            io::Error::new(io::ErrorKind::InvalidInput, message)
        }
        _ => error,
    })
}

/// Reads once into memory for `room` bytes, which is not zeroed before. Returns whether it is full.
fn read_part(file: &mut File, path: &Path, bytes: &mut Vec<u8>, room: usize) -> io::Result<bool> {
    bytes.reserve_exact(room.saturating_sub(bytes.len()));
    let read = rustix::io::retry_on_intr(|| rustix::io::read(&*file, spare_capacity(bytes)));
    match read {
        Ok(_) => Ok(bytes.len() >= room),
        Err(error) => Err(explain(path, error.into())),
    }
}

/// Opens a file without waiting for the writer of a named pipe.
fn open(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    opened.map_err(|error| explain(path, error))
}

/// Replaces an error by the better one that the path is no file.
fn explain(path: &Path, error: io::Error) -> io::Error {
    match fs::metadata(path).map(|meta| only_file(meta.file_type())) {
        Ok(Err(kind)) => kind,
        _ => error,
    }
}

fn only_file(kind: FileType) -> io::Result<()> {
    let found = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}, not a file; remove it")))
}

#[cfg(test)]
mod tests;
