//! What `--resume` named, and how far the run has come with it. The same command begins with that checkpoint once, then goes on from the
//! newest one, however the launches between have ended: also by a loss of power.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Resume, RunDir, RunDirError, io_error};
use crate::files::write_atomic;

/// The content of resume.json.
#[derive(Debug, Serialize, Deserialize)]
struct Named {
    /// What the flag named, as an absolute path; links in it are kept.
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
    ///
    /// # Errors
    /// [`RunDirError::Io`] where the disk fails.
    pub fn has_begun_with(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        Ok(matches!(
            self.state_of(checkpoint)?,
            Some(State::Begun | State::Ended)
        ))
    }

    /// Whether the command that names this checkpoint goes on from the newest one.
    pub(super) fn goes_on_after(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        // Without a checkpoint of its own it begins where it began, which may be another run's.
        Ok(self.state_of(checkpoint)? == Some(State::Begun) && self.newest_checkpoint()?.is_some())
    }

    /// Whether the run has no checkpoint yet, and was begun with this one, which may be another run's.
    pub(super) fn began_elsewhere(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        Ok(self.state_of(checkpoint)?.is_some() && self.candidates()?.is_empty())
    }

    fn state_of(&self, checkpoint: &Path) -> Result<Option<State>, RunDirError> {
        // Written down, and not yet noted here; it may have moved.
        if self.is_coming_back(checkpoint)? {
            return Ok(Some(State::Begun));
        }
        let named = self.read_named()?;
        Ok(named
            .filter(|named| named.checkpoint == fixed(checkpoint))
            .map(|named| named.state))
    }

    /// Notes what a launch names. Whoever calls it has claimed the folder, and its recipe is there.
    pub(super) fn note_named(&self, resume: &Resume) -> Result<(), RunDirError> {
        let Resume::From(checkpoint) = resume else {
            let path = self.resume();
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(io_error("remove", &path, error))
                }
                _ => Ok(()),
            };
        };
        if self.goes_on_after(checkpoint)? {
            return Ok(());
        }
        self.write_named(&Named {
            checkpoint: fixed(checkpoint),
            state: State::Named,
        })
    }

    /// Notes that the run has begun with what was named, if anything was.
    pub(super) fn note_begun(&self) -> Result<(), RunDirError> {
        self.move_on(State::Named, State::Begun)
    }

    /// Notes that the training has ended well. Rank 0 calls it last.
    ///
    /// # Errors
    /// [`RunDirError::Io`] where the disk fails.
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
        match fs::read(&path) {
            Ok(json) => Ok(serde_json::from_slice(&json).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error("read", &path, source)),
        }
    }

    fn write_named(&self, named: &Named) -> Result<(), RunDirError> {
        let path = self.resume();
        let json = serde_json::to_vec_pretty(named).map_err(io::Error::other);
        json.and_then(|json| write_atomic(&path, &json))
            .map_err(|source| io_error("write", &path, source))
    }
}

/// The same command names the same path, whatever the folder it is given in.
fn fixed(checkpoint: &Path) -> PathBuf {
    std::path::absolute(checkpoint).unwrap_or_else(|_| checkpoint.to_owned())
}
