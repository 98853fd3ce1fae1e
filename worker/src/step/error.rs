//! Errors of a step.

use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use super::exhausted::Exhausted;
use super::scaler::ScalerError;
use crate::OutOfMemory;
use crate::checkpoint::CheckpointError;
use crate::collectives::CollectiveError;
use crate::data::DataError;
use crate::models::ModelError;
use crate::state::StateError;
use crate::tasks::TaskError;

/// The result of most functions of a step.
pub(crate) type Result<T, E = StepError> = std::result::Result<T, E>;

/// An error that prevents a step.
#[derive(Debug, Error)]
pub enum StepError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the data loader ended before the run: this is a bug in dtrain, please report it")]
    LoaderEnded,
    #[error(
        "the loss scale fell to {scale:e}: float16 gradients keep overflowing; set precision.amp = \"bf16\", lower optim.lr, or check \
         the data for invalid values"
    )]
    LossScale { scale: f64 },
    #[error(transparent)]
    OutOfMemory(Box<Exhausted>),
    #[error(
        "out of memory in the first micro-step of the run, while other ranks wait for BatchNorm's sums: set a smaller \
         memory.micro_batch, or remove model.batchnorm = \"synced\""
    )]
    UnknownSums,
    #[error(transparent)]
    Scaler(#[from] ScalerError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Kernel(#[from] ShimError),
    #[error(
        "the gradient of {name} changed after its reduction began: the model runs backward more than once per \
         micro-batch; set reduce.overlap = false"
    )]
    LateGradient { name: String },
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Torch(#[from] TchError),
    #[error(
        "cannot write the checkpoint after step {step}: {source}. Earlier checkpoints are intact; start it again with the \
         same --run-dir to resume from the newest"
    )]
    Checkpoint { step: u64, source: CheckpointError },
    #[error(transparent)]
    State(#[from] StateError),
}

impl StepError {
    pub(crate) fn unwritten(step: u64) -> impl FnOnce(CheckpointError) -> Self {
        move |source| Self::Checkpoint { step, source }
    }

    /// Returns whether a checkpoint could not be written to disk, on this rank or another.
    pub(crate) fn is_disk_error(&self) -> bool {
        let Self::Checkpoint { source, .. } = self else { return false };
        matches!(source, CheckpointError::Io { .. } | CheckpointError::Manifest(_) | CheckpointError::Peer(_))
    }

    /// Returns whether the cause is in the recipe, the model or the data: another attempt ends alike.
    pub(crate) fn is_of_recipe(&self) -> bool {
        matches!(
            self,
            Self::Data(_)
                | Self::Model(ModelError::Recomputed { .. })
                | Self::State(StateError::NoBuffer { .. } | StateError::Join { .. })
                | Self::Task(TaskError::Model(
                    ModelError::Batch(..) | ModelError::Rows(..) | ModelError::View(_),
                ))
        )
    }
}

impl OutOfMemory for StepError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::UnknownSums => true,
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Task(error) => error.is_out_of_memory(),
            Self::Kernel(error) => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::State(error) => error.is_out_of_memory(),
            Self::Checkpoint { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }
}
