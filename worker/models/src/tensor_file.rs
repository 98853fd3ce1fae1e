//! Safetensors files: reading tensors one by one, which needs memory for only one.
//!
//! Weights of others may be sharded: an index lists the file of each tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dtrain_common::content::Content;
use dtrain_common::safetensors_file::{
    MAX_HEADER_BYTES, PREFIX_BYTES, SafetensorsError, SafetensorsFile, StoredTensor,
};
use dtrain_torch_shim::copy::fill;
use tch::{Device, TchError, Tensor};

use super::dtype::kind_of;
use super::error::{ModelError, WeightsError, WeightsProblem};
use super::foreign::foreign;
use super::shards::Index;

#[cfg(target_endian = "big")]
compile_error!(
    "safetensors files are little-endian, and tensors are copied from and to them without conversion"
);

/// An open file of named tensors, or several that an index lists. Their headers have been read and checked.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    parts: Vec<SafetensorsFile>,
    pub(super) tensors: BTreeMap<String, Stored>,
}

/// The place of a tensor, with its dtype and shape.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    part: usize,
    pub(super) info: StoredTensor,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let part = open_part(path)?;
        let stored = |info: &StoredTensor| (info.name.clone(), Stored { part: 0, info: info.clone() });
        let tensors = part.tensors.iter().map(stored).collect();
        Ok(Self { path: path.to_owned(), parts: vec![part], tensors })
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
            let part = open_part(&path.with_file_name(&name))?;
            let own = part.tensors.iter().map(|info| (info.name.as_str(), info));
            let mut tensors: BTreeMap<&str, &StoredTensor> = own.collect();
            for tensor in wanted {
                let Some(info) = tensors.remove(tensor.as_str()).cloned() else {
                    return Err(wrong(WeightsProblem::NotInShard(tensor, name)));
                };
                file.tensors.insert(tensor, Stored { part: file.parts.len(), info });
            }
            // The index decides between two tensors of one name, but leaves none out.
            if let Some(tensor) = tensors.into_keys().find(|tensor| !index.names.contains(*tensor)) {
                return Err(wrong(WeightsProblem::NotInIndex(tensor.to_owned(), name)));
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
    pub fn info(&self, name: &str) -> Option<&StoredTensor> {
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
        let filled = fill(tensor, |bytes| part.read(&stored.info, 0, bytes));
        let read = |error| WeightsError::new(&part.path, WeightsProblem::Read(error));
        Ok(filled.transpose().map_err(read)?.is_some())
    }
}

fn open_part(path: &Path) -> Result<SafetensorsFile, WeightsError> {
    SafetensorsFile::open(path).map_err(|error| unusable(path, error))
}

/// Returns the error of a file that cannot be opened.
fn unusable(path: &Path, error: SafetensorsError) -> WeightsError {
    let problem = match error {
        SafetensorsError::Io(error) => WeightsProblem::Read(error),
        SafetensorsError::Foreign(content) => foreign(content, path),
        SafetensorsError::HeaderLength { announced, .. } if announced > MAX_HEADER_BYTES => {
            let reason = format!("a header of {announced} bytes exceeds the format's limit");
            WeightsProblem::Format(reason)
        }
        SafetensorsError::HeaderLength { announced, left } => {
            WeightsProblem::Size(PREFIX_BYTES + left, PREFIX_BYTES + announced)
        }
        SafetensorsError::DataLength { data_start, described, held } => {
            WeightsProblem::Size(data_start + held, data_start.saturating_add(described))
        }
        SafetensorsError::Short(bytes) => {
            let reason = format!("it has {bytes} bytes, too few for its length field of {PREFIX_BYTES}");
            WeightsProblem::Format(reason)
        }
        SafetensorsError::Header(error) => WeightsProblem::Format(format!("invalid header: {error}")),
        SafetensorsError::NotRegular => WeightsProblem::Format(error.to_string()),
    };
    WeightsError::new(path, problem)
}

#[cfg(test)]
pub(super) mod tests;
