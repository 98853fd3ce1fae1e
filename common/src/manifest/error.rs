//! Errors of reading a checkpoint.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{FILE_NAME, FORMAT, MAX_BYTES, folder_name};
use crate::files::remedy_of;
use crate::text::size;

/// Reason why a checkpoint cannot be used. Paths are the manifest's unless stated otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{} is not a whole checkpoint: it has no {FILE_NAME}; name a folder such as RUN/checkpoints/step-00000120", .0.display())]
    Missing(PathBuf),
    #[error("cannot {action} {}: {source}{}", path.display(), remedy_of(action, source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is larger than the {} that this dtrain reads, so an earlier one wrote it; model.safetensors beside it can be used as \
         model.weights",
        .0.display(), size(MAX_BYTES)
    )]
    TooLarge(PathBuf),
    #[error(
        "a checkpoint's manifest would have {}, more than the {} that a resume reads: class names {}, other data of the task {}, \
         recipe {}; shorten the names of the classes, which are folders or columns of the data set, or the recipe",
        size(*bytes), size(MAX_BYTES), size(*class_names), size(*extra), size(*recipe)
    )]
    Unwritable { bytes: u64, class_names: u64, extra: u64, recipe: u64 },
    #[error("{} is not a checkpoint manifest: {}", .0.display(), .1)]
    Json(PathBuf, #[source] serde_json::Error),
    /// The checksum is right, so the file is as it was written.
    #[error(
        "{} is whole, but this version of dtrain does not read it: {}; the files beside it can be used, such as model.safetensors \
         as model.weights",
        .0.display(), .1
    )]
    OtherContent(PathBuf, #[source] serde_json::Error),
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
    },
}

impl ManifestError {
    /// Returns whether the system could not read the checkpoint, which says nothing about its content.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Io { .. }) && !self.is_damage()
    }

    /// Returns whether the checkpoint is proved to be damaged. One that cannot be read now, that another dtrain wrote, or
    /// whose folder has another name may be whole.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Missing(_)
            | Self::Json(..)
            | Self::OwnChecksum(_)
            | Self::FileName(..)
            | Self::ChecksumForm(..)
            | Self::Parts(..)
            | Self::Size { .. }
            | Self::Checksum { .. } => true,
            // A file of a folder that can be listed is missing, or something else has its name.
            Self::Io { path, source, .. } => match source.kind() {
                io::ErrorKind::NotFound => {
                    path.parent().is_some_and(|folder| std::fs::read_dir(folder).is_ok())
                }
                io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => true,
                _ => source.raw_os_error().is_none(),
            },
            Self::OtherStep(..)
            | Self::OtherContent(..)
            | Self::NewerFormat { .. }
            | Self::UnknownFormat(..)
            | Self::TooLarge(_)
            | Self::Unwritable { .. } => false,
        }
    }
}

fn describe_range(range: &Range<u64>, whole: bool) -> String {
    if whole { String::new() } else { format!(" in bytes {} to {}", range.start, range.end) }
}

/// For `map_err`: reports a failed attempt to read or write a file.
pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ManifestError + use<> {
    let path = path.to_owned();
    move |source| ManifestError::Io { action, path: path.clone(), source }
}
