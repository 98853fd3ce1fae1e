//! What every decoder refuses, and in which words.

use std::panic::{AssertUnwindSafe, catch_unwind};

use image::ImageError;

use super::super::error::{Result, SampleError};

/// The most memory that one decoded image may take: a header can state any size, a few bytes long.
pub(super) const LIMIT_BYTES: u64 = 512 << 20;

/// Why a file is damaged, most often.
pub(super) fn cut_short() -> SampleError {
    SampleError::Damaged("the file is cut short".to_owned())
}

/// Decoders are fed with whatever lies in a folder; should one panic on it, that is one bad image, not the end.
pub(super) fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(SampleError::Damaged("the decoder failed on it".to_owned())))
}

pub(super) fn check_size(width: u32, height: u32, decoded_bytes: u64) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(SampleError::Damaged(format!("the header states {width}x{height} pixels")));
    }
    if decoded_bytes > LIMIT_BYTES {
        return Err(SampleError::TooLarge((width, height), LIMIT_BYTES));
    }
    Ok(())
}

pub(super) fn damage(error: ImageError) -> SampleError {
    match error {
        ImageError::Unsupported(error) => SampleError::Unsupported(format!("this kind of image ({error})")),
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => cut_short(),
        other => SampleError::Damaged(other.to_string()),
    }
}
