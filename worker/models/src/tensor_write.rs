//! Writing safetensors files, one tensor at a time and in one step as seen by a reader.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::Tensor;

use super::dtype::dtype_of;
use super::error::{ModelError, WeightsError, WeightsProblem};
use super::tensor_file::{MAX_HEADER_BYTES, PREFIX_BYTES};

/// Writes named tensors, each in its own type and from any device, through a temporary file that is renamed at the end:
/// `path` is the old file or the whole new one.
pub fn write_tensors(path: &Path, tensors: &[(&str, Tensor)]) -> Result<(), ModelError> {
    let mut partial = OsString::from(path);
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let outcome = write_whole(path, &partial, tensors);
    if outcome.is_err() {
        // The first error is the one to report; the leftover does no harm beyond its size.
        let _ = fs::remove_file(&partial);
    }
    outcome
}

fn write_whole(path: &Path, partial: &Path, tensors: &[(&str, Tensor)]) -> Result<(), ModelError> {
    let write = |source| WeightsError::new(path, WeightsProblem::Write(source));
    let unwritable = |reason| WeightsError::new(path, WeightsProblem::Unwritable(reason));

    let mut ordered = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let kind = tensor.f_kind()?;
        let dtype = dtype_of(kind).ok_or_else(|| unwritable(format!("`{name}` has the type {kind:?}")))?;
        ordered.push((*name, tensor, dtype, tensor.numel() * kind.elt_size_in_bytes()));
    }
    ordered.sort_by_key(|(_, _, dtype, _)| widest_first(*dtype));
    let described = ordered.iter().map(|(name, tensor, dtype, _)| (*name, *dtype, tensor.size()));
    let header = header(described).map_err(unwritable)?;

    let mut out = BufWriter::new(File::create(partial).map_err(write)?);
    out.write_all(&header).map_err(write)?;
    let mut buffer = Vec::new();
    for (_, tensor, _, bytes) in &ordered {
        buffer.resize(*bytes, 0);
        tensor.f_copy_data_u8(&mut buffer, tensor.numel())?;
        out.write_all(&buffer).map_err(write)?;
    }
    let file = out.into_inner().map_err(|error| write(error.into_error()))?;
    file.sync_all().map_err(write)?;
    fs::rename(partial, path).map_err(write)?;
    // Without this the rename itself may be lost with the power.
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(write)?;
    Ok(())
}

/// Wide types first, as the format's own writer does: then every tensor is aligned to its type.
pub fn widest_first(dtype: Dtype) -> impl Ord {
    std::cmp::Reverse(dtype.bitsize())
}

/// What a file begins with whose tensors (name, type and shape) follow each other in this order, without gaps.
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
    // What PyTorch's own writer puts there; some readers ask for it.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(about), infos.collect()).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(PREFIX_BYTES as usize), b' ');
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(format!("the names and shapes take {} bytes", text.len()));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Device, Kind};

    use super::super::tensor_file::TensorFile;
    use super::*;

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
    fn every_type_survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tensors.safetensors");
        let tensors = every_kind();
        write_tensors(&path, &tensors).unwrap();
        write_tensors(&path, &tensors).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is gone");

        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.names().len(), tensors.len());
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

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.safetensors");
        fs::write(&path, b"old").unwrap();
        let complex = Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu));
        let error = write_tensors(&path, &[("z", complex)]).unwrap_err();
        assert!(
            matches!(error, ModelError::Weights(WeightsError { problem: WeightsProblem::Unwritable(_), .. })),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let nowhere = folder.path().join("no/such/folder");
        assert!(matches!(
            write_tensors(&nowhere, &[]),
            Err(ModelError::Weights(WeightsError { problem: WeightsProblem::Write(_), .. }))
        ));
    }
}
