//! A reduction that failed.

use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::collectives::CollectiveError;
use crate::out_of_memory::of_variants;

/// A reduction that failed.
#[derive(Debug, Error)]
pub enum ReduceError {
    /// Between the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// On this rank.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A hook could not be set.
    #[error(transparent)]
    Hook(#[from] ShimError),
    /// A gradient changed after its bucket had left.
    #[error(
        "the gradient of {name} was added to after its reduction had begun: the model runs backward more than once per \
         micro-batch; set reduce.overlap = false"
    )]
    Late {
        /// The parameter.
        name: String,
    },
}

of_variants!(ReduceError: Collective, Torch, Hook);
