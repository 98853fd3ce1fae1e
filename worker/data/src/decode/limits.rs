//! Limits and errors that all decoders share.

use image::ImageError;

use super::super::caught::caught;
use super::super::error::{Result, SampleError};

/// Memory limit of one decoded image: a header of a few bytes can state any size.
pub(super) const LIMIT_BYTES: u64 = 512 << 20;

/// Makes the most frequent error of a damaged file.
pub(super) fn truncated() -> SampleError {
    SampleError::Damaged("the file is truncated".to_owned())
}

/// Turns a panic of a decoder into the error of one bad image: files may hold anything.
pub(super) fn catch_panic<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(decode).unwrap_or_else(|| Err(SampleError::Damaged("the decoder failed".to_owned())))
}

/// Returns whether a mask of this size can be held.
pub fn fits_in_memory(width: u32, height: u32) -> bool {
    check_size(width, height, 3 * u64::from(width) * u64::from(height)).is_ok()
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
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        other => SampleError::Damaged(other.to_string()),
    }
}
