//! The run directory: where each file of a run lies, and the rules by which a run may begin or go on in a
//! folder. Invariant: a refusal writes nothing, and no run ever overwrites another's.

mod entries;
mod error;
mod keep;
mod lease;
mod line;
mod lock;
mod named;
mod prepare;
mod rollback;
mod set_aside;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::files::if_there;
use crate::manifest::folder_name;
use error::failed;

pub use crate::manifest::step_of;
pub use entries::hide;
pub use error::{Differences, RunDirError};
pub use keep::Keep;
pub use lock::RunLock;
pub use prepare::Start;
pub use set_aside::{Rollback, SetAside};

/// The folder of one run. Cheap; makes and reads nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

/// Whether a run may go on from an earlier checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// From the newest checkpoint in the run directory, if there is one.
    Auto,
    /// Never: the run directory must be new.
    Never,
    /// From this checkpoint's folder.
    From(PathBuf),
}

impl FromStr for Resume {
    type Err = std::convert::Infallible;

    /// `auto`, `never`, or a path (write `./auto` for a folder of that name).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "never" => Self::Never,
            path => Self::From(path.into()),
        })
    }
}

/// Begins the names of folders of checkpoints that are being written.
pub const PARTIAL: &str = ".partial-";
/// Begins the names of folders of checkpoints that are being removed: a checkpoint is there whole or not at all.
pub const REMOVED: &str = ".removed-";
/// Begins the names of checkpoints that give way to another of their step; see [`RunDir::recover`].
pub const REPLACED: &str = ".replaced-";

impl RunDir {
    /// The run directory at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `recipe.toml`: the recipe as resolved.
    pub fn recipe(&self) -> PathBuf {
        self.root.join("recipe.toml")
    }

    /// `plan.json`: predicted memory and the partition chosen.
    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }

    /// `metrics.jsonl`: one JSON object for each step and evaluation.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// `result.json`: see [`crate::result::RunResult`].
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// The folder of all checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// The folder of the checkpoint after `step` optimizer steps: `checkpoints/step-00000120`.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.checkpoints().join(folder_name(step))
    }

    /// `checkpoints/latest`: a symbolic link to the newest checkpoint's folder.
    pub fn latest(&self) -> PathBuf {
        self.checkpoints().join("latest")
    }

    /// `checkpoints/.next`: a link to the checkpoint that becomes [`RunDir::latest`] once it has its name.
    pub fn next(&self) -> PathBuf {
        self.checkpoints().join(".next")
    }

    /// `checkpoints/best`: a symbolic link to the best checkpoint's folder, in a run that keeps one.
    pub fn best(&self) -> PathBuf {
        self.checkpoints().join("best")
    }

    /// The folder of all logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The folder of one rank's logs in one attempt: `logs/attempt_0/rank_0`.
    pub fn rank_logs(&self, attempt: u32, rank: usize) -> PathBuf {
        self.logs().join(format!("attempt_{attempt}/rank_{rank}"))
    }

    /// The run directory of a run that names none: `runs/<recipe>-20261120-214512`, in local time.
    pub fn default_root(recipe_name: &str, now: SystemTime) -> PathBuf {
        let stem = Path::new(recipe_name).file_stem().unwrap_or_default().to_string_lossy();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let name: String = stem.chars().map(|c| if is_plain(c) { c } else { '_' }).take(80).collect();
        let name = if name.is_empty() { "run" } else { name.as_str() };
        // A clock outside the years that a calendar has still gets a folder.
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let stamp = Zoned::new(now, TimeZone::system()).strftime("%Y%m%d-%H%M%S").to_string();
        Path::new("runs").join(format!("{name}-{stamp}"))
    }

    /// For `map_err`: the checkpoints cannot be listed.
    fn unlisted(&self) -> impl Fn(std::io::Error) -> RunDirError + use<> {
        failed("list the folder", &self.checkpoints())
    }
}

fn real(path: &Path) -> Result<PathBuf, RunDirError> {
    fs::canonicalize(path).map_err(failed("find", path))
}

fn exists(path: &Path) -> Result<bool, RunDirError> {
    // A link that points nowhere is there too: writing would go through it.
    let found = if_there(path.symlink_metadata()).map_err(failed("look at", path))?;
    Ok(found.is_some())
}

#[cfg(test)]
mod tests;
