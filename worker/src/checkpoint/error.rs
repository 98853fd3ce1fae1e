//! Errors of writing and reading checkpoints.

use std::io;
use std::path::PathBuf;

use dtrain_common::agent_lease::LeaseError;
use dtrain_common::env::EnvError;
use dtrain_common::files::remedy_of;
use dtrain_common::manifest::ManifestError;
use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::collectives::CollectiveError;
use crate::models::ModelError;
use crate::out_of_memory::impl_out_of_memory;

/// An error of writing or reading a checkpoint.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CheckpointError {
    #[error("cannot {action} {}: {source}{}", path.display(), remedy_of(action, source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tensors that a file cannot hold, or that the run does not need.
    #[error("{0}")]
    Tensors(String),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Device(#[from] ShimError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error("rank {0} could not write its part of the checkpoint: see the error of that rank")]
    Peer(usize),
    #[error("the checkpoint thread panicked: see its message above")]
    Writer,
    #[error(transparent)]
    Torch(#[from] TchError),
}

impl CheckpointError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl_out_of_memory!(CheckpointError: Torch, Device, Model, Collective);
