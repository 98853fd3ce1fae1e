//! The run directory: the place of each file of a run, and the rules for a run to begin or resume in a
//! folder. Invariant: an error writes nothing, and no run overwrites another's.

mod attempt;
mod copied;
mod entries;
mod error;
mod keep;
mod lease;
mod line;
mod lock;
mod named;
mod prepare;
mod presence;
mod probe;
mod rollback;
mod set_aside;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::files::{none_if_missing, remove_temporary};
use crate::pointer::{self, folder_name};
use entries::names;
use error::failed;

pub use crate::pointer::{follow, point, step_of, target};
pub use attempt::{AttemptRecord, JobId, attempt_folder, newest_attempt};
pub use copied::SettledCopy;
pub use entries::rename_for_removal;
pub use error::{Differences, RunDirError};
pub use keep::{Keep, Stretch};
pub use line::passed_over;
pub use lock::RunLock;
pub use prepare::Start;
pub use presence::{Life, Presence};
pub use probe::{FileSystem, ProbeError, probe};
pub use set_aside::{Rollback, SetAside};

/// The folder of one run. Constructing it reads and writes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

/// Whether a run may resume from a checkpoint.
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

    /// Reads `auto`, `never`, or a path (write `./auto` for a folder of that name).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "never" => Self::Never,
            path => Self::From(path.into()),
        })
    }
}

/// The folder of evaluations by class.
const EVALUATIONS: &str = "evaluations";

/// Prefix of folders of checkpoints that are being written.
pub const PARTIAL: &str = ".partial-";
/// Prefix of folders of checkpoints that are being removed, so that no partial checkpoint keeps its name.
pub const REMOVED: &str = ".removed-";
/// Prefix of checkpoints that another of the same step replaces; see [`RunDir::recover`].
pub const REPLACED: &str = ".replaced-";

impl RunDir {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns `recipe.toml`: the recipe as resolved.
    pub fn recipe(&self) -> PathBuf {
        self.root.join("recipe.toml")
    }

    /// Returns `plan.json`: predicted memory and the partition.
    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }

    /// Returns `metrics.jsonl`: one JSON object for each step and evaluation.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Returns `result.json`: see [`crate::result::RunResult`].
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// Returns `evaluations`: a file for each evaluation with figures by class.
    pub fn evaluations(&self) -> PathBuf {
        self.root.join(EVALUATIONS)
    }

    /// Returns the file of the evaluation of a set after `step` optimizer steps: `evaluations/step-00000120-val.json`.
    pub fn evaluation(&self, step: u64, set: &str) -> PathBuf {
        self.evaluations().join(format!("{}-{set}.json", folder_name(step)))
    }

    /// Returns the folder of samples of that evaluation: `evaluations/step-00000120-val`.
    pub fn samples(&self, step: u64, set: &str) -> PathBuf {
        self.evaluations().join(format!("{}-{set}", folder_name(step)))
    }

    /// Removes files and folders of evaluations after later steps than `step`, which a run that continues there writes again.
    pub fn drop_later_evaluations(&self, step: u64) -> io::Result<()> {
        none_if_missing(remove_temporary(&self.evaluations()))?;
        let remove = |path: PathBuf| match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        self.later_evaluations(step)?.into_iter().try_for_each(remove)
    }

    /// Returns the files and folders of evaluations after later steps than `step`.
    fn later_evaluations(&self, step: u64) -> io::Result<Vec<PathBuf>> {
        let later = |name: &String| step_of_evaluation(name).is_some_and(|own| own > step);
        let names = names(&self.evaluations())?.into_iter().filter(later);
        Ok(names.map(|name| self.evaluations().join(name)).collect())
    }

    /// Returns `trace`: the timelines of the steps of `log.trace`.
    pub fn traces(&self) -> PathBuf {
        self.root.join("trace")
    }

    /// Returns a rank's timeline: `trace/rank_0.json.gz`.
    pub fn trace(&self, rank: usize) -> PathBuf {
        self.traces().join(format!("rank_{rank}.json.gz"))
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Returns the folder of the checkpoint after `step` optimizer steps: `checkpoints/step-00000120`.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.checkpoints().join(folder_name(step))
    }

    /// Returns `checkpoints/latest`: a symbolic link to the newest checkpoint's folder, or a file with its name; see
    /// [`RunDir::linked`].
    pub fn latest(&self) -> PathBuf {
        self.checkpoints().join("latest")
    }

    /// Returns `checkpoints/.next`: a link to the checkpoint that is about to become [`RunDir::latest`].
    pub fn next(&self) -> PathBuf {
        self.checkpoints().join(".next")
    }

    /// Returns `checkpoints/best`: a link or file as [`RunDir::latest`] for the best checkpoint, in a run that keeps one.
    pub fn best(&self) -> PathBuf {
        self.checkpoints().join("best")
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Returns the folder of one rank's logs in one attempt: `logs/attempt_0/rank_0`.
    pub fn rank_logs(&self, attempt: u32, rank: usize) -> PathBuf {
        self.attempt(attempt).join(format!("rank_{rank}"))
    }

    /// Returns the default run directory: `runs/<recipe>-20261120-214512`, in local time.
    pub fn default_root(recipe_name: &str, now: SystemTime) -> PathBuf {
        let stem = Path::new(recipe_name).file_stem().unwrap_or_default().to_string_lossy();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let name: String = stem.chars().map(|c| if is_plain(c) { c } else { '_' }).take(80).collect();
        let name = if name.is_empty() { "run" } else { name.as_str() };
        // A clock outside of the calendar's years still gets a folder.
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let stamp = Zoned::new(now, TimeZone::system()).strftime("%Y%m%d-%H%M%S").to_string();
        Path::new("runs").join(format!("{name}-{stamp}"))
    }

    /// For `map_err`: the checkpoints cannot be listed.
    fn unlisted(&self) -> impl Fn(std::io::Error) -> RunDirError + use<> {
        failed("list the folder", &self.checkpoints())
    }
}

/// Returns the step of an evaluation's file, such as `step-00000120-val.json`.
fn step_of_evaluation(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.split_once('-')?.0.parse().ok()
}

fn real(path: &Path) -> Result<PathBuf, RunDirError> {
    fs::canonicalize(path).map_err(failed("find", path))
}

fn exists(path: &Path) -> Result<bool, RunDirError> {
    // A broken link exists too: a write would go through it.
    let found = none_if_missing(path.symlink_metadata()).map_err(failed("read the type of", path))?;
    Ok(found.is_some())
}

#[cfg(test)]
mod tests;
