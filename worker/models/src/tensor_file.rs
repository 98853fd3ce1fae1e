//! Safetensors files: headers, and reading tensors one by one, which needs memory for only one.
//!
//! A file is 8 bytes with the length of the header, the header (JSON: name, dtype, shape and offsets of each
//! tensor), and the data. Every size is checked against the file's length before any data is read.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dtrain_torch_shim::copy::fill;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, TchError, Tensor};

use super::dtype::kind_of;
use super::error::{ModelError, WeightsError, WeightsProblem};

#[cfg(target_endian = "big")]
compile_error!(
    "safetensors files are little-endian, and tensors are copied from and to them without conversion"
);

/// The length field at the start of a file.
const PREFIX_BYTES: u64 = 8;

/// The largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The start of a zip archive, the format of torch.save.
const ZIP_MARK: &[u8] = b"PK\x03\x04";

/// An open file of named tensors. Its header has been read and checked.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    data_start: u64,
    pub(super) tensors: BTreeMap<String, TensorInfo>,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let wrong = |problem| WeightsError::new(path, problem);
        let read = |source| wrong(WeightsProblem::Read(source));
        let format = |reason: String| wrong(WeightsProblem::Format(reason));

        let file = File::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        if !metadata.is_file() {
            return Err(format("it is not a regular file".to_owned()));
        }
        let actual = metadata.len();
        if actual < PREFIX_BYTES {
            return Err(format(format!(
                "it has {actual} bytes, too few for its length field of {PREFIX_BYTES}"
            )));
        }
        let mut prefix = [0u8; PREFIX_BYTES as usize];
        file.read_exact_at(&mut prefix, 0).map_err(read)?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(format(match prefix.starts_with(ZIP_MARK) {
                true => {
                    "it is a zip archive, as from torch.save; convert it with safetensors.torch.save_file"
                        .to_owned()
                }
                false => format!("a header of {header_bytes} bytes exceeds the format's limit"),
            }));
        }
        let data_start = PREFIX_BYTES + header_bytes;
        let size = |expected| wrong(WeightsProblem::Size(actual, expected));
        if actual < data_start {
            return Err(size(data_start));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact_at(&mut header, PREFIX_BYTES).map_err(read)?;
        // Deserialising checks that tensors are adjacent and as long as their shapes and dtypes require.
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| format(format!("invalid header: {error}")))?;
        let expected = data_start.saturating_add(metadata.data_len() as u64);
        if expected != actual {
            return Err(size(expected));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            data_start,
            tensors: metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect(),
        })
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
        self.tensors.get(name)
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<Vec<i64>, ModelError> {
        self.describe(name).map(|(_, shape)| shape)
    }

    fn describe(&self, name: &str) -> Result<(&TensorInfo, Vec<i64>), ModelError> {
        let info = self.info(name).ok_or_else(|| self.error(WeightsProblem::NoTensor(name.to_owned())))?;
        let sizes = info.shape.iter().map(|&size| i64::try_from(size));
        let shape = sizes.collect::<Result<_, _>>().map_err(|_| {
            self.error(WeightsProblem::Format(format!("`{name}` has the invalid shape {:?}", info.shape)))
        })?;
        Ok((info, shape))
    }

    fn error(&self, problem: WeightsProblem) -> WeightsError {
        WeightsError::new(&self.path, problem)
    }

    /// Reads one tensor to the CPU, in the file's dtype.
    pub fn read(&self, name: &str) -> Result<Tensor, ModelError> {
        let (info, shape) = self.describe(name)?;
        let kind = kind_of(info.dtype)
            .ok_or_else(|| self.error(WeightsProblem::Dtype(name.to_owned(), info.dtype)))?;
        let mut value = Tensor::f_empty(shape, (kind, Device::Cpu))?;
        if !self.fill(info, &mut value)? {
            return Err(TchError::Convert(format!("new memory for `{name}` is not contiguous")).into());
        }
        Ok(value)
    }

    /// Reads one tensor into `target`, which has the same shape, and converts it to its dtype. Autograd
    /// records nothing. If dtypes and layouts agree, it reads directly into `target`.
    pub fn read_into(&self, name: &str, target: &Tensor) -> Result<(), ModelError> {
        let (info, shape) = self.describe(name)?;
        let mut target = target.f_detach()?;
        let agrees = kind_of(info.dtype) == Some(target.f_kind()?) && target.size() == shape;
        if !(agrees && self.fill(info, &mut target)?) {
            tch::no_grad(|| target.f_copy_(&self.read(name)?).map_err(ModelError::from))?;
        }
        Ok(())
    }

    /// Fills a tensor of equal dtype and number of elements. Returns false if its memory is not contiguous.
    fn fill(&self, info: &TensorInfo, tensor: &mut Tensor) -> Result<bool, ModelError> {
        let start = self.data_start + info.data_offsets.0 as u64;
        // `open` has checked that the file has the bytes that shape and dtype require.
        let filled = fill(tensor, |bytes| self.file.read_exact_at(bytes, start));
        let filled = filled.transpose().map_err(|error| self.error(WeightsProblem::Read(error)))?;
        Ok(filled.is_some())
    }
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
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use tch::Kind;

    use super::super::dtype::dtype_of;
    use super::*;

    /// Writes named tensors to a file, each in its dtype.
    pub(crate) fn write_tensors(path: &Path, tensors: &[(&str, Tensor)]) {
        let dtype = |tensor: &Tensor| dtype_of(tensor.kind()).unwrap();
        let mut ordered: Vec<_> = tensors.iter().collect();
        ordered.sort_by_key(|(_, tensor)| widest_first(dtype(tensor)));
        let described = ordered.iter().map(|(name, tensor)| (*name, dtype(tensor), tensor.size()));
        let mut bytes = header(described).unwrap();
        for (_, tensor) in ordered {
            let start = bytes.len();
            bytes.resize(start + tensor.numel() * tensor.kind().elt_size_in_bytes(), 0);
            tensor.copy_data_u8(&mut bytes[start..], tensor.numel());
        }
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn every_truncation_is_a_typed_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole.safetensors");
        let values = Tensor::from_slice(&[0.0f64, 1.0, 2.0, 3.0]);
        write_tensors(&path, &[("a", values.to_kind(Kind::Half)), ("b", values.view([2, 2]))]);
        let bytes = fs::read(&path).unwrap();
        let cut = folder.path().join("cut.safetensors");
        for length in 0..bytes.len() {
            fs::write(&cut, &bytes[..length]).unwrap();
            let error = TensorFile::open(&cut).unwrap_err();
            match &error.problem {
                WeightsProblem::Format(_) => assert!(length < 8, "{length}: {error}"),
                WeightsProblem::Size(actual, _) => assert_eq!(*actual, length as u64),
                _ => panic!("{length}: {error}"),
            }
            assert!(error.to_string().contains("cut.safetensors"));
        }
        fs::write(&cut, [&bytes[..], b"x"].concat()).unwrap();
        assert!(TensorFile::open(&cut).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn garbage_is_a_typed_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("garbage");
        let with_header = |header: &str| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(header.as_bytes());
            bytes
        };
        // In order: a zip (PyTorch's format), text, no JSON, a shape that does not match its data,
        // overlapping tensors, a shape that overflows, an unknown dtype.
        let cases = [
            b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00".to_vec(),
            b"just some text, nothing more".to_vec(),
            with_header("not json"),
            with_header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#),
            with_header(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#,
            ),
            with_header(
                r#"{"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,4]}}"#,
            ),
            with_header(r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#),
        ];
        for bytes in cases {
            fs::write(&path, [&bytes[..], b"1234"].concat()).unwrap();
            let error = TensorFile::open(&path).unwrap_err();
            assert!(matches!(error.problem, WeightsProblem::Format(_)), "{error}");
        }
        assert!(matches!(
            TensorFile::open(folder.path()),
            Err(WeightsError { problem: WeightsProblem::Format(_), .. })
        ));
        assert!(matches!(
            TensorFile::open(&folder.path().join("none")),
            Err(WeightsError { problem: WeightsProblem::Read(_), .. })
        ));
    }

    #[test]
    fn a_tensor_is_read_into_any_layout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.safetensors");
        let values = Tensor::from_slice(&[0.5f64, 1.0, 2.0, 3.0, 4.0, 5.0]).view([2, 3]);
        write_tensors(&path, &[("a", values.shallow_clone())]);
        let file = TensorFile::open(&path).unwrap();
        assert!(file.read("a").unwrap().equal(&values));
        for kind in [Kind::Double, Kind::Float] {
            let buffer = Tensor::full([3, 4], -1.0, (kind, Device::Cpu));
            // Contiguous, transposed, and with gaps.
            for target in [
                buffer.narrow(0, 1, 2).view([8]).narrow(0, 1, 6).view([2, 3]),
                buffer.narrow(1, 1, 2).transpose(0, 1),
            ] {
                let _ = tch::no_grad(|| buffer.shallow_clone().fill_(-1.0));
                file.read_into("a", &target).unwrap();
                assert!(target.to_kind(Kind::Double).equal(&values));
                assert_eq!((&buffer + 1.0).count_nonzero(None::<i64>).int64_value(&[]), 6);
            }
        }
        let leaf = Tensor::zeros([2, 3], (Kind::Double, Device::Cpu)).set_requires_grad(true);
        file.read_into("a", &leaf).unwrap();
        assert!(leaf.equal(&values) && leaf.is_leaf());
        assert!(file.read_into("a", &values.view([-1])).is_err());
        assert_eq!(file.shape("a").unwrap(), [2, 3]);
    }

    #[test]
    fn a_hostile_empty_shape_and_an_unknown_dtype_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd");
        let header = r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]},"b":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"1"].concat();
        fs::write(&path, bytes).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert!(matches!(
            file.read("a"),
            Err(ModelError::Weights(WeightsError { problem: WeightsProblem::Format(_), .. }))
        ));
        assert!(matches!(
            file.read("b"),
            Err(ModelError::Weights(WeightsError { problem: WeightsProblem::Dtype { .. }, .. }))
        ));
    }

    fn every_kind() -> Vec<(&'static str, Tensor)> {
        let values = Tensor::from_slice(&[0.0f64, 1.0, 2.0, 3.0, 4.0, 5.0]);
        [
            ("bool", Kind::Bool),
            ("u8", Kind::Uint8),
            ("i8", Kind::Int8),
            ("i16", Kind::Int16),
            ("i32", Kind::Int),
            ("i64", Kind::Int64),
            ("f16", Kind::Half),
            ("bf16", Kind::BFloat16),
            ("f32", Kind::Float),
            ("f64", Kind::Double),
        ]
        .into_iter()
        .map(|(name, kind)| (name, values.to_kind(kind).view([2, 3])))
        .chain([("empty", Tensor::zeros([0, 4], (Kind::Float, Device::Cpu)))])
        .chain([("scalar", Tensor::from(7i64)), ("strided", values.view([2, 3]).transpose(0, 1))])
        .collect()
    }

    #[test]
    fn every_dtype_survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tensors.safetensors");
        let tensors = every_kind();
        write_tensors(&path, &tensors);

        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.tensors.len(), tensors.len());
        for (name, tensor) in &tensors {
            let back = file.read(name).unwrap();
            assert_eq!((back.size(), back.kind()), (tensor.size(), tensor.kind()), "{name}");
            assert!(back.equal(tensor), "{name}");
        }
        assert!(matches!(
            file.read("f80"),
            Err(ModelError::Weights(WeightsError { problem: WeightsProblem::NoTensor(_), .. }))
        ));
        // The format's own reader agrees.
        let bytes = fs::read(&path).unwrap();
        assert_eq!(safetensors::SafeTensors::deserialize(&bytes).unwrap().len(), tensors.len());
    }
}
