//! Checkpoints that rollbacks have set aside, and the plan of a rollback under way.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entries::{numbered, steps_in};
use super::{RunDir, RunDirError, real, step_of};

/// Prefix of folders of checkpoints that a rollback has set aside.
pub(super) const PREFIX: &str = "rollback-";
/// Prefix of the folder of a rollback under way.
pub(super) const INTERRUPTED: &str = ".rollback-";
/// The file in the folder with the rollback's plan.
pub(super) const FILE: &str = "rollback.json";

/// The plan of a rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// The newest step of the run before the rollback.
    pub from: u64,
    /// The last step that stays.
    pub to: u64,
    /// The checkpoint that comes back from an earlier rollback, such as `rollback-1/step-00000128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<PathBuf>,
}

/// Checkpoints that a rollback has set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    pub folder: PathBuf,
    /// The plan; `None` if its file cannot be read.
    pub rollback: Option<Rollback>,
    /// The steps in rising order; empty if all have been brought back.
    pub steps: Vec<u64>,
}

impl SetAside {
    /// Returns whether a crash interrupted it; the next start completes it.
    pub fn is_interrupted(&self) -> bool {
        name_of(&self.folder).starts_with(INTERRUPTED)
    }

    /// Returns the new path of a checkpoint that this rollback has moved.
    pub fn moved(&self, checkpoint: &Path) -> Option<PathBuf> {
        let parents =
            [checkpoint.parent()?, self.folder.parent()?].map(|parent| fs::canonicalize(parent).ok());
        let moved = self.folder.join(checkpoint.file_name()?);
        (!checkpoint.exists() && parents[0] == parents[1] && moved.is_dir()).then_some(moved)
    }
}

impl Rollback {
    /// Returns the checkpoint to restore and resume from, if any, and the newest step of its line.
    pub(super) fn resume_point(&self, run_dir: &RunDir) -> (Option<PathBuf>, u64) {
        let Some(restores) = &self.restores else { return (None, self.to) };
        let set_aside = run_dir.checkpoints().join(restores);
        match set_aside.exists() {
            true => (Some(set_aside), self.to),
            false => (None, step_named(restores).unwrap_or(self.to)),
        }
    }
}

impl RunDir {
    /// Returns all rollbacks in their order; an interrupted one is the last.
    pub fn set_aside(&self) -> io::Result<Vec<SetAside>> {
        let mut folders = numbered(&self.checkpoints(), PREFIX)?;
        folders.sort_unstable();
        folders.extend(numbered(&self.checkpoints(), INTERRUPTED)?);
        let of = |(_, folder): (u64, PathBuf)| {
            Ok(SetAside { rollback: read(&folder), steps: steps_in(&folder)?, folder })
        };
        folders.into_iter().map(of).collect()
    }

    /// Returns whether a rollback under way brings this checkpoint back. It may have moved.
    pub(super) fn is_being_restored(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        let restores = self.interrupted()?.and_then(|rollback| rollback.restores);
        Ok(restores.is_some_and(|restores| restores == self.stored_path(checkpoint)))
    }

    /// Returns the last step that stays in an interrupted rollback, which may need the later checkpoints.
    pub fn interrupted_at(&self) -> Result<Option<u64>, RunDirError> {
        Ok(self.interrupted()?.map(|rollback| rollback.to))
    }

    /// Returns the interrupted rollback.
    pub(super) fn interrupted(&self) -> Result<Option<Rollback>, RunDirError> {
        Ok(self.interrupted_in()?.and_then(|(_, folder)| read(&folder)))
    }

    pub(super) fn interrupted_in(&self) -> Result<Option<(u64, PathBuf)>, RunDirError> {
        Ok(numbered(&self.checkpoints(), INTERRUPTED).map_err(self.unlisted())?.into_iter().max())
    }

    /// Returns the path below `checkpoints/` of a checkpoint that a rollback of this run has set aside.
    pub(super) fn set_aside_in(&self, checkpoint: &Path) -> Option<PathBuf> {
        let folder = checkpoint.parent()?;
        name_of(folder).strip_prefix(PREFIX)?.parse::<u64>().ok()?;
        step_named(checkpoint)?;
        let own = real(&self.checkpoints()).ok()?;
        let below = checkpoint.strip_prefix(&own).ok()?.to_owned();
        (folder.parent()? == own).then_some(below)
    }
}

pub(super) fn read(folder: &Path) -> Option<Rollback> {
    serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
}

pub(super) fn step_named(path: &Path) -> Option<u64> {
    step_of(path.file_name()?.to_str()?)
}

pub(super) fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
