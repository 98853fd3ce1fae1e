//! Safetensors files: headers, and reading tensors one by one, which needs memory for only one.
//!
//! Weights of others may be sharded: an index lists the file of each tensor.
//!
//! A file is 8 bytes with the length of the header, the header (JSON: name, dtype, shape and offsets of each
//! tensor), and the data. Every size is checked against the file's length before any data is read.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dtrain_common::content::Content;
use dtrain_torch_shim::copy::fill;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, TchError, Tensor};

use super::dtype::kind_of;
use super::error::{ModelError, WeightsError, WeightsProblem};
use super::foreign::foreign;
use super::shards::Index;

#[cfg(target_endian = "big")]
compile_error!(
    "safetensors files are little-endian, and tensors are copied from and to them without conversion"
);

/// The length field at the start of a file.
const PREFIX_BYTES: u64 = 8;

/// The largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An open file of named tensors, or several that an index lists. Their headers have been read and checked.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    parts: Vec<Part>,
    pub(super) tensors: BTreeMap<String, Stored>,
}

/// One file of tensors.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    data_start: u64,
}

/// Where a tensor is, with its dtype and shape.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    part: usize,
    pub(super) info: TensorInfo,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let (part, tensors) = open_part(path)?;
        let stored = |(name, info)| (name, Stored { part: 0, info });
        Ok(Self {
            path: path.to_owned(),
            parts: vec![part],
            tensors: tensors.into_iter().map(stored).collect(),
        })
    }

    /// Opens a file of weights that somebody else wrote, or the files that an index of sharded weights lists.
    pub fn open_weights(path: &Path) -> Result<Self, WeightsError> {
        match Content::of_file(path) {
            Some(Content::WeightIndex) => Self::open_shards(path),
            _ => Self::open(path),
        }
    }

    fn open_shards(path: &Path) -> Result<Self, WeightsError> {
        let wrong = |problem| WeightsError::new(path, problem);
        let index = Index::read(path)?;
        let mut file = Self { path: path.to_owned(), parts: Vec::new(), tensors: BTreeMap::new() };
        for (name, wanted) in index.shards {
            let (part, mut tensors) = open_part(&path.with_file_name(&name))?;
            for tensor in wanted {
                let Some(info) = tensors.remove(&tensor) else {
                    return Err(wrong(WeightsProblem::NotInShard(tensor, name)));
                };
                file.tensors.insert(tensor, Stored { part: file.parts.len(), info });
            }
            // The index decides between two tensors of one name, but leaves none out.
            if let Some(tensor) = tensors.into_keys().find(|tensor| !index.names.contains(tensor)) {
                return Err(wrong(WeightsProblem::NotInIndex(tensor, name)));
            }
            file.parts.push(part);
        }
        Ok(file)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all tensors, in alphabetical order.
    pub fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    /// Returns dtype and shape of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|stored| &stored.info)
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<Vec<i64>, ModelError> {
        self.describe(name).map(|(_, shape)| shape)
    }

    fn describe(&self, name: &str) -> Result<(&Stored, Vec<i64>), ModelError> {
        let stored = self.tensors.get(name);
        let stored = stored.ok_or_else(|| self.error(WeightsProblem::NoTensor(name.to_owned())))?;
        let sizes = stored.info.shape.iter().map(|&size| i64::try_from(size));
        let shape = sizes.collect::<Result<_, _>>().map_err(|_| {
            let reason = format!("`{name}` has the invalid shape {:?}", stored.info.shape);
            self.error(WeightsProblem::Format(reason))
        })?;
        Ok((stored, shape))
    }

    pub(super) fn error(&self, problem: WeightsProblem) -> WeightsError {
        WeightsError::new(&self.path, problem)
    }

    /// Reads one tensor to the CPU, in the file's dtype.
    pub fn read(&self, name: &str) -> Result<Tensor, ModelError> {
        let (stored, shape) = self.describe(name)?;
        let dtype = stored.info.dtype;
        let kind = kind_of(dtype).ok_or_else(|| self.error(WeightsProblem::Dtype(name.to_owned(), dtype)))?;
        let mut value = Tensor::f_empty(shape, (kind, Device::Cpu))?;
        if !self.fill(stored, &mut value)? {
            return Err(TchError::Convert(format!("new memory for `{name}` is not contiguous")).into());
        }
        Ok(value)
    }

    /// Reads one tensor into `target`, which has the same shape, and converts it to its dtype. Autograd
    /// records nothing. If dtypes and layouts agree, it reads directly into `target`.
    pub fn read_into(&self, name: &str, target: &Tensor) -> Result<(), ModelError> {
        let (stored, shape) = self.describe(name)?;
        let mut target = target.f_detach()?;
        let agrees = kind_of(stored.info.dtype) == Some(target.f_kind()?) && target.size() == shape;
        if !(agrees && self.fill(stored, &mut target)?) {
            tch::no_grad(|| target.f_copy_(&self.read(name)?).map_err(ModelError::from))?;
        }
        Ok(())
    }

    /// Fills a tensor of equal dtype and number of elements. Returns false if its memory is not contiguous.
    fn fill(&self, stored: &Stored, tensor: &mut Tensor) -> Result<bool, ModelError> {
        let part = &self.parts[stored.part];
        let start = part.data_start + stored.info.data_offsets.0 as u64;
        // `open` has checked that the file has the bytes that shape and dtype require.
        let filled = fill(tensor, |bytes| part.file.read_exact_at(bytes, start));
        let read = |error| WeightsError::new(&part.path, WeightsProblem::Read(error));
        Ok(filled.transpose().map_err(read)?.is_some())
    }
}

