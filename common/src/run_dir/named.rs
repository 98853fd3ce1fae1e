//! The checkpoint of `--resume`. Repeating the command begins with it only once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::failed;
use super::{Resume, RunDir, RunDirError, exists};
use crate::files::{none_if_missing, write_atomic};

#[derive(Debug, Serialize, Deserialize)]
struct ResumeRecord {
    /// Relative to `checkpoints/` if it is in there, else absolute. A link at its end is kept.
    checkpoint: PathBuf,
    state: State,
}

/// Progress of a run with the named checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The run has not begun with it.
    Named,
    /// The run has begun with it.
    Begun,
    /// The training has ended well: the same command begins with the checkpoint again.
    Ended,
}

impl RunDir {
    /// Returns `resume.json`: the checkpoint that the last launch named, and the run's progress with it.
    pub fn resume(&self) -> PathBuf {
        self.root().join("resume.json")
    }

    /// Returns whether the run has begun with this checkpoint since a launch last named another or none.
    pub fn has_begun_with(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        Ok(matches!(self.state_of(checkpoint)?, Some(State::Begun | State::Ended)))
    }

    /// Returns whether a command with this checkpoint resumes from the newest one: the run has begun with it
    /// and has written one.
    pub fn resumes_newest(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        // Without a checkpoint of this run, it begins again with the named one, which may be another run's.
        Ok(self.state_of(checkpoint)? == Some(State::Begun) && self.newest_checkpoint()?.is_some())
    }

    /// Returns whether the run began with this checkpoint and has written none, or has only its recipe.
    pub(super) fn began_elsewhere(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        let known = self.state_of(checkpoint)?.is_some() && self.candidates()?.is_empty();
        Ok(known || !(self.has_begun()? || exists(&self.logs())?))
    }

    /// Checks a fresh start: it is an error if the run has begun, or was to begin, with a checkpoint of another run.
    pub(super) fn check_not_begun_elsewhere(&self) -> Result<(), RunDirError> {
        match self.read_record()? {
            Some(named) if named.checkpoint.is_absolute() => Err(RunDirError::BeganElsewhere {
                path: self.root().to_owned(),
                checkpoint: named.checkpoint,
                record: self.resume(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the path of a checkpoint for the record; independent of the current and the run directory.
    pub(super) fn stored_path(&self, checkpoint: &Path) -> PathBuf {
        let path = std::path::absolute(checkpoint).unwrap_or_else(|_| checkpoint.to_owned());
        let Ok(own) = fs::canonicalize(self.checkpoints()) else { return path };
        // The checkpoint's folder may be gone.
        let is_own = |above: &&Path| fs::canonicalize(above).is_ok_and(|above| above == own);
        let above = path.ancestors().skip(1).find(is_own);
        match above.and_then(|above| path.strip_prefix(above).ok()) {
            Some(below) => below.to_owned(),
            None => path,
        }
    }

    fn state_of(&self, checkpoint: &Path) -> Result<Option<State>, RunDirError> {
        // The rollback has a plan but is not recorded here yet; the checkpoint may have moved.
        if self.is_being_restored(checkpoint)? {
            return Ok(Some(State::Begun));
        }
        let name = self.stored_path(checkpoint);
        let named = self.read_record()?;
        Ok(named.filter(|named| named.checkpoint == name).map(|named| named.state))
    }

    /// Records the checkpoint of a launch. The caller has claimed the folder, which holds the recipe.
    pub(super) fn record_resume(&self, resume: &Resume) -> Result<(), RunDirError> {
        let Resume::From(checkpoint) = resume else {
            let path = self.resume();
            return none_if_missing(fs::remove_file(&path)).map_err(failed("remove", &path)).map(drop);
        };
        // The next start completes the rollback and does not begin with the checkpoint again.
        let state = match self.is_being_restored(checkpoint)? {
            true => State::Begun,
            false if self.resumes_newest(checkpoint)? => return Ok(()),
            false => State::Named,
        };
        self.write_record(&ResumeRecord { checkpoint: self.stored_path(checkpoint), state })
    }

    /// Records that the run has begun with the named checkpoint, if any.
    pub(super) fn record_start(&self) -> Result<(), RunDirError> {
        self.change_state(State::Named, State::Begun)
    }

    /// Records that the run has ended well. The launcher calls it last; without a launcher rank 0 does.
    pub fn record_end(&self) -> Result<(), RunDirError> {
        self.change_state(State::Begun, State::Ended)
    }

    fn change_state(&self, from: State, to: State) -> Result<(), RunDirError> {
        match self.read_record()? {
            Some(named) if named.state == from => self.write_record(&ResumeRecord { state: to, ..named }),
            _ => Ok(()),
        }
    }

    /// Reads the record. An unreadable record is `None`: the command is then taken literally.
    fn read_record(&self) -> Result<Option<ResumeRecord>, RunDirError> {
        let path = self.resume();
        let json = none_if_missing(fs::read(&path)).map_err(failed("read", &path))?;
        Ok(json.and_then(|json| serde_json::from_slice(&json).ok()))
    }

    fn write_record(&self, named: &ResumeRecord) -> Result<(), RunDirError> {
        let path = self.resume();
        let json = serde_json::to_vec_pretty(named).map_err(io::Error::other);
        json.and_then(|json| write_atomic(&path, &json)).map_err(failed("write", &path))
    }
}
