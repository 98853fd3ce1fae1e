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
    /// A shared library (the NVIDIA driver, libtorch's CUDA set) is not on this machine.
    LibraryMissing,
    /// Anything else; the message is all there is.
    Other,
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

/// Keep in step with `DtErrorKind` in csrc/boundary.h.
fn kind(code: i32) -> ErrorKind {
    match code {
        1 => ErrorKind::OutOfMemory,
        2 => ErrorKind::Timeout,
        3 => ErrorKind::Network,
        4 => ErrorKind::Store,
        5 => ErrorKind::InvalidArgument,
        6 => ErrorKind::NotImplemented,
        7 => ErrorKind::LibraryMissing,
        _ => ErrorKind::Other,
    }
}

/// The inverse of [`kind`].
pub(crate) fn code(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::OutOfMemory => 1,
        ErrorKind::Timeout => 2,
        ErrorKind::Network => 3,
        ErrorKind::Store => 4,
        ErrorKind::InvalidArgument => 5,
        ErrorKind::NotImplemented => 6,
        ErrorKind::LibraryMissing => 7,
        ErrorKind::Other => 8,
    }
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

/// What kind of failure an error of tch's own is; tch keeps nothing of the C++ exception but its words.
pub fn kind_of(error: &tch::TchError) -> ErrorKind {
    let text = error.to_string();
    let mentions = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if mentions(&["out of memory", "allocate memory", "not enough memory"]) {
        ErrorKind::OutOfMemory
    } else {
        ErrorKind::Other
    }
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
        ];
        for (what, kind) in kinds {
            assert_eq!(thrown(what).kind, kind, "exception {what}: {}", thrown(what));
        }
        for number in 1..=8 {
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
}
