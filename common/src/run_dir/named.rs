//! What `--resume` named, and how far the run has come with it: the same command begins with it once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::failed;
use super::{Resume, RunDir, RunDirError, exists};
use crate::files::{if_there, write_atomic};

#[derive(Debug, Serialize, Deserialize)]
struct Named {
    /// The path below `checkpoints/` where it lies there, else an absolute one. A link at its end is kept.
    checkpoint: PathBuf,
    state: State,
}

/// How far a run has come with the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It has not begun with it.
    Named,
    /// It has.
    Begun,
    /// It has, and the training has ended well: the same command begins once more.
    Ended,
}

impl RunDir {
    /// `resume.json`: the checkpoint that the last launch named, and whether the run has begun with it.
    pub fn resume(&self) -> PathBuf {
        self.root().join("resume.json")
    }

    /// Whether the run has begun with this checkpoint, as `--resume` names it, since the last launch that named another one or none.
    pub fn has_begun_with(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        Ok(matches!(self.state_of(checkpoint)?, Some(State::Begun | State::Ended)))
    }

    /// Whether the command that names this checkpoint goes on from the newest one: the run has begun with it, and has one of its own.
    pub fn goes_on_after(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        // Without a checkpoint of its own it begins where it began, which may be another run's.
        Ok(self.state_of(checkpoint)? == Some(State::Begun) && self.newest_checkpoint()?.is_some())
    }

    /// Whether the run was begun with this checkpoint and has none, or has come no further than the recipe.
    pub(super) fn began_elsewhere(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        let known = self.state_of(checkpoint)?.is_some() && self.candidates()?.is_empty();
        Ok(known || !(self.has_begun()? || exists(&self.logs())?))
    }

    /// Refuses to begin anew where the run has begun, or was to begin, with a checkpoint of another run.
    pub(super) fn begins_nowhere_else(&self) -> Result<(), RunDirError> {
        match self.read_named()? {
            Some(named) if named.checkpoint.is_absolute() => Err(RunDirError::BeganElsewhere {
                path: self.root().to_owned(),
                checkpoint: named.checkpoint,
                record: self.resume(),
            }),
            _ => Ok(()),
        }
    }

    /// The name of a checkpoint in the record, wherever the command is given or the run directory moved.
    pub(super) fn below(&self, checkpoint: &Path) -> PathBuf {
        let path = std::path::absolute(checkpoint).unwrap_or_else(|_| checkpoint.to_owned());
        let Ok(own) = fs::canonicalize(self.checkpoints()) else { return path };
        // The folder that it lay in may be gone.
        let is_own = |above: &&Path| fs::canonicalize(above).is_ok_and(|above| above == own);
        let above = path.ancestors().skip(1).find(is_own);
        match above.and_then(|above| path.strip_prefix(above).ok()) {
            Some(below) => below.to_owned(),
            None => path,
        }
    }

    fn state_of(&self, checkpoint: &Path) -> Result<Option<State>, RunDirError> {
        // Written down, and not yet noted here; it may have moved.
        if self.is_coming_back(checkpoint)? {
            return Ok(Some(State::Begun));
        }
        let name = self.below(checkpoint);
        let named = self.read_named()?;
        Ok(named.filter(|named| named.checkpoint == name).map(|named| named.state))
    }

    /// Notes what a launch names. Whoever calls it has claimed the folder, and its recipe is there.
    pub(super) fn note_named(&self, resume: &Resume) -> Result<(), RunDirError> {
        let Resume::From(checkpoint) = resume else {
            let path = self.resume();
            return if_there(fs::remove_file(&path)).map_err(failed("remove", &path)).map(drop);
        };
        // The next start completes its way back, and does not begin with it again.
        let state = match self.is_coming_back(checkpoint)? {
            true => State::Begun,
            false if self.goes_on_after(checkpoint)? => return Ok(()),
            false => State::Named,
        };
        self.write_named(&Named { checkpoint: self.below(checkpoint), state })
    }

    /// Notes that the run has begun with what was named, if anything was.
    pub(super) fn note_begun(&self) -> Result<(), RunDirError> {
        self.move_on(State::Named, State::Begun)
    }

    /// Notes that the run has ended well. The launcher calls it when every worker has, without a launcher rank 0 does, last of all.
    pub fn note_ended(&self) -> Result<(), RunDirError> {
        self.move_on(State::Begun, State::Ended)
    }

    fn move_on(&self, from: State, to: State) -> Result<(), RunDirError> {
        match self.read_named()? {
            Some(named) if named.state == from => self.write_named(&Named { state: to, ..named }),
            _ => Ok(()),
        }
    }

    /// None also where it does not read: the command is taken by its word then.
    fn read_named(&self) -> Result<Option<Named>, RunDirError> {
        let path = self.resume();
        let json = if_there(fs::read(&path)).map_err(failed("read", &path))?;
        Ok(json.and_then(|json| serde_json::from_slice(&json).ok()))
    }

    fn write_named(&self, named: &Named) -> Result<(), RunDirError> {
        let path = self.resume();
        let json = serde_json::to_vec_pretty(named).map_err(io::Error::other);
        json.and_then(|json| write_atomic(&path, &json)).map_err(failed("write", &path))
    }
}
