//! Errors of tasks.

use std::error::Error;

use dtrain_recipe::RecipeError;
use tch::TchError;

use super::program_error::{ProgramError, Unfit};
use crate::OutOfMemory;
use crate::data::DataError;
use crate::models::ModelError;
use crate::out_of_memory::{any_cause_is_oom, causes};

/// An error of a task.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TaskError {
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Includes failed allocations.
    #[error(transparent)]
    Torch(#[from] TchError),
    #[error(transparent)]
    Data(#[from] DataError),
    /// An error of the recipe that depends on files.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A loss or a figure that does not fit a built-in network or the data.
    #[error("{}", .0.of_network())]
    Network(Box<Unfit>),
    /// An error of a user's task.
    #[error(transparent)]
    Custom(Box<dyn Error + Send + Sync>),
    #[error(
        "the task makes no predictions: it is a user's own, which has to define `BuildTask::inputs` and `Task::predict`"
    )]
    NoPrediction,
    #[error(
        "the checkpoint has no vocabulary, so its tokens have no meaning; predict from one that task = \"lm\" has written"
    )]
    NoVocabulary,
    #[error("the data has no field `{name}`, only `{}`; choose a data.kind with the fields of the task", fields.join("`, `"))]
    NoField { name: String, fields: Vec<String> },
}

impl OutOfMemory for TaskError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Model(error) => error.is_out_of_memory(),
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Custom(error) => {
                let mut tasks = causes(error.as_ref()).filter_map(|error| error.downcast_ref::<Self>());
                any_cause_is_oom(error.as_ref()) || tasks.any(Self::is_out_of_memory)
            }
            Self::Data(_)
            | Self::Recipe(_)
            | Self::Program(_)
            | Self::Network(_)
            | Self::NoPrediction
            | Self::NoVocabulary
            | Self::NoField { .. } => false,
        }
    }
}
