//! Errors that end a training early.

use std::io;
use std::path::PathBuf;

use dtrain_common::files::remedy;
use dtrain_common::manifest::ManifestError;
use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::collectives::CollectiveError;
use crate::data::DataError;
use crate::models::ModelError;
use crate::state::StateError;
use crate::step::StepError;
use crate::tasks::TaskError;

/// The result of most training functions.
pub(crate) type Result<T, E = TrainError> = std::result::Result<T, E>;

/// An error after which a training cannot continue.
#[derive(Debug, Error)]
pub enum TrainError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(
        "{bad} of {total} {what} images are unreadable, more than the limit of 1%; the first are named above. Repair or remove \
         them and run the same command again; a training resumes from its last checkpoint"
    )]
    TooManyBad { what: String, bad: usize, total: usize },
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
        "no sample or pixel counted {}: each sample has an unreadable image, all pixels have the value of data.ignore, or all classes have \
         the weight 0 in model.loss; check these", steps(*first, *last)
    )]
    NothingCounted { first: u64, last: u64 },
    #[error(
        "no sample or pixel of the {set} set counts: each sample has an unreadable image, all their pixels have the value of \
         data.ignore, or all classes have the weight 0 in model.loss; check these, or set data.resize = \"stretch\" if cropping removes \
         all other pixels"
    )]
    NothingTested { set: String },
    #[error(
        "samples of the {set} set: {samples}, and model.file is valid only for {least} or more at once; use a larger set, or import \
         a model that takes fewer samples"
    )]
    SmallTestSet { set: String, samples: usize, least: usize },
    #[error(
        "model.file is valid only for {least} to {most} samples at once, and batches of these sizes divide few test sets; import a model \
         that takes more samples"
    )]
    NarrowBatches { least: usize, most: usize },
    #[error(
        "cannot write metrics.jsonl: {0}{hint}; start it again with the same --run-dir to resume, or set checkpoint.on_failure = \
         \"continue\" to train on", hint = remedy(.0)
    )]
    Metrics(#[source] io::Error),
    #[error(
        "cannot write {}: {source}{hint}; start it again with the same --run-dir to resume, or set checkpoint.on_failure = \"continue\" to \
         train on",
        path.display(), hint = remedy(source)
    )]
    ByClass { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Errors of lower floors, which a step has too.
macro_rules! impl_from {
    ($($error:ty),+) => {
        $(impl From<$error> for TrainError {
            fn from(error: $error) -> Self {
                Self::Step(error.into())
            }
        })+
    };
}
impl_from!(DataError, ModelError, TaskError, ShimError, CollectiveError, TchError, StateError);

/// Returns "at step 4" or "from step 4 to step 9".
fn steps(first: u64, last: u64) -> String {
    if first == last { format!("at step {first}") } else { format!("from step {first} to step {last}") }
}

impl TrainError {
    /// Returns whether the cause is in the recipe, the model, the data or the run directory: another attempt ends alike.
    pub(crate) fn is_of_recipe(&self) -> bool {
        match self {
            Self::Step(error) => error.is_of_recipe(),
            Self::TooManyBad { .. }
            | Self::NothingCounted { .. }
            | Self::NothingTested { .. }
            | Self::SmallTestSet { .. }
            | Self::NarrowBatches { .. }
            | Self::Manifest(_) => true,
            Self::NonFinite { .. } | Self::Metrics(_) | Self::ByClass { .. } => false,
        }
    }

    /// Returns whether every rank ends by the same error.
    pub(crate) fn is_of_all_ranks(&self) -> bool {
        match self {
            Self::Step(error) => matches!(error, StepError::LossScale { .. } | StepError::OutOfMemory(_)),
            Self::Metrics(_) | Self::ByClass { .. } => false,
            Self::TooManyBad { .. }
            | Self::NonFinite { .. }
            | Self::NothingCounted { .. }
            | Self::NothingTested { .. }
            | Self::SmallTestSet { .. }
            | Self::NarrowBatches { .. }
            | Self::Manifest(_) => true,
        }
    }
}

impl OutOfMemory for TrainError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Step(error) if error.is_out_of_memory())
    }
}
