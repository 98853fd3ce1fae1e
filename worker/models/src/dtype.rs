//! Dtypes of safetensors files and of libtorch.

use dtrain_common::safetensors_file::Dtype;
use tch::Kind;

const TYPES: [(Kind, Dtype); 11] = [
    (Kind::Bool, Dtype::BOOL),
    (Kind::Uint8, Dtype::U8),
    (Kind::Int8, Dtype::I8),
    (Kind::Int16, Dtype::I16),
    (Kind::Int, Dtype::I32),
    (Kind::Int64, Dtype::I64),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Float, Dtype::F32),
    (Kind::Double, Dtype::F64),
    (Kind::ComplexFloat, Dtype::C64),
];

/// Returns the dtype in the file format for a libtorch dtype.
pub fn dtype_of(kind: Kind) -> Option<Dtype> {
    TYPES.iter().find(|(own, _)| *own == kind).map(|(_, dtype)| *dtype)
}

/// Returns the libtorch dtype for a dtype of the file format.
pub(super) fn kind_of(dtype: Dtype) -> Option<Kind> {
    TYPES.iter().find(|(_, own)| *own == dtype).map(|(kind, _)| *kind)
}
