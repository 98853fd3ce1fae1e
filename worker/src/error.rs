//! How a worker fails, and with which exit code.

use std::io;
use std::path::PathBuf;

use dtrain_common::batch::BatchError;
use dtrain_common::env::EnvError;
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::{RecipeError, Task};
use dtrain_common::run_dir::RunDirError;
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::checkpoint::CheckpointError;
use crate::collectives::RendezvousError;
use crate::device::DeviceError;
use crate::engine::{PlanError, PrecisionError, TrainError};
use crate::models::ModelError;
use crate::optim::GroupError;
use crate::state::{AverageError, StateError};
use crate::tasks::TaskError;

/// A worker that cannot begin or go on.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The environment contract is broken.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The recipe.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A task of a user's own, in dtrain's worker.
    #[error(
        "task = \"{0}\" is trained by a program of your own: set DTRAIN_WORKER to it, or start it with \
         `dtrain launch -- PROGRAM RECIPE`"
    )]
    NoTask(Task),
    /// Globs on parameter names that are a mistake.
    #[error("{key}: {source}")]
    Globs {
        /// The recipe's key.
        key: String,
        /// The cause.
        source: GroupError,
    },
    /// Globs that have no effect beside others, or contradict them.
    #[error("{key}: this setting has no effect: {reason}")]
    Idle {
        /// The recipe's key.
        key: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A stage begins with nothing to train.
    #[error(
        "stage {stage:?} begins with every parameter frozen; freeze fewer of them, or give its unfreeze an entry with at = 0"
    )]
    NothingTrained {
        /// The stage.
        stage: String,
    },
    /// Recomputation of a model that has nothing to compute again.
    #[error(
        "memory.recompute = \"on\", but the model has no segments that could be computed again in backward; those of the tasks \
         classify, segment and lm have, and a task of your own by Scope::segment. Leave the key out, or set it to \"off\""
    )]
    NoSegments,
    /// The best checkpoint by a figure that there is not.
    #[error(
        "checkpoint.best: the task has no figure {wanted:?} that checkpoints could be compared by; it has {}",
        known.join(", ")
    )]
    NoFigure {
        /// The figure that the recipe names.
        wanted: String,
        /// The names of those that an evaluation has.
        known: Vec<String>,
    },
    /// A pattern that is no regular expression.
    #[error("model.weights_rename: {reason}")]
    Rename {
        /// Why not.
        reason: String,
    },
    /// The checkpoint to evaluate.
    #[error("cannot evaluate: {0}")]
    Evaluate(#[source] CheckpointError),
    /// The weights that were asked for are not in the checkpoint.
    #[error("{} holds no moving average; evaluate its --weights raw", folder.display())]
    NoAverage {
        /// The checkpoint.
        folder: PathBuf,
    },
    /// Nothing is left to train.
    #[error("model.freeze matches every parameter of the model; leave some of them to be trained")]
    AllFrozen,
    /// A precision that the device lacks.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// The moving average.
    #[error("ema: {0}")]
    Average(#[from] AverageError),
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The task: its data or its model.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The figures of the recipe do not go together.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The checkpoint to resume from.
    #[error("cannot resume: {0}")]
    Resume(#[source] CheckpointError),
    /// The checkpoint to resume from is of other data.
    #[error(
        "cannot resume: {} was trained with another {} than the data gives now; train on the data of that run, or start a new \
         one with another --run-dir",
        folder.display(), differing.join(" and ")
    )]
    OtherData {
        /// The checkpoint.
        folder: PathBuf,
        /// What differs, such as "vocabulary".
        differing: Vec<String>,
    },
    /// The checkpoint's outputs are other classes than those of the data.
    #[error(
        "the classes of {} are not those of the data: {differing}; classes are numbered by the sorted names of their folders, so give \
         the folders the names that they had",
        folder.display()
    )]
    OtherClasses {
        /// The checkpoint.
        folder: PathBuf,
        /// The first that differ, in words.
        differing: String,
    },
    /// The model or its weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The GPU that this rank was to train on.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Rank 0's message to the others was not understood.
    #[error("rank 0's opening cannot be read ({0}); all ranks must run the same version of dtrain")]
    Opening(#[from] serde_json::Error),
    /// A job that is none.
    #[error("--job: {0}; it is the launcher's, start `dtrain plan` or `dtrain profile`")]
    Job(#[source] serde_json::Error),
    /// A stage that the recipe has not.
    #[error("there is no stage {name:?}; {}", stage_names(names))]
    NoStage {
        /// What was asked for.
        name: String,
        /// What there is.
        names: Vec<String>,
    },
    /// A step in a process of its own failed.
    #[error("{0}")]
    Attempt(String),
    /// The training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A file of the run directory.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    /// A tensor operation during the set-up.
    #[error(transparent)]
    Torch(#[from] TchError),
}

impl From<BatchError> for WorkerError {
    fn from(error: BatchError) -> Self {
        Self::Plan(error.into())
    }
}

impl From<StateError> for WorkerError {
    fn from(error: StateError) -> Self {
        Self::Train(error.into())
    }
}

fn stage_names(names: &[String]) -> String {
    match names {
        [] => "the recipe has none, leave --stage out".to_owned(),
        _ => format!("those of the recipe are \"{}\"", names.join("\", \"")),
    }
}

impl WorkerError {
    /// The exit code's meaning.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            _ if self.is_out_of_memory() => ExitStatus::OutOfMemory,
            Self::Env(_)
            | Self::Recipe(_)
            | Self::NoTask(_)
            | Self::Globs { .. }
            | Self::Idle { .. }
            | Self::NothingTrained { .. }
            | Self::NoSegments
            | Self::NoFigure { .. }
            | Self::AllFrozen
            | Self::Rename { .. }
            | Self::Evaluate(_)
            | Self::NoAverage { .. }
            | Self::Precision(_)
            | Self::RunDir(_)
            | Self::Task(_)
            | Self::Plan(_)
            | Self::Resume(_)
            | Self::OtherData { .. }
            | Self::OtherClasses { .. }
            | Self::Model(_)
            | Self::Device(
                DeviceError::NoDriver { .. }
                | DeviceError::NoCudaSet { .. }
                | DeviceError::OldDriver { .. }
                | DeviceError::NoneVisible { .. }
                | DeviceError::TooFew { .. },
            )
            | Self::Job(_)
            | Self::NoStage { .. }
            | Self::Attempt(_)
            | Self::Train(
                TrainError::Data(_)
                | TrainError::TooManyBad { .. }
                | TrainError::NothingCounted { .. }
                | TrainError::NothingTested
                | TrainError::Model(ModelError::Recomputed { .. }),
            )
            | Self::Rendezvous(
                RendezvousError::Refused(_)
                | RendezvousError::Environment(_)
                | RendezvousError::Disagreement { .. },
            ) => ExitStatus::Usage,
            Self::Rendezvous(_) => ExitStatus::Rendezvous,
            _ => ExitStatus::Program(1),
        }
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Train(error) => error.is_out_of_memory(),
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Task(error) => error.is_out_of_memory(),
            Self::Average(error) => error.is_out_of_memory(),
            Self::Device(error) => error.is_out_of_memory(),
            Self::Resume(error) | Self::Evaluate(error) => error.is_out_of_memory(),
            Self::Rendezvous(RendezvousError::Group(error)) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// Whether rank 0 says it too, so that the others may end in silence.
    pub fn is_said_by_rank_0(&self) -> bool {
        matches!(
            self,
            Self::Rendezvous(RendezvousError::Refused(_))
                | Self::Train(
                    TrainError::NonFinite { .. }
                        | TrainError::NothingCounted { .. }
                        | TrainError::NothingTested
                        | TrainError::LossScale { .. }
                        | TrainError::TooManyBad { .. }
                        | TrainError::OutOfMemory(_),
                )
        )
    }
}
