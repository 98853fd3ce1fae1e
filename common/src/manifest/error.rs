//! Errors of reading a checkpoint.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{FILE_NAME, FORMAT, MAX_BYTES, folder_name};

/// Reason why a checkpoint cannot be used. Paths are the manifest's unless stated otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{} is not a whole checkpoint: it has no {FILE_NAME}; name a folder such as RUN/checkpoints/step-00000120", .0.display())]
    Missing(PathBuf),
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is larger than any manifest ({} MiB); it was not written by dtrain", .0.display(), MAX_BYTES >> 20)]
    TooLarge(PathBuf),
    #[error("{} is not a checkpoint manifest: {}", .0.display(), .1)]
    Json(PathBuf, #[source] serde_json::Error),
    #[error("{} does not match its own checksum; the checkpoint is damaged, use an earlier one", .0.display())]
    OwnChecksum(PathBuf),
    #[error(
        "{} contains the checkpoint of step {}, so it was renamed or overwritten, and is not used; if there is no {}, rename it \
         to that, else remove it",
        .0.display(), .1, folder_name(*.1)
    )]
    OtherStep(PathBuf, u64),
    #[error(
        "{} has format {format} and this dtrain reads formats up to {FORMAT}; use the newer dtrain that wrote it",
        path.display()
    )]
    NewerFormat { path: PathBuf, format: u32 },
    #[error("{} has format {}, which no dtrain writes; use another checkpoint", .0.display(), .1)]
    UnknownFormat(PathBuf, u32),
    #[error(
        "{} lists a file {:?}; expected plain and different file names, without folders",
        .0.display(), .1
    )]
    FileName(PathBuf, String),
    #[error(
        "{} lists {:?} as the checksum of {:?}; expected 64 lower-case hexadecimal digits",
        .0.display(), .2, .1
    )]
    ChecksumForm(PathBuf, String, String),
    #[error(
        "{} lists {:?} with {} bytes, but its parts have another total",
        .0.display(), .1, .2
    )]
    Parts(PathBuf, String, u64),
    #[error("{} has {got} bytes, but its manifest lists {expected}; the checkpoint is damaged, use an earlier one", path.display())]
    Size { path: PathBuf, expected: u64, got: u64 },
    #[error(
        "{} does not match the checksum in its manifest{}; the checkpoint is damaged, use an earlier one",
        path.display(),
        describe_range(range, *whole)
    )]
    Checksum {
        path: PathBuf,
        /// The bytes that the checksum covers.
        range: Range<u64>,
        /// Whether `range` is the whole file.
        whole: bool,
        expected: String,
        got: String,
    },
}

fn describe_range(range: &Range<u64>, whole: bool) -> String {
    if whole { String::new() } else { format!(" in bytes {} to {}", range.start, range.end) }
}

/// For `map_err`: reports a failed attempt to read or write a file.
pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ManifestError + use<> {
    let path = path.to_owned();
    move |source| ManifestError::Io { action, path: path.clone(), source }
}
