//! Checkpoints that cannot be written or read.

use std::io;
use std::path::PathBuf;

use dtrain_common::env::EnvError;
use dtrain_common::manifest::ManifestError;
use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::collectives::CollectiveError;
use crate::models::ModelError;
use crate::out_of_memory::of_variants;

/// A checkpoint that cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file or folder.
    #[error("cannot {action} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The manifest, or a file that does not agree with it.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The model's file.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tensors that a file cannot hold, or that are not those that the run needs.
    #[error("{0}")]
    Tensors(String),
    /// `DTRAIN_FAULT`.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// On the device that is copied from.
    #[error(transparent)]
    Device(#[from] ShimError),
    /// Between the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Other ranks could not write their part.
    #[error("rank {0} could not write its part; its own message says why")]
    Peer(usize),
    /// The thread that writes ended too early.
    #[error("the thread that writes checkpoints has ended; its message stands above")]
    Writer,
    /// A tensor operation.
    #[error(transparent)]
    Torch(#[from] TchError),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => " (free some space)",
        io::ErrorKind::PermissionDenied => " (the run directory must be writable)",
        _ => "",
    }
}

impl CheckpointError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

of_variants!(CheckpointError: Torch, Device, Model, Collective);
