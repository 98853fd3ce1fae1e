//! Errors that end a training early.

use std::io;

use dtrain_common::files::remedy;
use dtrain_common::manifest::ManifestError;
use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::checkpoint::CheckpointError;
use crate::collectives::CollectiveError;
use crate::data::DataError;
use crate::models::ModelError;
use crate::step::recover::Exhausted;
use crate::step::scaler::ScalerError;
use crate::tasks::TaskError;

/// The result of most training functions.
pub(crate) type Result<T, E = TrainError> = std::result::Result<T, E>;

/// An error after which a training cannot continue.
#[derive(Debug, Error)]
pub enum TrainError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the data loader ended before the run: this is a bug in dtrain, please report it")]
    LoaderEnded,
    #[error(
        "{bad} of {total} {what} images are unreadable, more than the limit of 1%; the first are named above. Repair or remove \
         them and run the same command again; a training resumes from its last checkpoint"
    )]
    TooManyBad { what: &'static str, bad: usize, total: usize },
    #[error(
        "the {what} was not finite {}, so these steps were skipped; {}", steps(*first, *last), match first {
            // No update came before: neither the learning rate nor clipping has acted.
            0 | 1 => {
                "set precision.amp = \"off\", or check the data and model.weights for extreme values: no update has been made, \
                 so optim.lr is not the cause"
            }
            _ => "lower optim.lr, set optim.clip, set precision.amp = \"off\", or check the data for invalid values",
        }
    )]
    NonFinite { what: &'static str, first: u64, last: u64 },
    #[error(
        "no sample or pixel counted {}: all images are unreadable, or all their pixels have the value of data.ignore; check the images \
         and masks", steps(*first, *last)
    )]
    NothingCounted { first: u64, last: u64 },
    #[error(
        "no sample or pixel of the test set counts: all images are unreadable, or all their pixels have the value of data.ignore; \
         check the test images and masks, or set data.resize = \"stretch\" if cropping removes all other pixels"
    )]
    NothingTested,
    #[error(
        "samples of the test set: {samples}, and model.file is valid only for {least} or more at once; use a larger test set, or import \
         a model that takes fewer samples"
    )]
    SmallTestSet { samples: usize, least: usize },
    #[error(
        "model.file is valid only for {least} to {most} samples at once, and batches of these sizes divide few test sets; import a model \
         that takes more samples"
    )]
    NarrowBatches { least: usize, most: usize },
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
    #[error("parameter {name}: {source}")]
    Moved { name: String, source: ShimError },
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
    #[error(
        "cannot write metrics.jsonl: {0}{hint}; start it again with the same --run-dir to resume, or set checkpoint.on_failure = \
         \"continue\" to train on", hint = remedy(.0)
    )]
    Metrics(#[source] io::Error),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Returns "at step 4" or "from step 4 to step 9".
fn steps(first: u64, last: u64) -> String {
    if first == last { format!("at step {first}") } else { format!("from step {first} to step {last}") }
}

impl TrainError {
    pub(crate) fn unwritten(step: u64) -> impl FnOnce(CheckpointError) -> Self {
        move |source| Self::Checkpoint { step, source }
    }

    /// Returns the error of a parameter that could not be moved into or out of its block.
    pub(crate) fn moved(name: &str) -> impl Fn(ShimError) -> Self + Copy {
        move |source| Self::Moved { name: name.to_owned(), source }
    }

    /// Returns whether a checkpoint could not be written to disk, on this rank or another.
    pub(crate) fn is_disk_error(&self) -> bool {
        let Self::Checkpoint { source, .. } = self else { return false };
        matches!(source, CheckpointError::Io { .. } | CheckpointError::Manifest(_) | CheckpointError::Peer(_))
    }
}

impl OutOfMemory for TrainError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::UnknownSums => true,
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Task(error) => error.is_out_of_memory(),
            Self::Kernel(error) | Self::Moved { source: error, .. } => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::Checkpoint { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }
}
