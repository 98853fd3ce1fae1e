//! Safetensors files: reads headers strictly and writes them. No tensor is kept in memory.

use anyhow::{Context, anyhow, bail, ensure};
use dtrain_common::content::Content;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the length field at the start of a file.
const PREFIX: u64 = 8;
/// The longest header that the format allows, in bytes.
const LONGEST: u64 = 100_000_000;

/// Why a tensor file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TensorFileError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file has another format or is damaged.
    #[error("{} is not a valid safetensors file: {source:#}", path.display())]
    Header { path: PathBuf, source: anyhow::Error },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// Sizes of the dimensions, outermost first; empty for a single number.
    pub(super) shape: Vec<u64>,
    /// Offset in bytes from the end of the header.
    begin: u64,
    pub(super) bytes: u64,
}

impl Tensor {
    /// Creates a tensor without offset; `None` if its bytes overflow or its elements are less than a byte.
    pub(super) fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>) -> Option<Self> {
        let mut sizes = shape.iter();
        let elements = sizes.try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        let bits = elements.checked_mul(dtype.bitsize() as u64)?;
        (dtype.bitsize() >= 8).then_some(Self { name: name.into(), dtype, bytes: bits / 8, shape, begin: 0 })
    }
    /// Returns the size of an element in bytes.
    pub(super) fn width(&self) -> u64 {
        self.dtype.bitsize() as u64 / 8
    }

    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns whether the elements are floating-point numbers that PyTorch computes with.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
    }
}

/// Returns PyTorch's name of the type, such as `float32`.
pub(super) fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BOOL => "bool",
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::I16 => "int16",
        Dtype::U16 => "uint16",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::I32 => "int32",
        Dtype::U32 => "uint32",
        Dtype::F32 => "float32",
        Dtype::I64 => "int64",
        Dtype::U64 => "uint64",
        Dtype::F64 => "float64",
        _ => "another type",
    }
}

/// An open safetensors file with a checked header.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    file: File,
    data_start: u64,
    /// In the order of their offsets.
    pub(super) tensors: Vec<Tensor>,
}

impl TensorFile {
    /// Opens a file and checks its whole header. Does not read values.
    pub(super) fn open(path: &Path) -> Result<Self, TensorFileError> {
        let read = |source| TensorFileError::Io { path: path.into(), source };
        let wrong = |source| TensorFileError::Header { path: path.into(), source };
        let file = File::open(path).map_err(read)?;
        let about = file.metadata().map_err(read)?;
        if !about.is_file() {
            return Err(read(io::Error::other("it is not a regular file")));
        }
        let length = about.len();
        if length < PREFIX {
            let why = format!("it has {length} bytes, fewer than the {PREFIX} of its length field");
            return Err(wrong(anyhow::Error::msg(why)));
        }
        let mut prefix = [0; PREFIX as usize];
        file.read_exact_at(&mut prefix, 0).map_err(read)?;
        let header = announced(prefix, length).map_err(|error| match Content::of_file(path) {
            Some(content) if content != Content::Safetensors => {
                wrong(anyhow!("it is {content}, so it was exchanged; use another checkpoint"))
            }
            _ => wrong(error),
        })?;
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, PREFIX).map_err(read)?;
        let data_start = PREFIX + header;
        Ok(Self {
            path: path.into(),
            file,
            data_start,
            tensors: parse(&text, length - data_start).map_err(wrong)?,
        })
    }

    /// Fills `buffer` with stored values of one of the file's tensors, from its byte `offset` on.
    pub(super) fn read(
        &self,
        tensor: &Tensor,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), TensorFileError> {
        let end = offset.checked_add(buffer.len() as u64);
        let begin = self.data_start + tensor.begin;
        let read = match end.is_some_and(|end| end <= tensor.bytes) {
            true => self.file.read_exact_at(buffer, begin + offset),
            false => Err(io::Error::other("beyond the end of a tensor")),
        };
        let path = self.path.clone();
        read.map_err(|source| TensorFileError::Io { path, source })
    }
}

/// Returns the header's length from the first bytes, checked against the file's `length`.
fn announced(prefix: [u8; PREFIX as usize], length: u64) -> anyhow::Result<u64> {
    let (announced, left) = (u64::from_le_bytes(prefix), length.saturating_sub(PREFIX));
    match announced {
        _ if announced <= left && announced <= LONGEST => Ok(announced),
        _ if announced > left => {
            bail!("its first 8 bytes announce a header of {announced} bytes, and {left} follow")
        }
        _ => {
            bail!("its first 8 bytes announce a header of {announced} bytes, and the format allows {LONGEST}")
        }
    }
}

/// Returns the tensors of a header in the order of their offsets; together they must fill `data_bytes`.
fn parse(text: &[u8], data_bytes: u64) -> anyhow::Result<Vec<Tensor>> {
    let header: Metadata = serde_json::from_slice(text).context("its header cannot be read")?;
    let expected = header.data_len() as u64;
    ensure!(
        expected == data_bytes,
        "its tensors take {expected} bytes and it holds {data_bytes}; it is truncated or too long"
    );
    let names = header.offset_keys().into_iter();
    let tensors = names.filter_map(|name| {
        let TensorInfo { dtype, shape, data_offsets: (begin, end) } = header.info(&name)?;
        Some(Tensor {
            dtype: *dtype,
            shape: shape.iter().map(|size| *size as u64).collect(),
            begin: *begin as u64,
            bytes: (end - begin) as u64,
            name,
        })
    });
    Ok(tensors.collect())
}

/// Returns the header of a file with these tensors, padded so that the values begin at a multiple of 8.
/// `metadata`: a key and a text in addition to those of PyTorch's own writer.
pub(super) fn header<'a>(
    tensors: impl IntoIterator<Item = &'a Tensor>,
    metadata: Option<(&str, String)>,
) -> anyhow::Result<Vec<u8>> {
    let mut about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    about.extend(metadata.map(|(key, text)| (key.to_owned(), text)));
    let mut begin = 0;
    let place = |tensor: &Tensor| {
        let data_offsets = (begin, begin + tensor.bytes as usize);
        begin = data_offsets.1;
        let shape = tensor.shape.iter().map(|size| *size as usize).collect();
        (tensor.name.clone(), TensorInfo { dtype: tensor.dtype, shape, data_offsets })
    };
    let places = tensors.into_iter().map(place).collect();
    let mut text = serde_json::to_vec(&Metadata::new(Some(about), places)?)?;
    text.resize(text.len().next_multiple_of(PREFIX as usize), b' ');
    let announced = text.len() as u64;
    ensure!(announced <= LONGEST, "it needs a header of {announced} bytes, and the format allows {LONGEST}");
    Ok([&announced.to_le_bytes()[..], &text].concat())
}

#[cfg(test)]
mod tests;
