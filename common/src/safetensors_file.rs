//! Safetensors files: opens them, checks their headers and writes headers. Keeps no values in memory.
//!
//! A file is 8 bytes with the length of the header, the header (JSON: name, dtype, shape and offsets of each
//! tensor), and the data. Every size is checked against the file's length before any data is read.

use crate::content::Content;
use rustix::fs::OFlags;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

pub use safetensors::Dtype;

/// Bytes of the length field at the start of a file.
pub const PREFIX_BYTES: u64 = 8;

/// The largest header that the format allows.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum SafetensorsError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    /// The file has another format.
    #[error("it is {0}")]
    Foreign(Content),
    /// The file ends in its length field.
    #[error("it has {0} bytes, fewer than the {PREFIX_BYTES} of its length field")]
    Short(u64),
    /// The header is longer than the bytes that follow its length field, or than the format allows.
    #[error(
        "its first {PREFIX_BYTES} bytes announce a header of {announced} bytes, and {}",
        if announced > left { format!("{left} follow") } else { format!("the format allows {MAX_HEADER_BYTES}") }
    )]
    HeaderLength { announced: u64, left: u64 },
    /// The header is no JSON, or its tensors overlap, leave gaps, or do not have the bytes of their shapes.
    #[error("its header cannot be read: {0}")]
    Header(serde_json::Error),
    /// The data has another length than the header describes.
    #[error("its tensors take {described} bytes and it holds {held}; it is truncated or too long")]
    DataLength { data_start: u64, described: u64, held: u64 },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    pub name: String,
    pub dtype: Dtype,
    /// Sizes of the dimensions, outermost first; empty for a single number.
    pub shape: Vec<usize>,
    /// Offset in bytes from the end of the header.
    begin: u64,
    pub bytes: u64,
}

impl StoredTensor {
    /// Creates a tensor without offset; `None` if its bytes overflow or its elements are less than a byte.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<usize>) -> Option<Self> {
        let mut sizes = shape.iter();
        let elements = sizes.try_fold(1_u64, |product, size| product.checked_mul(*size as u64))?;
        let bits = elements.checked_mul(dtype.bitsize() as u64)?;
        (dtype.bitsize() >= 8).then_some(Self { name: name.into(), dtype, bytes: bits / 8, shape, begin: 0 })
    }

    /// Returns the size of an element in bytes.
    pub fn width(&self) -> u64 {
        self.dtype.bitsize() as u64 / 8
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    /// Returns whether the elements are floating-point numbers that PyTorch computes with.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
    }
}

/// An open file with a checked header.
#[derive(Debug)]
pub struct SafetensorsFile {
    pub path: PathBuf,
    file: File,
    data_start: u64,
    /// In the order of their offsets.
    pub tensors: Vec<StoredTensor>,
}

impl SafetensorsFile {
    /// Opens a file and checks its whole header against the file's length.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        // Without waiting for the writer of a named pipe.
        let options = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(options).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(SafetensorsError::NotRegular);
        }
        let mut start = [0; PREFIX_BYTES as usize + 1];
        let known = about.len().min(start.len() as u64) as usize;
        file.read_exact_at(&mut start[..known], 0)?;
        let [prefix @ .., brace] = start;
        let announced = u64::from_le_bytes(prefix);
        // First what the file is, then what is wrong with it: the first bytes of any file are a number.
        let may_be_header = announced <= MAX_HEADER_BYTES && (known <= prefix.len() || brace == b'{');
        // A safetensors file of a damaged length is not foreign.
        let foreign = || Content::of_file(path).filter(|content| *content != Content::Safetensors);
        if !may_be_header && let Some(content) = foreign() {
            return Err(SafetensorsError::Foreign(content));
        }
        let left = about.len().checked_sub(PREFIX_BYTES).ok_or(SafetensorsError::Short(about.len()))?;
        if announced > left.min(MAX_HEADER_BYTES) {
            return Err(SafetensorsError::HeaderLength { announced, left });
        }
        let mut header = vec![0; announced as usize];
        file.read_exact_at(&mut header, PREFIX_BYTES)?;
        // Deserialising checks that tensors are adjacent and as long as their shapes and dtypes require.
        let header: Metadata = serde_json::from_slice(&header).map_err(SafetensorsError::Header)?;
        let (data_start, described) = (PREFIX_BYTES + announced, header.data_len() as u64);
        let held = left - announced;
        if described != held {
            return Err(SafetensorsError::DataLength { data_start, described, held });
        }
        let tensor = |name: String| {
            let TensorInfo { dtype, shape, data_offsets: (begin, end) } = header.info(&name)?.clone();
            Some(StoredTensor { name, dtype, shape, begin: begin as u64, bytes: (end - begin) as u64 })
        };
        let tensors = header.offset_keys().into_iter().filter_map(tensor).collect();
        Ok(Self { path: path.to_owned(), file, data_start, tensors })
    }

    /// Fills `buffer` with values of one of the file's tensors, from the tensor's byte `offset` on.
    pub fn read(&self, tensor: &StoredTensor, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        match end.is_some_and(|end| end <= tensor.bytes) {
            true => self.file.read_exact_at(buffer, self.data_start + tensor.begin + offset),
            false => Err(io::Error::other("beyond the end of a tensor")),
        }
    }
}

/// Returns a sort key: wide dtypes first, as the format's writer does, to align every tensor.
pub fn widest_first(dtype: Dtype) -> impl Ord {
    std::cmp::Reverse(dtype.bitsize())
}

/// Returns the header of a file whose tensors follow each other in this order, padded so that the values begin at
/// a multiple of 8. `metadata`: a key and a text in addition to those of PyTorch's own writer.
pub fn header<'a>(
    tensors: impl IntoIterator<Item = &'a StoredTensor>,
    metadata: Option<(&str, String)>,
) -> Result<Vec<u8>, String> {
    let mut begin = 0;
    let place = |tensor: &StoredTensor| {
        let data_offsets = (begin, begin + tensor.bytes as usize);
        begin = data_offsets.1;
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets };
        (tensor.name.clone(), info)
    };
    let places = tensors.into_iter().map(place).collect();
    // As in PyTorch's writer; some readers require it.
    let mut about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    about.extend(metadata.map(|(key, text)| (key.to_owned(), text)));
    let header = Metadata::new(Some(about), places).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&header).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(PREFIX_BYTES as usize), b' ');
    let announced = text.len() as u64;
    if announced > MAX_HEADER_BYTES {
        return Err(format!(
            "the names and shapes of the tensors need a header of {announced} bytes, and the format allows {MAX_HEADER_BYTES}"
        ));
    }
    Ok([&announced.to_le_bytes()[..], &text].concat())
}

#[cfg(test)]
mod tests;
