//! The errors of a worker, and their exit codes.

use std::io;
use std::path::PathBuf;

use dtrain_common::agent_lease::LeaseError;
use dtrain_common::batch::BatchError;
use dtrain_common::env::EnvError;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::remedy;
use dtrain_common::run_dir::RunDirError;
use dtrain_recipe::{RecipeError, Task};
use tch::TchError;
use thiserror::Error;

use crate::OutOfMemory;
use crate::checkpoint::CheckpointError;
use crate::run::TrainError;
use crate::state::StateError;
use crate::step::StepError;
use dtrain_shared_memory::MemoryError;
use dtrain_torch_shim::is_of_device;

use crate::collectives::RendezvousError;
use crate::course::PlanError;
use crate::device::DeviceError;
use crate::models::ModelError;
use crate::optim::GroupError;
use crate::out_of_memory::impl_out_of_memory;
use crate::rank::RankError;
use crate::setup::predict_error::PredictError;
use crate::step::PrecisionError;
use crate::tasks::TaskError;

/// The result of most worker functions.
pub(crate) type Result<T, E = WorkerError> = std::result::Result<T, E>;

/// An error that prevents a worker from starting or continuing.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum WorkerError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Rank(#[from] RankError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(
        "task = \"{0}\" needs your own program: set DTRAIN_WORKER to its path, or run `dtrain launch -- PROGRAM RECIPE`"
    )]
    NoTask(Task),
    #[error("{key}: {source}")]
    Globs { key: String, source: GroupError },
    #[error("--epoch {epoch}: the recipe has the epochs 0 to {}; give one of them", epochs.saturating_sub(1))]
    NoEpoch { epoch: u64, epochs: u64 },
    #[error("more_tests of the task: {0}")]
    TestName(String),
    #[error("{key}: this setting has no effect: {reason}")]
    NoEffect { key: String, reason: &'static str },
    #[error(
        "stage {stage:?} begins with every parameter frozen: freeze fewer parameters, or add an unfreeze entry with at = 0"
    )]
    NothingTrained { stage: String },
    #[error(
        "memory.recompute = \"on\": the model has no segments to recompute. Remove the key, or define segments of a custom model \
         with Scope::segment"
    )]
    NoSegments,
    #[error(
        "{key}: the task has no figure {wanted:?}; use one of {}",
        known.join(", ")
    )]
    NoFigure { key: &'static str, wanted: String, known: Vec<String> },
    #[error(
        "model.file has no weights (`dtrain import --weights none`): import it with weights, set model.weights to a file of them, or \
         set model.zero_weights = true to measure memory or speed"
    )]
    NoWeights,
    #[error(
        "the order of the training samples has {given} members at each place, and a sample of the data set takes {taken}; give \
         Facts::train a set of groups with as many, or Facts::sampling another order"
    )]
    Members { given: usize, taken: usize },
    #[error("model.weights_rename: {reason}")]
    Rename { reason: String },
    #[error("cannot write {}: {reason}", path.display())]
    Merge { path: PathBuf, reason: String },
    #[error("cannot evaluate: {0}")]
    Evaluate(#[source] CheckpointError),
    #[error(transparent)]
    Predict(#[from] PredictError),
    #[error("{} has no moving average; use --weights raw", folder.display())]
    NoAverage { folder: PathBuf },
    #[error(
        "{key}: {glob:?} matches no weight of a linear layer or convolution, but {example:?}: match the weights of such layers"
    )]
    NoProduct { key: &'static str, glob: String, example: String },
    #[error(
        "model.weights lacks `{name}`, which adapters leave as it is: add it to model.lora.train if it is new, or use a file that \
         has it"
    )]
    RandomBase { name: String },
    #[error("checkpoints lack the weights that this run does not train: set model.weights to a file of them")]
    NoBase,
    #[error(
        "model.frozen holds `{name}` in fewer bytes, and {key} trains it: leave it out of one of the two"
    )]
    TrainedFrozen { key: String, name: String },
    #[error(
        "a stage unfreezes `{name}`, which checkpoints lack: add it to model.lora.train, and freeze it in the stages before"
    )]
    TrainedBase { name: String },
    #[error(
        "the weights that {} lacks are not those of its run: use the model.file and model.weights with which it began",
        folder.display()
    )]
    OtherBase { folder: PathBuf },
    #[error("model.freeze matches every parameter: leave at least one parameter trainable")]
    AllFrozen,
    #[error(
        "optim.name = \"muon\": no trained parameter is a weight matrix of a hidden layer; set optim.convolutions = true for those of \
         convolutions, name others by [[optim.group]] with muon = true, or choose \"adamw\""
    )]
    NoMatrices,
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("cannot share the list of files between the ranks of a node: {0}")]
    SharedLists(#[from] MemoryError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot write checkpoints: {0}")]
    Checkpoints(#[source] CheckpointError),
    #[error("cannot resume: {0}")]
    Resume(#[source] CheckpointError),
    #[error(
        "cannot resume: {} was trained with another {}; {remedy}",
        folder.display(), differing.join(" and ")
    )]
    OtherData { folder: PathBuf, differing: Vec<String>, remedy: &'static str },
    #[error(
        "the classes of {} differ from those of the data: {differing}. Classes are numbered by sorted folder names: restore the old \
         folder names",
        folder.display()
    )]
    OtherClasses { folder: PathBuf, differing: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(
        "the ranks must run the same program, but differ in {0}; use the same build, recipe, model files and data on all \
         nodes, and set precision.amp if their GPUs differ"
    )]
    DifferentRanks(String),
    #[error("cannot read the first message of rank 0: {0}; run the same version of dtrain on all ranks")]
    Opening(#[from] serde_json::Error),
    #[error(
        "--job: {0}; this flag is internal, use `dtrain plan`, `dtrain profile`, `dtrain eval` or `dtrain predict`"
    )]
    Question(#[source] serde_json::Error),
    #[error("cannot check {}: {reason}", path.display())]
    Check { path: PathBuf, reason: String },
    #[error("--stage: the recipe has no stage {name:?}; {}", stage_names(names))]
    NoStage { name: String, names: Vec<String> },
    #[error("cannot predict the memory of a step: {}; {}", .0, remedy_of_unpredicted(.0))]
    Unpredicted(String),
    #[error("{0}")]
    Trial(String),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("cannot write {}: {source}{}", path.display(), remedy(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot install signal handlers: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Torch(#[from] TchError),
}

impl From<StepError> for WorkerError {
    fn from(error: StepError) -> Self {
        Self::Train(error.into())
    }
}

impl From<StateError> for WorkerError {
    fn from(error: StateError) -> Self {
        Self::Train(error.into())
    }
}

impl From<BatchError> for WorkerError {
    fn from(error: BatchError) -> Self {
        Self::Plan(error.into())
    }
}

fn stage_names(names: &[String]) -> String {
    match names {
        [] => "it has no stages, remove --stage".to_owned(),
        _ => format!("use one of \"{}\"", names.join("\", \"")),
    }
}

/// Returns what to do about the error of a step that is only predicted: steps with values fail, too, if the types of tensors do not fit.
fn remedy_of_unpredicted(message: &str) -> &'static str {
    let is_of_types = ["dtype", "scalar type", "Half", "BFloat16"].iter().any(|word| message.contains(word));
    match is_of_types {
        true => {
            "set precision.amp = \"off\", or change this line of the model for mixed precision; if its training runs on a GPU, use \
             `dtrain plan --measured` there"
        }
        false => "use `dtrain plan --measured`, which runs steps on this machine",
    }
}

impl_out_of_memory!(WorkerError: Train, Torch, Model, Task, Device, Resume, Evaluate, Checkpoints, Rendezvous);

impl WorkerError {
    /// Returns the exit status for this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            _ if self.is_out_of_memory() => ExitStatus::OutOfMemory,
            // The launcher may see this rank end first.
            Self::Rendezvous(RendezvousError::NotStarted(_, code)) => ExitStatus::Program((*code).into()),
            Self::Rendezvous(RendezvousError::Environment(_) | RendezvousError::Disagreement { .. }) => {
                ExitStatus::Usage
            }
            Self::Train(error) if error.is_of_recipe() => ExitStatus::Usage,
            Self::Rendezvous(_)
            | Self::Rank(RankError::Pmi(_) | RankError::Unresolved { .. } | RankError::Port(_)) => {
                ExitStatus::Rendezvous
            }
            Self::Train(_)
            | Self::Checkpoints(_)
            | Self::Device(DeviceError::Failed { .. })
            | Self::Opening(_)
            | Self::Lease(_)
            | Self::Merge { .. }
            | Self::Write { .. }
            | Self::Predict(PredictError::Io { .. })
            | Self::Signals(_)
            | Self::SharedLists(_)
            | Self::RunDir(RunDirError::Unreadable(_))
            | Self::Torch(_) => ExitStatus::Program(1),
            // Not an error of the checkpoint: another attempt may succeed.
            Self::Resume(
                CheckpointError::Collective(_)
                | CheckpointError::Peer(_)
                | CheckpointError::Lease(_)
                | CheckpointError::Device(_),
            )
            | Self::Evaluate(CheckpointError::Collective(_) | CheckpointError::Device(_)) => {
                ExitStatus::Program(1)
            }
            Self::Device(_) => ExitStatus::Usage,
            // Also while the model is built: another attempt may succeed, or another node.
            _ if is_of_device(&self.to_string()) => ExitStatus::Program(1),
            // The other errors are in the recipe, the data, the environment or a checkpoint.
            _ => ExitStatus::Usage,
        }
    }

    /// Returns whether the cause is on another rank, which ends by it.
    pub(crate) fn is_of_another_rank(&self) -> bool {
        matches!(
            self,
            Self::Rendezvous(RendezvousError::NotStarted(..))
                | Self::Predict(PredictError::OfRankZero)
                | Self::Train(TrainError::Step(StepError::Checkpoint {
                    source: CheckpointError::Peer(_),
                    ..
                }))
        )
    }

    /// Returns whether rank 0 prints the same error, so that the other ranks can end silently.
    pub fn is_reported_by_rank_0(&self) -> bool {
        match self {
            Self::Rendezvous(RendezvousError::NotStarted(..)) => true,
            Self::Train(error) => error.is_of_all_ranks(),
            Self::Predict(error) => error.is_of_all_ranks(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_common::manifest::ManifestError;

    use crate::collectives::{CollectiveError, Operation};

    #[test]
    fn a_peer_lost_during_a_resume_is_no_error_of_the_checkpoint() {
        let lost = CollectiveError::PeerLost(Operation::new("broadcast", 0), "reset".to_owned());
        assert_eq!(WorkerError::Resume(lost.into()).exit_status(), ExitStatus::Program(1));
        let unusable = CheckpointError::Tensors("no such tensor".to_owned());
        assert_eq!(WorkerError::Resume(unusable).exit_status(), ExitStatus::Usage);
    }

    #[test]
    fn a_gpu_that_fails_while_a_model_is_built_is_no_error_of_the_recipe() {
        let failed = || TchError::Torch("CUDA error: an illegal memory access was encountered".to_owned());
        for error in [ModelError::Torch(failed()).into(), WorkerError::Task(failed().into())] {
            assert_eq!(error.exit_status(), ExitStatus::Program(1), "{error}");
        }
        let shape = TchError::Torch("shape '[3]' is invalid for input of size 1".to_owned());
        assert_eq!(WorkerError::Task(shape.into()).exit_status(), ExitStatus::Usage);
    }

    #[test]
    fn errors_of_a_training_have_their_statuses() {
        let of = |error: TrainError| {
            let error = WorkerError::from(error);
            (error.exit_status(), error.is_reported_by_rank_0(), error.is_of_another_rank())
        };
        let (usage, failed) = (ExitStatus::Usage, ExitStatus::Program(1));
        assert_eq!(of(TrainError::NothingTested { set: "test".to_owned() }), (usage, true, false));
        assert_eq!(of(TrainError::NonFinite { what: "loss", first: 1, last: 2 }), (failed, true, false));
        assert_eq!(of(StepError::LossScale { scale: 1.0 }.into()), (failed, true, false));
        assert_eq!(of(StepError::LoaderEnded.into()), (failed, false, false));
        let recomputed = ModelError::Recomputed("block".to_owned(), "values".to_owned());
        assert_eq!(of(recomputed.into()), (usage, false, false));
        let peer = StepError::unwritten(3)(CheckpointError::Peer(1));
        assert_eq!(of(peer.into()), (failed, false, true));
        let memory = TchError::Torch("CUDA out of memory. Tried to allocate 1.00 GiB".to_owned());
        assert_eq!(of(StateError::from(memory).into()), (ExitStatus::OutOfMemory, false, false));
    }

    #[test]
    fn another_attempt_may_read_a_checkpoint_that_cannot_be_read_now() {
        let stale = std::io::Error::from(std::io::ErrorKind::StaleNetworkFileHandle);
        let stale = ManifestError::Io { action: "read", path: "manifest.json".into(), source: stale };
        let status = |error: RunDirError| WorkerError::RunDir(error).exit_status();
        assert_eq!(status(RunDirError::Unreadable(stale)), ExitStatus::Program(1));
        assert_eq!(status(ManifestError::Missing("run".into()).into()), ExitStatus::Usage);
    }
}
