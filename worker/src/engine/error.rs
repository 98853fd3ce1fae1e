//! What ends a training early.

use std::io;

use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::checkpoint::CheckpointError;
use crate::collectives::CollectiveError;
use crate::data::DataError;
use crate::models::ModelError;
use crate::optim::OptimError;
use crate::state::{AverageError, StateError};
use crate::step::ScalerError;
use crate::step::exchange::ReduceError;
use crate::step::recover::Exhausted;
use crate::tasks::TaskError;

/// A training that cannot go on.
#[derive(Debug, Error)]
pub enum TrainError {
    /// Data that cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The loader ended before the run did.
    #[error("the loader ended before the run did; this is a bug of dtrain")]
    LoaderEnded,
    /// More images than the limit turned out to be unreadable during the run.
    #[error(
        "{bad} of {total} training images could not be read, which is more than 1%; the first ones are named above. Mend \
         or remove them and start again: the run resumes from its last checkpoint"
    )]
    TooManyBad {
        /// Unreadable images met so far, by all ranks.
        bad: u64,
        /// Images of the training set.
        total: u64,
    },
    /// Steps were skipped because of values that are not finite: many in a row, or those at the end of the run.
    #[error(
        "the {what} was not finite {}, so nothing was learnt there; lower optim.lr, set optim.clip, set precision.amp = \"off\" where \
         it is on, or look for broken values in the data", steps(*first, *last)
    )]
    NonFinite {
        /// The loss or the gradient, in the first of them.
        what: &'static str,
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// Steps were skipped because nothing in them counts: many in a row, or those at the end of the run.
    #[error(
        "no sample or pixel counted {}, so nothing was learnt there: the images cannot be read, or all their pixels have the value of \
         data.ignore; look at the images and masks", steps(*first, *last)
    )]
    NothingCounted {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// An evaluation of nothing.
    #[error(
        "no sample or pixel of the test set counts: its images cannot be read, or all their pixels have the value of data.ignore; look \
         at the test images and masks, or set data.resize = \"stretch\" if the cut leaves nothing"
    )]
    NothingTested,
    /// No loss scale keeps float16 gradients finite.
    #[error(
        "the loss scale has fallen to {scale:e} because float16 gradients keep overflowing; set precision.amp = \"bf16\", lower \
         optim.lr, or look for broken values in the data"
    )]
    LossScale {
        /// The scale.
        scale: f64,
    },
    /// Memory ran out, and nothing is left that would save any.
    #[error(transparent)]
    OutOfMemory(Box<Exhausted>),
    /// Memory ran out before it was known what the other ranks wait for.
    #[error(
        "out of memory in the first micro-step of the run, in which the other ranks wait for BatchNorm's sums; start with a \
         smaller memory.micro_batch, or without model.batchnorm = \"synced\""
    )]
    UnknownSums,
    /// A checkpoint's loss scale.
    #[error(transparent)]
    Scaler(#[from] ScalerError),
    /// The moving average.
    #[error(transparent)]
    Average(#[from] AverageError),
    /// In the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// In the task: its model, or data that is not for it.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// In a kernel or hook that tch lacks.
    #[error(transparent)]
    Kernel(#[from] ShimError),
    /// In the reduction.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    /// Between the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// In the update.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// In the state table.
    #[error(transparent)]
    State(#[from] StateError),
    /// In a tensor operation.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A checkpoint could not be written.
    #[error(
        "the checkpoint after step {step} cannot be written: {source}; earlier checkpoints are intact, and the same \
         command goes on from the newest"
    )]
    Checkpoint {
        /// The step.
        step: u64,
        /// The cause.
        source: CheckpointError,
    },
    /// metrics.jsonl could not be written.
    #[error("metrics.jsonl cannot be written: {0}")]
    Metrics(#[source] io::Error),
}

/// "at step 4" or "from step 4 to step 9".
fn steps(first: u64, last: u64) -> String {
    match first == last {
        true => format!("at step {first}"),
        false => format!("from step {first} to step {last}"),
    }
}

impl TrainError {
    /// Whether it is a checkpoint that a disk did not take, on this rank or another.
    pub(crate) fn is_of_disk(&self) -> bool {
        let Self::Checkpoint { source, .. } = self else {
            return false;
        };
        matches!(
            source,
            CheckpointError::Io { .. } | CheckpointError::Manifest(_) | CheckpointError::Peer(_)
        )
    }
}

impl OutOfMemory for TrainError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::UnknownSums => true,
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Task(error) => error.is_out_of_memory(),
            Self::Kernel(error) => error.is_out_of_memory(),
            Self::Reduce(error) => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::Optim(error) => error.is_out_of_memory(),
            Self::State(error) => error.is_out_of_memory(),
            Self::Average(error) => error.is_out_of_memory(),
            Self::Checkpoint { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }
}
