//! Problems of a checkpoint, and failures of a command.

use super::inventory::name;
use crate::stdout::join_causes;
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::{FILE_NAME, ManifestError};
use std::io;
use std::path::Path;

/// A failure of a correct command, not of its usage.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failed {
    pub(super) message: String,
    pub(super) status: ExitStatus,
}

/// Returns a failure with exit code 1.
pub(super) fn failed(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Failed { message: join_causes(&error.into()), status: ExitStatus::Program(1) }.into()
}

/// Returns the failure of a command that a signal stopped before `out` was written.
pub(super) fn stopped(signal: i32, out: &Path) -> anyhow::Error {
    let message = format!("stopped by {}; {} was not written", signals::name(signal), out.display());
    Failed { message, status: ExitStatus::Signal(signal) }.into()
}

/// Returns the kind of a checkpoint's problem, for scripts.
pub(super) fn kind(error: &ManifestError) -> &'static str {
    let is_missing = |source: &io::Error| source.kind() == io::ErrorKind::NotFound;
    match error {
        ManifestError::Missing { .. } => "no-manifest",
        ManifestError::NewerFormat { .. } => "newer-format",
        ManifestError::Size { .. } => "size",
        ManifestError::Checksum { .. } => "checksum",
        ManifestError::Io { path, source, .. } if is_missing(source) && name(path) == FILE_NAME => {
            "no-manifest"
        }
        ManifestError::Io { source, .. } if is_missing(source) => "missing",
        ManifestError::Io { .. } => "unreadable",
        _ => "manifest",
    }
}

/// Describes the problem in a sentence, without the folder, which the caller names.
pub(super) fn sentence(error: &ManifestError) -> String {
    match error {
        ManifestError::Missing { .. } => "manifest.json is missing".into(),
        ManifestError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
            format!("{} is missing", name(path))
        }
        ManifestError::Size { path, expected, got } => {
            format!("{} has {got} bytes, but its manifest lists {expected}", name(path))
        }
        ManifestError::Checksum { path, range, whole, .. } => {
            let place = match whole {
                true => String::new(),
                false => format!(" in bytes {} to {}", range.start, range.end),
            };
            format!("{} has a wrong checksum{place}", name(path))
        }
        ManifestError::NewerFormat { format, .. } => {
            format!("a newer dtrain wrote its format {format}; this version cannot verify it")
        }
        other => other.to_string(),
    }
}
