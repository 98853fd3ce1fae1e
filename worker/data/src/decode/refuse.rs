//! What every decoder refuses, and in which words.

use std::panic::{AssertUnwindSafe, catch_unwind};

use image::ImageError;

use super::super::error::SampleError;

/// The most memory that one decoded image may take: a header can state any size, a few bytes long.
pub const LIMIT_BYTES: u64 = 512 << 20;

/// Why a file is damaged, most often.
pub(super) const CUT_SHORT: &str = "the file is cut short";

/// Decoders are fed with whatever lies in a folder; should one panic on it, that is one bad image, not the end.
pub(super) fn guarded<T>(decode: impl FnOnce() -> Result<T, SampleError>) -> Result<T, SampleError> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| {
        Err(SampleError::Damaged {
            reason: "the decoder failed on it".to_owned(),
        })
    })
}

pub(super) fn check_size(width: u32, height: u32, decoded_bytes: u64) -> Result<(), SampleError> {
    if width == 0 || height == 0 {
        return Err(SampleError::Damaged {
            reason: format!("the header states {width}x{height} pixels"),
        });
    }
    if decoded_bytes > LIMIT_BYTES {
        return Err(SampleError::TooLarge {
            width,
            height,
            limit_bytes: LIMIT_BYTES,
        });
    }
    Ok(())
}

pub(super) fn damage(error: ImageError) -> SampleError {
    match error {
        ImageError::Unsupported(error) => SampleError::Unsupported {
            what: format!("this kind of image ({error})"),
        },
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            SampleError::Damaged {
                reason: CUT_SHORT.to_owned(),
            }
        }
        other => SampleError::Damaged {
            reason: other.to_string(),
        },
    }
}
