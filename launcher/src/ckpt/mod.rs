//! `dtrain ckpt`: the checkpoints of a run. They are known by their manifests and the headers of their files; nothing here holds a
//! tensor.

mod export;
mod find;
mod inventory;
mod ls;
mod progress;
mod prune;
mod show;
mod verify;

use crate::cli::CkptCommand;
use crate::in_one_line;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::ManifestError;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// Wrong usage: exit code 2.
pub(crate) fn run(command: &CkptCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        CkptCommand::Ls(args) => ls::run(args),
        CkptCommand::Show(args) => show::run(args),
        CkptCommand::Verify(args) => verify::run(args),
        CkptCommand::Prune(args) => prune::run(args),
        CkptCommand::Export(args) => export::run(args),
    };
    done.or_else(|error| {
        let status = error.downcast_ref().map(|Failed { status, .. }| *status);
        let Some(status) = status else {
            return Err(error);
        };
        // If standard error is closed there is nobody left to tell, and the exit code still says it.
        let _ = writeln!(io::stderr(), "dtrain: error: {error}");
        Ok(status.into())
    })
}

/// Not a matter of usage: the command was right and could not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
struct Failed {
    said: String,
    status: ExitStatus,
}

/// An error whose exit code is 1.
fn failed(error: impl Into<anyhow::Error>) -> anyhow::Error {
    let said = in_one_line(&error.into());
    let status = ExitStatus::Program(1);
    Failed { said, status }.into()
}

/// What is wrong with a checkpoint, in a word for scripts.
fn kind(error: &ManifestError) -> &'static str {
    match error {
        ManifestError::Missing { .. } => "no-manifest",
        ManifestError::NewerFormat { .. } => "newer-format",
        ManifestError::Size { .. } => "size",
        ManifestError::Checksum { .. } => "checksum",
        ManifestError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
            match path.file_name() {
                Some(name) if name == dtrain_common::manifest::FILE_NAME => "no-manifest",
                _ => "missing",
            }
        }
        ManifestError::Io { .. } => "unreadable",
        _ => "manifest",
    }
}

/// What is wrong in a sentence, without the folder, which is named already.
fn sentence(error: &ManifestError) -> String {
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    match error {
        ManifestError::Missing { .. } => "manifest.json is missing".into(),
        ManifestError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
            format!("{} is missing", name(path))
        }
        ManifestError::Size { path, expected, got } => {
            format!("{} has {got} bytes and its manifest says {expected}", name(path))
        }
        ManifestError::Checksum {
            path, range, whole, ..
        } => {
            let place = if *whole {
                String::new()
            } else {
                format!(" in bytes {} to {}", range.start, range.end)
            };
            format!("{} does not have its checksum{place}", name(path))
        }
        ManifestError::NewerFormat { format, .. } => {
            format!(
                "it has format {format}, which a newer dtrain wrote; this one cannot tell whether it is whole"
            )
        }
        other => other.to_string(),
    }
}
