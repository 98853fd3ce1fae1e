//! Errors of the state's table.

use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::collectives::CollectiveError;

/// The result of most functions of the table.
pub(crate) type Result<T, E = StateError> = std::result::Result<T, E>;

/// An error of the table, its moves or its updates.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum StateError {
    #[error(transparent)]
    Torch(#[from] TchError),
    #[error(transparent)]
    Kernel(#[from] ShimError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error("parameter {name}: {source}")]
    Moved { name: String, source: ShimError },
    #[error("model.state names `{name}`, which is no buffer of the model; it has {}", names(known))]
    NoBuffer { name: String, known: Vec<String> },
    #[error("model.state.{name}: {problem}")]
    Join { name: String, problem: &'static str },
}

fn names(all: &[String]) -> String {
    match all {
        [] => "none".to_owned(),
        all => format!("`{}`", all.join("`, `")),
    }
}

impl StateError {
    /// Returns the error of a parameter that could not be moved into or out of its block.
    pub(super) fn moved(name: &str) -> impl Fn(ShimError) -> Self + Copy {
        move |source| Self::Moved { name: name.to_owned(), source }
    }
}

impl OutOfMemory for StateError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Kernel(error) | Self::Moved { source: error, .. } => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::NoBuffer { .. } | Self::Join { .. } => false,
        }
    }
}
