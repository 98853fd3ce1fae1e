//! The run directory: where each file of a run lies, and the rules by which a run may begin or go on in a folder.
//!
//! Invariant: a refusal writes nothing, and no run ever overwrites another's.

mod error;
mod keep;
mod lease;
mod line;
mod lock;
mod named;
mod rollback;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::exit::ExitStatus;
use crate::files::write_atomic;
use crate::manifest::Manifest;
use crate::recipe::Recipe;
use crate::result::RunResult;

use lock::is_lock;

pub use error::{Differences, RunDirError};
pub use keep::Keep;
pub use line::hide;
pub use lock::RunLock;
pub use rollback::{Rollback, SetAside};

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

/// How a prepared run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// From the beginning.
    Fresh,
    /// From the checkpoint in this folder.
    Resume(PathBuf),
}

const STEP_PREFIX: &str = "step-";
/// Begins the names of folders of checkpoints that are being written.
pub const PARTIAL: &str = ".partial-";
/// Begins the names of folders of checkpoints that are being removed: a checkpoint is there whole or not at all.
pub const REMOVED: &str = ".removed-";
/// Begins the names of folders of checkpoints that give way to another of the same step, where the file system cannot exchange two
/// names at once. [`RunDir::recover`] brings one back whose step has no other.
pub const REPLACED: &str = ".replaced-";