/// Opens a file and checks its header against its length. Returns its tensors.
fn open_part(path: &Path) -> Result<(Part, BTreeMap<String, TensorInfo>), WeightsError> {
    let wrong = |problem| WeightsError::new(path, problem);
    let read = |source| wrong(WeightsProblem::Read(source));
    let format = |reason: String| wrong(WeightsProblem::Format(reason));

    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(format("it is not a regular file".to_owned()));
    }
    let actual = metadata.len();
    let mut start = [0u8; PREFIX_BYTES as usize + 1];
    let known = actual.min(start.len() as u64) as usize;
    file.read_exact_at(&mut start[..known], 0).map_err(read)?;
    let [prefix @ .., brace] = start;
    let header_bytes = u64::from_le_bytes(prefix);
    // First what the file is, then what is wrong with it: the first bytes of any file are a number.
    let may_be_header = header_bytes <= MAX_HEADER_BYTES && (known <= prefix.len() || brace == b'{');
    // A safetensors file of a damaged length is not foreign.
    let foreign_content = || Content::of_file(path).filter(|content| *content != Content::Safetensors);
    if !may_be_header && let Some(content) = foreign_content() {
        return Err(wrong(foreign(content, path)));
    }
    if actual < PREFIX_BYTES {
        return Err(format(format!("it has {actual} bytes, too few for its length field of {PREFIX_BYTES}")));
    }
    if header_bytes > MAX_HEADER_BYTES {
        return Err(format(format!("a header of {header_bytes} bytes exceeds the format's limit")));
    }
    let data_start = PREFIX_BYTES + header_bytes;
    if actual < data_start {
        return Err(size(path, actual, data_start));
    }
    let mut header = vec![0u8; header_bytes as usize];
    file.read_exact_at(&mut header, PREFIX_BYTES).map_err(read)?;
    // Deserialising checks that tensors are adjacent and as long as their shapes and dtypes require.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| format(format!("invalid header: {error}")))?;
    let expected = data_start.saturating_add(metadata.data_len() as u64);
    if expected != actual {
        return Err(size(path, actual, expected));
    }
    let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone()));
    Ok((Part { path: path.to_owned(), file, data_start }, tensors.collect()))
}

fn size(path: &Path, actual: u64, expected: u64) -> WeightsError {
    WeightsError::new(path, WeightsProblem::Size(actual, expected))
}

/// Returns a sort key: wide dtypes first, as the format's writer does, to align every tensor.
pub fn widest_first(dtype: Dtype) -> impl Ord {
    std::cmp::Reverse(dtype.bitsize())
}

/// Returns the header of a file whose tensors (name, dtype and shape) follow each other in this order.
pub fn header<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, Vec<i64>)>) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let infos = tensors.map(|(name, dtype, shape)| {
        let shape: Vec<usize> = shape.into_iter().map(|size| size as usize).collect();
        let begin = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let data_offsets = (begin, end);
        let info = TensorInfo { dtype, shape, data_offsets };
        (name.to_owned(), info)
    });
    // As in PyTorch's writer; some readers require it.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(about), infos.collect()).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(PREFIX_BYTES as usize), b' ');
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(format!("the names and shapes take {} bytes, more than the format allows", text.len()));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

#[cfg(test)]
pub(super) mod tests;
