//! Errors that crossed the boundary.

use std::ffi::CStr;

use thiserror::Error;

use crate::ffi;

/// What kind of failure libtorch reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// An allocation was refused, on the device or on the host.
    OutOfMemory,
    /// An operation or a connection waited past its time-out.
    Timeout,
    /// A connection could not be made or was closed by the peer.
    Network,
    /// The key-value store failed.
    Store,
    /// A shape, dtype, index or value that the operation does not take.
    InvalidArgument,
    /// libtorch has no implementation for this operation on this device or dtype.
    NotImplemented,
    /// A shared library, such as libtorch's CUDA set, is not on this machine.
    LibraryMissing,
    /// Anything else; the message is all there is.
    Other,
    /// A GPU, or one of CUDA's libraries on it, failed. What the process computed there since then is lost, and most such
    /// failures stay: nothing on this GPU succeeds any more before the process ends.
    Device,
    /// There is no NVIDIA driver on this machine.
    DriverMissing,
    /// The NVIDIA driver is older than the CUDA that libtorch was built with.
    DriverTooOld,
}

/// A C++ exception, caught and described.
#[derive(Debug, Clone, Error)]
#[error("{op}: {message}")]
pub struct ShimError {
    /// The operation that failed, in words a user can place.
    pub op: &'static str,
    /// What kind of failure it was.
    pub kind: ErrorKind,
    /// libtorch's own message, without its C++ backtrace.
    pub message: String,
}

impl ShimError {
    pub(crate) fn new(op: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            op,
            kind,
            message: message.into(),
        }
    }

    /// Whether an allocation was refused.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == ErrorKind::OutOfMemory
    }
}

impl From<tch::TchError> for ShimError {
    fn from(error: tch::TchError) -> Self {
        Self::new("a tensor operation", kind_of(&error), error.to_string())
    }
}

/// Calls `body` with a place for the error and turns what it left there into a `Result`.
pub(crate) fn checked(
    op: &'static str,
    body: impl FnOnce(*mut ffi::DtError) -> i32,
) -> Result<(), ShimError> {
    let mut error = ffi::DtError {
        kind: 0,
        message: std::ptr::null_mut(),
    };
    if body(&mut error) == 0 {
        return Ok(());
    }
    let message = if error.message.is_null() {
        String::from("no message")
    } else {
        // SAFETY: a failed call leaves a malloc'ed, NUL-terminated string that is ours to free, once.
        unsafe {
            let text = CStr::from_ptr(error.message)
                .to_string_lossy()
                .trim_end()
                .to_owned();
            ffi::dt_string_free(error.message);
            text
        }
    };
    Err(ShimError {
        op,
        kind: kind(error.kind),
        message,
    })
}

/// Keep in step with `DtErrorKind` in csrc/boundary.h, whose numbers begin with 1.
const KINDS: [ErrorKind; 11] = [
    ErrorKind::OutOfMemory,
    ErrorKind::Timeout,
    ErrorKind::Network,
    ErrorKind::Store,
    ErrorKind::InvalidArgument,
    ErrorKind::NotImplemented,
    ErrorKind::LibraryMissing,
    ErrorKind::Other,
    ErrorKind::Device,
    ErrorKind::DriverMissing,
    ErrorKind::DriverTooOld,
];

fn kind(code: i32) -> ErrorKind {
    let index = usize::try_from(code - 1).ok();
    let known = index.and_then(|index| KINDS.get(index));
    known.copied().unwrap_or(ErrorKind::Other)
}

/// The inverse of [`kind`].
pub(crate) fn code(kind: ErrorKind) -> i32 {
    (1..)
        .zip(KINDS)
        .find(|(_, known)| *known == kind)
        .map_or(8, |(code, _)| code)
}

/// A C string for the boundary; a NUL inside is an invalid argument.
pub(crate) fn c_string(op: &'static str, text: &str) -> Result<std::ffi::CString, ShimError> {
    std::ffi::CString::new(text).map_err(|_| {
        ShimError::new(
            op,
            ErrorKind::InvalidArgument,
            format!("{text:?} holds a NUL byte"),
        )
    })
}

/// What kind of failure an error of tch's own is: `OutOfMemory`, `Device` or `Other`. tch keeps nothing of the C++ exception
/// but its words.
pub fn kind_of(error: &tch::TchError) -> ErrorKind {
    kind_of_words(&error.to_string())
}

/// As [`kind_of`], for words alone.
fn kind_of_words(words: &str) -> ErrorKind {
    // Behind a NUL byte, which no message of libtorch holds, nothing is looked at.
    let words = words.split('\0').next().unwrap_or_default();
    std::ffi::CString::new(words).map_or(ErrorKind::Other, |words| {
        // SAFETY: the text is NUL-terminated and read during the call.
        kind(unsafe { ffi::dt_kind_of_words(words.as_ptr()) })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn thrown(what: i32) -> ShimError {
        // SAFETY: the function takes any number and only fills the error.
        checked("throw", |error| unsafe { ffi::dt_throw(what, error) }).unwrap_err()
    }

    #[test]
    fn every_exception_is_caught_and_named() {
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
        for (what, kind) in kinds {
            assert_eq!(thrown(what).kind, kind, "exception {what}: {}", thrown(what));
        }
        for number in 1..=11 {
            assert_eq!(code(kind(number)), number);
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

    /// As libtorch 2.11 with CUDA 13.0 and cuDNN 9 words them.
    #[test]
    fn what_gpus_say_is_recognised() {
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
                let words = std::ffi::CString::new(*text).unwrap();
                // SAFETY: the text is NUL-terminated.
                let thrown = checked("throw", |error| unsafe {
                    ffi::dt_throw_words(words.as_ptr(), error)
                });
                assert_eq!(thrown.unwrap_err().kind, kind, "{text}");
                assert_eq!(kind_of(&tch::TchError::Torch((*text).to_owned())), kind, "{text}");
            }
        }
        assert_eq!(kind_of_words("CUDA\0 error"), ErrorKind::Other);
    }
}
