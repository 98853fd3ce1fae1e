//! Reasons why a run may not use a folder.

use std::io;
use std::path::{Path, PathBuf};

use crate::manifest::ManifestError;
use crate::recipe::RecipeError;

/// Settings that differ: key, value asked for, value found.
pub type Differences = Vec<(String, String, String)>;

/// Reason why a run may not use a folder. Nothing was written. The first path is the one at fault.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("{} is not a folder; choose another --run-dir", .0.display())]
    NotAFolder(PathBuf),
    #[error(
        "{} is not empty and holds no run of dtrain (it holds {:?}); choose another --run-dir",
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
        "{} holds checkpoints but neither a recipe.toml nor a manifest that reads, so it cannot be told which run they \
         belong to; choose another --run-dir",
        .0.display()
    )]
    UnknownRun(PathBuf),
    #[error(
        "no checkpoint in {} is whole; `dtrain ckpt verify` says what is wrong with each. Choose another --run-dir to begin anew",
        .0.display()
    )]
    NoneWhole(PathBuf),
    #[error(
        "{}/latest names step {}, which is gone, and the oldest checkpoint there is of step {}: it belongs to steps that \
         were given up, or `latest` is wrong; name the checkpoint with --resume to go on from it",
        .0.display(), .1, .2
    )]
    OnlyLater(PathBuf, u64, u64),
    #[error(
        "{} holds no checkpoint but those that a rollback set aside in {}; name one with --resume to go on from it, or choose another \
         --run-dir to begin anew",
        .0.display(),
        .1.display()
    )]
    OnlySetAside(PathBuf, PathBuf),
    #[error(
        "the run in {} began with {} and has no checkpoint of its own; give --resume {1} to begin with it again, or remove {} to begin \
         without it",
        path.display(),
        checkpoint.display(),
        record.display(),
    )]
    BeganElsewhere { path: PathBuf, checkpoint: PathBuf, record: PathBuf },
    #[error(
        "cannot complete the rollback in {}: the checkpoint {} that it brings back is gone; put it back, or rename the folder to {} \
         to go on without it",
        .0.display(), .1.display(), .2
    )]
    RestoredIsGone(PathBuf, PathBuf, String),
    #[error("{} holds a run of another experiment: {}; choose another --run-dir", .0.display(), list(.1))]
    Differs(PathBuf, Differences),
    #[error("the checkpoint {} is of another experiment: {}; resume it with its own recipe", .0.display(), list(.1))]
    CheckpointDiffers(PathBuf, Differences),
    #[error(
        "the checkpoint {} does not belong to the run in {}; choose another --run-dir to go on from it",
        .0.display(),
        .1.display()
    )]
    CheckpointElsewhere(PathBuf, PathBuf),
    #[error("cannot resume: {0}")]
    Checkpoint(#[from] ManifestError),
    #[error("cannot tell which experiment {} holds: {}; choose another --run-dir", .0.display(), .1)]
    SavedRecipe(PathBuf, #[source] RecipeError),
    #[error("{0}")]
    Recipe(#[from] RecipeError),
    #[error("cannot {} {}: {}", .0, .1.display(), .2)]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// For `map_err`: reports a failed action on a path.
pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> RunDirError + use<> {
    let path = path.to_owned();
    move |source| RunDirError::Io(action, path.clone(), source)
}

fn list(differences: &Differences) -> String {
    let items =
        differences.iter().map(|(key, mine, theirs)| format!("{key} is {theirs} there and {mine} here"));
    items.collect::<Vec<_>>().join(", ")
}
