//! A file that many threads read at any place.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// An open file, and its length when it was opened. The library's reader of files moves a cursor that clones share.
#[derive(Debug)]
pub(super) struct ReadAt {
    file: Arc<File>,
    length: u64,
}

impl ReadAt {
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { length: file.metadata()?.len(), file: Arc::new(file) })
    }

    /// Returns the open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Length for ReadAt {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for ReadAt {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(From { file: Arc::clone(&self.file), place: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            let message = format!("{length} bytes from {start} on are beyond its {} bytes", self.length);
            return Err(ParquetError::EOF(message));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads a file from a place on.
#[derive(Debug)]
pub(super) struct From {
    file: Arc<File>,
    place: u64,
}

impl Read for From {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.place)?;
        self.place += read as u64;
        Ok(read)
    }
}