impl RunDir {
    /// The run directory at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
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
        self.checkpoints().join(format!("{STEP_PREFIX}{step:08}"))
    }

    /// `checkpoints/latest`: a symbolic link to the newest checkpoint's folder.
    pub fn latest(&self) -> PathBuf {
        self.checkpoints().join("latest")
    }

    /// `checkpoints/.next`: a link to the checkpoint that is about to be the newest one. It becomes [`RunDir::latest`] as soon as that
    /// checkpoint has its name.
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
        self.logs()
            .join(format!("attempt_{attempt}"))
            .join(format!("rank_{rank}"))
    }

    /// Where one rank writes its error in one attempt.
    pub fn error_file(&self, attempt: u32, rank: usize) -> PathBuf {
        self.rank_logs(attempt, rank).join("error.json")
    }

    /// Where a run goes that names no directory: `runs/<name>-20261120-214512`, in local time. `recipe_name` is the
    /// recipe's path or name; its folder and extension do not count.
    pub fn default_root(recipe_name: &str, now: SystemTime) -> PathBuf {
        let stem = Path::new(recipe_name)
            .file_stem()
            .map(|stem| stem.to_string_lossy())
            .unwrap_or_default();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        };
        let name: String = stem.chars().map(plain).take(80).collect();
        let name = if name.is_empty() { "run" } else { name.as_str() };
        // A clock outside the years that a calendar has still gets a folder.
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let stamp = Zoned::new(now, TimeZone::system())
            .strftime("%Y%m%d-%H%M%S")
            .to_string();
        Path::new("runs").join(format!("{name}-{stamp}"))
    }

    /// [`RunDir::prepare`] with a claim to the folder, which is held as long as the run lasts. Call it once, before any worker
    /// starts.
    ///
    /// # Errors
    /// [`RunDirError`] when the folder may not be used; nothing of a run has been written then.
    pub fn begin(&self, recipe: &Recipe, resume: &Resume) -> Result<(Start, RunLock), RunDirError> {
        self.decide(recipe, resume)?;
        fs::create_dir_all(&self.root).map_err(|source| io_error("create the folder", &self.root, source))?;
        let lock = self.claim()?;
        // Somebody else may have been here just before.
        let start = self.prepare(recipe, resume)?;
        self.note_named(resume)?;
        Ok((start, lock))
    }

    /// Makes the folder for a run of `recipe`, or opens that of an earlier run of the same experiment, and writes
    /// recipe.toml. Whoever calls it has claimed the folder, see [`RunDir::begin`], or is alone with it.
    ///
    /// # Errors
    /// [`RunDirError`] when the folder may not be used; nothing has been written then.
    pub fn prepare(&self, recipe: &Recipe, resume: &Resume) -> Result<Start, RunDirError> {
        let start = self.decide(recipe, resume)?;
        let toml = recipe.to_toml()?;
        fs::create_dir_all(&self.root).map_err(|source| io_error("create the folder", &self.root, source))?;
        let path = self.recipe();
        write_atomic(&path, toml.as_bytes()).map_err(|source| io_error("write", &path, source))?;
        Ok(start)
    }

    /// The rules; reads only.
    fn decide(&self, recipe: &Recipe, resume: &Resume) -> Result<Start, RunDirError> {
        let holds_run = match self.first_entry()? {
            None => false,
            Some(_) if exists(&self.recipe())? || exists(&self.checkpoints())? => !self.was_refused()?,
            Some(entry) => {
                return Err(RunDirError::NotARun {
                    path: self.root.clone(),
                    entry,
                });
            }
        };
        // A run goes on by the same command: what that says was done the first time.
        let resume = match resume {
            Resume::From(checkpoint) if holds_run && self.goes_on_after(checkpoint)? => &Resume::Auto,
            other => other,
        };
        match resume {
            Resume::From(checkpoint) => {
                let checkpoint = &self.newest_if_latest(checkpoint)?;
                let manifest = Manifest::read(checkpoint)?;
                manifest.check_sizes(checkpoint)?;
                same_experiment(recipe, &manifest, checkpoint)?;
                if holds_run {
                    if !self.began_elsewhere(checkpoint)? {
                        self.owns(checkpoint)?;
                    }
                    self.compare_saved(recipe)?;
                }
                // A link such as `latest` moves on during the run, perhaps before every rank has read through it.
                let fixed = if checkpoint.is_symlink() {
                    real(checkpoint)?
                } else {
                    checkpoint.clone()
                };
                Ok(Start::Resume(fixed))
            }
            _ if !holds_run => Ok(Start::Fresh),
            Resume::Never => Err(RunDirError::HoldsRun {
                path: self.root.clone(),
            }),
            Resume::Auto => {
                let saved = self.compare_saved(recipe)?;
                match self.newest_checkpoint()? {
                    Some((checkpoint, manifest)) => {
                        same_experiment(recipe, &manifest, &checkpoint)?;
                        Ok(Start::Resume(checkpoint))
                    }
                    None if !saved => Err(RunDirError::UnknownRun {
                        path: self.root.clone(),
                    }),
                    // Never a silent fresh start.
                    None => self.none_to_begin_with().map(|()| Start::Fresh),
                }
            }
        }
    }

    /// Whether the folder's run ended before it began, as one does whose recipe goes with neither data nor machine: there is
    /// nothing to go on with and nothing to lose, and the mended recipe is another experiment.
    fn was_refused(&self) -> Result<bool, RunDirError> {
        if self.has_begun()? {
            return Ok(false);
        }
        let path = self.result();
        let result = RunResult::read(&path).map_err(|source| io_error("read", &path, source))?;
        let code = result.and_then(|result| result.exit_code);
        Ok(code == Some(ExitStatus::Usage.code()))
    }

    /// Whether the folder's run has come so far that it has something to lose.
    fn has_begun(&self) -> Result<bool, RunDirError> {
        Ok(exists(&self.plan())? || exists(&self.metrics())? || exists(&self.checkpoints())?)
    }

    /// A checkpoint that is named; where that is this run's `latest`, the one that it will be when what a crash broke off is completed.
    fn newest_if_latest(&self, checkpoint: &Path) -> Result<PathBuf, RunDirError> {
        let is_latest = checkpoint.exists() && self.latest().ends_with(self.below(checkpoint));
        let newest = match is_latest {
            true => self.candidates()?.into_iter().next(),
            false => None,
        };
        Ok(newest.unwrap_or_else(|| checkpoint.to_owned()))
    }

    /// An entry of the folder but locks; none when the folder is empty or absent.
    fn first_entry(&self) -> Result<Option<String>, RunDirError> {
        let entry = match fs::read_dir(&self.root) {
            Ok(mut entries) => entries
                .find(|entry| {
                    let name = entry.as_ref().map(|entry| PathBuf::from(entry.file_name()));
                    !name.is_ok_and(|name| is_lock(&name))
                })
                .transpose(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.root.is_symlink() => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(RunDirError::NotAFolder {
                    path: self.root.clone(),
                });
            }
            Err(error) => Err(error),
        };
        let entry = entry.map_err(|source| io_error("list the folder", &self.root, source))?;
        Ok(entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
    }

    /// Compares with the recipe that the folder's run was started with; false when there is none.
    fn compare_saved(&self, recipe: &Recipe) -> Result<bool, RunDirError> {
        let path = self.recipe();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(io_error("read", &path, source)),
        };
        let saved = Recipe::parse(&path.to_string_lossy(), &text, &[]).map_err(|source| {
            RunDirError::SavedRecipe {
                path: self.root.clone(),
                source,
            }
        })?;
        match recipe.differences(&saved) {
            none if none.is_empty() => Ok(true),
            differences => Err(RunDirError::Differs {
                path: self.root.clone(),
                differences,
            }),
        }
    }

    /// Refuses a checkpoint that is not among this run's, those that a rollback has set aside included.
    fn owns(&self, checkpoint: &Path) -> Result<(), RunDirError> {
        let folder = self.checkpoints();
        if exists(&folder)? {
            let (checkpoint, folder) = (real(checkpoint)?, real(&folder)?);
            let parent = checkpoint.parent();
            if parent == Some(&folder) || self.set_aside_in(&checkpoint).is_some() {
                return Ok(());
            }
        }
        Err(RunDirError::CheckpointElsewhere {
            checkpoint: checkpoint.into(),
            path: self.root.clone(),
        })
    }
}

/// The step of a checkpoint folder's name, when it is spelt as [`RunDir::checkpoint`] spells it.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP_PREFIX)?.parse().ok()?;
    (name == format!("{STEP_PREFIX}{step:08}")).then_some(step)
}

fn same_experiment(recipe: &Recipe, manifest: &Manifest, checkpoint: &Path) -> Result<(), RunDirError> {
    match recipe.differences(&manifest.recipe) {
        none if none.is_empty() => Ok(()),
        differences => Err(RunDirError::CheckpointDiffers {
            path: checkpoint.into(),
            differences,
        }),
    }
}

/// The path without links.
fn real(path: &Path) -> Result<PathBuf, RunDirError> {
    fs::canonicalize(path).map_err(|source| io_error("find", path, source))
}

fn exists(path: &Path) -> Result<bool, RunDirError> {
    // A link that points nowhere is there too: writing would go through it.
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(io_error("look at", path, source)),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> RunDirError {
    RunDirError::Io {
        action,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests;
