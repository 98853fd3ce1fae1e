//! Errors from the C++ boundary.

use thiserror::Error;

pub use crate::ffi::ErrorKind;
use crate::ffi::{DtError, NewTensor};

/// Fragments of messages, with the kind of error, for c10d's and libtorch's generic types. The first match
/// counts. Device errors precede time-outs: a kernel that ran too long "timed out", but no peer is late.
const FRAGMENTS: [(&str, ErrorKind); 22] = {
    use ErrorKind::{Device, Network, OutOfMemory, Timeout};
    [
        ("out of memory", OutOfMemory),
        ("allocate memory", OutOfMemory),
        ("not enough memory", OutOfMemory),
        ("CUBLAS_STATUS_ALLOC_FAILED", OutOfMemory),
        ("CUDNN_STATUS_ALLOC_FAILED", OutOfMemory),
        ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", OutOfMemory),
        ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", OutOfMemory),
        ("CUDA error", Device),
        ("CUDA driver error", Device),
        ("CUBLAS_STATUS", Device),
        ("CUDNN_STATUS", Device),
        ("timed out", Timeout),
        ("Timed out", Timeout),
        ("timeout", Timeout),
        ("Timeout", Timeout),
        ("Connection closed by peer", Network),
        ("Connection reset", Network),
        ("Broken pipe", Network),
        ("onnection refused", Network),
        ("Failed to recv", Network),
        ("Socket closed", Network),
        ("unexpected pos", Network),
    ]
};

fn kind_by_message(message: &str) -> Option<ErrorKind> {
    FRAGMENTS.iter().find(|(fragment, _)| message.contains(fragment)).map(|(_, kind)| *kind)
}

/// Returns the kind of a tch error, which has only a message: `OutOfMemory`, `Device` or `Other`.
pub fn kind_of(error: &tch::TchError) -> ErrorKind {
    match kind_by_message(&error.to_string()) {
        Some(kind @ (ErrorKind::OutOfMemory | ErrorKind::Device)) => kind,
        _ => ErrorKind::Other,
    }
}

/// Returns whether a message of libtorch, also within another one, says that a GPU failed.
pub fn is_of_device(message: &str) -> bool {
    kind_by_message(message) == Some(ErrorKind::Device)
}

/// A caught C++ exception.
#[derive(Debug, Clone, Error)]
#[error("{op}: {message}")]
pub struct ShimError {
    /// The failed operation, in words for users.
    pub op: &'static str,
    /// The kind of failure.
    pub kind: ErrorKind,
    /// libtorch's message, without its C++ backtrace.
    pub message: String,
}

impl ShimError {
    pub(crate) fn new(op: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { op, kind, message: message.into() }
    }

    pub(crate) fn invalid(op: &'static str, message: impl Into<String>) -> Self {
        Self::new(op, ErrorKind::InvalidArgument, message)
    }

    /// Returns whether an allocation failed.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == ErrorKind::OutOfMemory
    }
}

impl From<tch::TchError> for ShimError {
    fn from(error: tch::TchError) -> Self {
        Self::new("compute a tensor", kind_of(&error), error.to_string())
    }
}

/// Makes a call and converts its error.
pub(crate) fn try_call(op: &'static str, call: impl FnOnce(&mut DtError) -> i32) -> Result<(), ShimError> {
    let mut error = DtError::default();
    if call(&mut error) == 0 {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&error.message).trim_end().to_owned();
    let kind = match error.kind {
        kind @ (ErrorKind::Network | ErrorKind::Store | ErrorKind::Other) => {
            kind_by_message(&message).unwrap_or(kind)
        }
        kind => kind,
    };
    Err(ShimError { op, kind, message })
}

/// Returns the value that a call writes to its last argument before the error.
pub(crate) fn fetch<T: Default>(
    op: &'static str,
    call: impl FnOnce(&mut T, &mut DtError) -> i32,
) -> Result<T, ShimError> {
    let mut out = T::default();
    try_call(op, |error| call(&mut out, error))?;
    Ok(out)
}

/// Returns the object that a call creates.
pub(crate) fn create<T>(
    op: &'static str,
    call: impl FnOnce(&mut Option<T>, &mut DtError) -> i32,
) -> Result<T, ShimError> {
    fetch(op, call)?.ok_or_else(|| ShimError::new(op, ErrorKind::Other, "libtorch returned no object"))
}

/// Returns the tensor that a call creates.
pub(crate) fn create_tensor(
    op: &'static str,
    call: impl FnOnce(&mut Option<NewTensor>, &mut DtError) -> i32,
) -> Result<tch::Tensor, ShimError> {
    create(op, call).map(NewTensor::take)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn thrown(exception: i32) -> ShimError {
        try_call("throw", |error| crate::ffi::dt_throw(exception, error)).unwrap_err()
    }

    #[test]
    fn every_exception_is_caught_with_its_kind() {
        let kinds = [
            (0, ErrorKind::OutOfMemory),
            (1, ErrorKind::OutOfMemory),
            (2, ErrorKind::Timeout),
            (3, ErrorKind::Network),
            (4, ErrorKind::Store),
            (5, ErrorKind::InvalidArgument),
            (6, ErrorKind::NotImplemented),
            (7, ErrorKind::LibraryMissing),
            (8, ErrorKind::Network),
            (9, ErrorKind::Other),
            (10, ErrorKind::Other),
            (11, ErrorKind::DriverMissing),
            (12, ErrorKind::DriverTooOld),
        ];
        for (exception, kind) in kinds {
            assert_eq!(thrown(exception).kind, kind, "exception {exception}: {}", thrown(exception));
        }
        assert!(thrown(0).is_out_of_memory());
        assert_eq!(thrown(10).to_string(), "throw: a plain error");
    }

    #[test]
    fn tch_out_of_memory_is_recognised() {
        let error = tch::Tensor::f_zeros([1 << 50], (tch::Kind::Float, tch::Device::Cpu)).unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::OutOfMemory, "{error}");
        let error = tch::Tensor::from_slice(&[1f32]).f_view([3]).unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::Other, "{error}");
    }

    /// The messages of libtorch 2.11 with CUDA 13.0 and cuDNN 9.
    #[test]
    fn messages_of_gpus_are_recognised() {
        let memory = [
            "CUDA out of memory. Tried to allocate 2.35 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.02 GiB is free.",
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
        ];
        let device = [
            "CUDA error: an illegal memory access was encountered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
            "CUDA error: device-side assert triggered",
            "CUDA error: the launch timed out and was terminated",
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?",
            "CUDA error: uncorrectable ECC error encountered",
            "CUDA driver error: unknown error",
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, ...)`",
            "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        ];
        let other = [
            "The size of tensor a (3) must match the size of tensor b (4)",
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        ];
        let all = [
            (&memory[..], ErrorKind::OutOfMemory),
            (&device[..], ErrorKind::Device),
            (&other[..], ErrorKind::Other),
        ];
        for (texts, kind) in all {
            for text in texts {
                assert_eq!(kind_of(&tch::TchError::Torch((*text).to_owned())), kind, "{text}");
                // So exceptions of libtorch's generic type are recognised too.
                assert_eq!(kind_by_message(text), (kind != ErrorKind::Other).then_some(kind), "{text}");
            }
        }
    }
}
