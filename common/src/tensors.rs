//! Files of tensors: reading the header of a safetensors file strictly, writing one, and the types that numbers have in them.
//! No tensor is ever held here: whoever wants its values reads the range that the header names.
//!
//! A file is 8 bytes with the length of the header, the header (JSON: name, type, shape and place of each tensor), and the
//! values without gaps; `docs/checkpoint-format.md` has it byte by byte.

mod dtype;
mod header;
mod round;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use dtype::Dtype;
pub use header::{HeaderError, Tensor, header, header_with};
pub use round::{Floats, convert};

/// The length field at the start of a file.
const PREFIX_BYTES: u64 = 8;
/// The longest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The start of a zip, which PyTorch's own files are.
const ZIP_MARK: &[u8] = b"PK\x03\x04";

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is none of this format, or it is damaged.
    #[error("{} is not a sound safetensors file: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: HeaderError,
    },
}

/// An open safetensors file whose header has been read and checked against its length.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    data_start: u64,
    tensors: Vec<Tensor>,
}

impl TensorFile {
    /// Opens a file and checks all of its header. No value is read, and no more memory is taken than the file is long.
    ///
    /// # Errors
    /// [`TensorFileError`], whatever the file holds.
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let read = |source| TensorFileError::Io {
            path: path.into(),
            source,
        };
        let wrong = |source| TensorFileError::Header {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let about = file.metadata().map_err(read)?;
        if !about.is_file() {
            return Err(read(io::Error::other("it is not a regular file")));
        }
        let length = about.len();
        let mut prefix = [0; PREFIX_BYTES as usize];
        if length < PREFIX_BYTES {
            return Err(wrong(HeaderError::TooShort { bytes: length }));
        }
        file.read_exact_at(&mut prefix, 0).map_err(read)?;
        let header_bytes = header::length(prefix, length).map_err(wrong)?;
        let data_start = PREFIX_BYTES + header_bytes;
        let mut text = vec![0; header_bytes as usize];
        file.read_exact_at(&mut text, PREFIX_BYTES).map_err(read)?;
        let tensors = header::parse(&text, length - data_start).map_err(wrong)?;
        Ok(Self {
            path: path.into(),
            file,
            data_start,
            tensors,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in the order of their values in the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Fills `buffer` with the values of one of [`TensorFile::tensors`], from its byte `offset` on: little-endian, in row-major
    /// order.
    ///
    /// # Errors
    /// The file cannot be read, or the range is not within the tensor.
    pub fn read(&self, tensor: &Tensor, offset: u64, buffer: &mut [u8]) -> Result<(), TensorFileError> {
        let end = offset.checked_add(buffer.len() as u64);
        let read = if end.is_none_or(|end| end > tensor.bytes()) {
            Err(io::Error::other("beyond the end of a tensor"))
        } else {
            self.file
                .read_exact_at(buffer, self.data_start + tensor.begin + offset)
        };
        read.map_err(|source| TensorFileError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests;
