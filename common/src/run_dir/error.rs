//! Why a run may not use a folder.

use std::io;
use std::path::PathBuf;

use crate::manifest::ManifestError;
use crate::recipe::RecipeError;

/// Settings that differ: key, value asked for, value found.
pub type Differences = Vec<(String, String, String)>;

/// Why a run may not use a folder. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The path is taken by something that is no folder.
    #[error("{} is not a folder; choose another --run-dir", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder holds files that are not a run's.
    #[error(
        "{} is not empty and holds no run of dtrain (it holds {entry:?}); choose another --run-dir",
        path.display()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// One of its entries.
        entry: String,
    },
    /// Another run goes on in the folder.
    #[error(
        "{} is in use by another run ({holder}); wait for its end or stop it, or choose another --run-dir",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who holds it, in its own words.
        holder: String,
    },
    /// The folder holds a run and the new one must not go on from it.
    #[error("{} holds another run, which is not overwritten; choose another --run-dir", path.display())]
    HoldsRun {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds checkpoints and nothing that tells of which experiment.
    #[error(
        "{} holds checkpoints but neither a recipe.toml nor a manifest that reads, so it cannot be told which run they \
         belong to; choose another --run-dir",
        path.display()
    )]
    UnknownRun {
        /// The folder.
        path: PathBuf,
    },
    /// There are checkpoints, and all of them are damaged.
    #[error(
        "no checkpoint in {} is whole; `dtrain ckpt verify` says what is wrong with each. Choose another --run-dir to begin anew",
        path.display()
    )]
    NoneWhole {
        /// The folder of the checkpoints.
        path: PathBuf,
    },
    /// All checkpoints are of steps behind the one that `latest` names.
    #[error(
        "{}/latest names step {latest}, which is gone, and the oldest checkpoint there is of step {first}: it belongs to steps that \
         were given up, or `latest` is wrong; name the checkpoint with --resume to go on from it",
        path.display()
    )]
    OnlyLater {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// The step that `latest` names.
        latest: u64,
        /// The first step that there is.
        first: u64,
    },
    /// All checkpoints are set aside.
    #[error(
        "{} holds no checkpoint but those that a rollback set aside in {}; name one with --resume to go on from it, or choose another \
         --run-dir to begin anew",
        path.display(),
        folder.display()
    )]
    OnlySetAside {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// Where some are.
        folder: PathBuf,
    },
    /// The run has begun with a checkpoint of another run, and has none of its own.
    #[error(
        "the run in {} began with {} and has no checkpoint of its own; give --resume {} to begin with it again, or remove {} to begin \
         without it",
        path.display(),
        checkpoint.display(),
        checkpoint.display(),
        record.display()
    )]
    BeganElsewhere {
        /// The run directory.
        path: PathBuf,
        /// The checkpoint's folder.
        checkpoint: PathBuf,
        /// The file that says so.
        record: PathBuf,
    },
    /// A checkpoint that was being brought back is nowhere.
    #[error(
        "cannot complete the rollback in {}: the checkpoint {} that it brings back is gone; put it back, or rename the folder to {name} \
         to go on without it",
        folder.display(),
        checkpoint.display()
    )]
    RestoredIsGone {
        /// The rollback's folder.
        folder: PathBuf,
        /// Where the checkpoint lay.
        checkpoint: PathBuf,
        /// The name of the folder of a rollback that is completed.
        name: String,
    },
    /// The folder's run is another experiment.
    #[error("{} holds a run of another experiment: {}; choose another --run-dir", path.display(), list(differences))]
    Differs {
        /// The folder.
        path: PathBuf,
        /// What differs.
        differences: Differences,
    },
    /// The checkpoint is of another experiment.
    #[error("the checkpoint {} is of another experiment: {}; resume it with its own recipe", path.display(), list(differences))]
    CheckpointDiffers {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What differs.
        differences: Differences,
    },
    /// The run directory holds a run and the checkpoint is not one of its own.
    #[error(
        "the checkpoint {} does not belong to the run in {}; choose another --run-dir to go on from it",
        checkpoint.display(),
        path.display()
    )]
    CheckpointElsewhere {
        /// The checkpoint's folder.
        checkpoint: PathBuf,
        /// The run directory.
        path: PathBuf,
    },
    /// The checkpoint to resume from cannot be used.
    #[error("cannot resume: {0}")]
    Checkpoint(#[from] ManifestError),
    /// The recipe of the run in the folder does not read.
    #[error("cannot tell which experiment {} holds: {source}; choose another --run-dir", path.display())]
    SavedRecipe {
        /// The folder.
        path: PathBuf,
        /// What is wrong with its recipe.
        source: RecipeError,
    },
    /// The new run's recipe cannot be saved.
    #[error("{0}")]
    Recipe(#[from] RecipeError),
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn list(differences: &Differences) -> String {
    let items = differences
        .iter()
        .map(|(key, mine, theirs)| format!("{key} is {theirs} there and {mine} here"));
    items.collect::<Vec<_>>().join(", ")
}
