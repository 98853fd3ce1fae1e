//! Opens the tensor files of a checkpoint; every error names the file.

use dtrain_common::content::Content;
use dtrain_common::safetensors_file::{Dtype, SafetensorsError, SafetensorsFile, StoredTensor};
use std::path::{Path, PathBuf};

/// Why a tensor file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TensorFileError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: SafetensorsError },
    /// The file has another format or is damaged.
    #[error("{} is not a valid safetensors file: {reason}", path.display())]
    Header { path: PathBuf, reason: String },
}

/// Opens a file and checks its whole header. Does not read values.
pub(super) fn open(path: &Path) -> Result<SafetensorsFile, TensorFileError> {
    SafetensorsFile::open(path).map_err(|source| {
        let path = path.into();
        let reason = match source {
            SafetensorsError::Io(_) | SafetensorsError::NotRegular => {
                return TensorFileError::Io { path, source };
            }
            SafetensorsError::Foreign(Content::Zeros) => {
                format!("{source}: its data never arrived; use another checkpoint")
            }
            SafetensorsError::Foreign(_) => {
                format!("{source}, so it was exchanged or is damaged; use another checkpoint")
            }
            _ => source.to_string(),
        };
        TensorFileError::Header { path, reason }
    })
}

/// Fills `buffer` with values of a tensor, from the tensor's byte `offset` on.
pub(super) fn read(
    file: &SafetensorsFile,
    tensor: &StoredTensor,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), TensorFileError> {
    let read = file.read(tensor, offset, buffer);
    read.map_err(|source| TensorFileError::Io { path: file.path.clone(), source: source.into() })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;

    #[test]
    fn files_that_are_no_tensor_files_are_named_with_their_cause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let error = || open(&path).unwrap_err().to_string();
        assert!(error().contains("cannot read") && error().contains("model.safetensors"), "{}", error());
        for (bytes, cause) in [
            (vec![0; 64], "its data never arrived"),
            (b"PK\x03\x04 an archive of some length".to_vec(), "exchanged or is damaged"),
        ] {
            fs::write(&path, bytes).unwrap();
            assert!(error().contains(cause) && error().contains("model.safetensors"), "{}", error());
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(error().contains("model.safetensors"), "{}", error());
    }
}
