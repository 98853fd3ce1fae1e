//! Reasons why a run may not use a folder.

use std::io;
use std::path::{Path, PathBuf};

use super::{ProbeError, RunDir, follow};
use crate::files::remedy_of;
use crate::manifest::ManifestError;
use crate::recipe::RecipeError;

/// Settings that differ: key, value in the recipe, value found.
pub type Differences = Vec<(String, String, String)>;

/// Reason why a run may not use a folder. Nothing was written. The first path is the one at fault.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("{} is not a folder; choose another --run-dir", .0.display())]
    NotAFolder(PathBuf),
    #[error(
        "{} is not empty and is not a run directory (it contains {:?}); choose another --run-dir",
        .0.display(), .1
    )]
    NotARun(PathBuf, String),
    #[error(
        "{} is in use by another run ({}); wait for its end or stop it, or choose another --run-dir",
        .0.display(), .1
    )]
    InUse(PathBuf, String),
    #[error("{} holds another run, which is not overwritten; choose another --run-dir", .0.display())]
    HoldsRun(PathBuf),
    #[error(
        "cannot determine the run of the checkpoints in {}: it has no recipe.toml and no readable manifest; choose \
         another --run-dir",
        .0.display()
    )]
    UnknownRun(PathBuf),
    #[error(
        "no checkpoint in {} is whole; `dtrain ckpt verify` lists the errors of each; choose another --run-dir for a new run",
        .0.display()
    )]
    NoneWhole(PathBuf),
    #[error(
        "{}/latest names step {}, which is missing, and the oldest checkpoint is of step {}: a rollback left it, or \
         `latest` is wrong; name a checkpoint with --resume",
        .0.display(), .1, .2
    )]
    OnlyLater(PathBuf, u64, u64),
    #[error(
        "{} has no checkpoints except those that a rollback set aside in {}; name one with --resume, or choose another \
         --run-dir for a new run",
        .0.display(),
        .1.display()
    )]
    OnlySetAside(PathBuf, PathBuf),
    #[error(
        "the run in {} started from {} and has written no checkpoint; repeat --resume {1} to start from it again, or \
         remove {} to start without it",
        path.display(),
        checkpoint.display(),
        record.display(),
    )]
    BeganElsewhere { path: PathBuf, checkpoint: PathBuf, record: PathBuf },
    #[error(
        "cannot complete the rollback in {}: its checkpoint {} is missing; put it back, or rename the folder to {} to \
         continue without it",
        .0.display(), .1.display(), .2
    )]
    RestoredIsGone(PathBuf, PathBuf, String),
    #[error("{} holds a run of another experiment: {}; choose another --run-dir{}", .0.display(), list(.1), from_weights(.0, .1))]
    Differs(PathBuf, Differences),
    #[error("the checkpoint {} is of another experiment: {}; resume it with its own recipe", .0.display(), list(.1))]
    CheckpointDiffers(PathBuf, Differences),
    #[error(
        "the checkpoint {} does not belong to the run in {}; choose another --run-dir to resume from it",
        .0.display(),
        .1.display()
    )]
    CheckpointElsewhere(PathBuf, PathBuf),
    #[error("cannot resume: {0}")]
    Checkpoint(#[from] ManifestError),
    #[error(
        "cannot resume: {0}; start again, or if this lasts, name an earlier checkpoint with --resume PATH: this one is then \
         set aside, not removed"
    )]
    Unreadable(#[source] ManifestError),
    #[error("cannot compare the experiment with the run in {}: {}; choose another --run-dir", .0.display(), .1)]
    SavedRecipe(PathBuf, #[source] RecipeError),
    #[error("{0}")]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    FileSystem(#[from] ProbeError),
    #[error("cannot {} {}: {}{}", .0, .1.display(), .2, remedy_of(.0, .2))]
    Io(&'static str, PathBuf, #[source] io::Error),
}

impl RunDirError {
    /// Returns whether the system could not read the run's checkpoints or their folder: there may be one.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Unreadable(_) | Self::Io(..))
    }
}

/// For `map_err`: reports a failed action on a path.
pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> RunDirError + use<> {
    let path = path.to_owned();
    move |source| RunDirError::Io(action, path.clone(), source)
}

/// Names the way to train a run's weights on with another optimizer, schedule or length.
fn from_weights(run: &Path, differences: &Differences) -> String {
    const OF_TRAINING: [&str; 5] = ["train.", "optim.", "stage", "ema.", "model.freeze"];
    let is_of_training = |key: &str| OF_TRAINING.iter().any(|part| key.starts_with(part));
    let weights = follow(&RunDir::new(run).latest()).join("model.safetensors");
    match differences.iter().all(|(key, ..)| is_of_training(key)) && weights.is_file() {
        true => {
            format!(", and start from this run's weights with model.weights = \"{}\"", weights.display())
        }
        false => String::new(),
    }
}

fn list(differences: &Differences) -> String {
    let items =
        differences.iter().map(|(key, mine, theirs)| format!("{key} is {theirs} there and {mine} here"));
    items.collect::<Vec<_>>().join(", ")
}
