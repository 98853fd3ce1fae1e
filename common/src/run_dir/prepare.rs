//! The rules for a run to begin or resume in a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::failed;
use super::lock::is_lock;
use super::{Resume, RunDir, RunDirError, RunLock, exists, pointer, real};
use crate::exit::ExitStatus;
use crate::files::{none_if_missing, write_atomic};
use crate::manifest::Manifest;
use crate::recipe::{AnyRecipe, Resolved, Source};
use crate::result::RunResult;

/// The start of a prepared run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Fresh,
    Resume(PathBuf),
}

impl RunDir {
    /// Claims the folder for the duration of the run and calls [`RunDir::prepare`]. Call it once, before
    /// anything else.
    pub fn begin(&self, recipe: &Resolved, resume: &Resume) -> Result<(Start, RunLock), RunDirError> {
        self.decide(recipe, resume)?;
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let lock = self.claim()?;
        // Another process may have written here just before.
        let start = self.prepare(recipe, resume)?;
        self.record_resume(resume)?;
        Ok((start, lock))
    }

    /// Makes the folder for a run, or opens the folder of a run of the same experiment, and writes
    /// recipe.toml. The caller has claimed the folder. If the folder may not be used, nothing is written.
    pub fn prepare(&self, recipe: &Resolved, resume: &Resume) -> Result<Start, RunDirError> {
        let start = self.decide(recipe, resume)?;
        let toml = recipe.recipe.to_toml()?;
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let path = self.recipe();
        write_atomic(&path, toml.as_bytes()).map_err(failed("write", &path))?;
        Ok(start)
    }

    fn decide(&self, recipe: &Resolved, resume: &Resume) -> Result<Start, RunDirError> {
        let holds_run = match self.first_entry()? {
            None => false,
            Some(_) if exists(&self.recipe())? || exists(&self.checkpoints())? => !self.was_rejected()?,
            Some(entry) => return Err(RunDirError::NotARun(self.root.clone(), entry)),
        };
        // The same command continues a run: its checkpoint was used the first time.
        let resume = match resume {
            Resume::From(checkpoint) if holds_run && self.resumes_newest(checkpoint)? => &Resume::Auto,
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
                        self.check_own(checkpoint)?;
                    }
                    self.compare_saved(recipe)?;
                }
                // A link such as `latest` moves during the run, perhaps before every rank has read it.
                Ok(Start::Resume(match checkpoint.is_symlink() {
                    true => real(checkpoint)?,
                    false => checkpoint.clone(),
                }))
            }
            _ if !holds_run => Ok(Start::Fresh),
            Resume::Never => Err(RunDirError::HoldsRun(self.root.clone())),
            Resume::Auto => {
                let saved = self.compare_saved(recipe)?;
                match self.newest_checkpoint()? {
                    Some((checkpoint, manifest)) => {
                        same_experiment(recipe, &manifest, &checkpoint)?;
                        Ok(Start::Resume(checkpoint))
                    }
                    None if !saved => Err(RunDirError::UnknownRun(self.root.clone())),
                    // Never start fresh silently.
                    None => self.check_fresh_start().map(|()| Start::Fresh),
                }
            }
        }
    }

    /// Returns whether the folder's run was rejected before it began, as for an unsuitable recipe.
    fn was_rejected(&self) -> Result<bool, RunDirError> {
        if self.has_begun()? {
            return Ok(false);
        }
        let path = self.result();
        let result = RunResult::read(&path).map_err(failed("read", &path))?;
        Ok(result.and_then(|result| result.exit_code) == Some(ExitStatus::Usage.code()))
    }

    /// Returns whether the folder's run has files that must not be lost.
    pub(super) fn has_begun(&self) -> Result<bool, RunDirError> {
        Ok(exists(&self.plan())? || exists(&self.metrics())? || exists(&self.checkpoints())?)
    }

    /// Resolves a named checkpoint. For this run's `latest`, returns its target after recovery from a crash.
    fn newest_if_latest(&self, checkpoint: &Path) -> Result<PathBuf, RunDirError> {
        let is_latest = checkpoint.exists() && self.latest().ends_with(self.stored_path(checkpoint));
        let newest = if is_latest { self.candidates()?.into_iter().next() } else { None };
        Ok(newest.unwrap_or_else(|| pointer::follow(checkpoint)))
    }

    /// Returns an entry of the folder other than locks; `None` if the folder is empty or absent.
    pub(super) fn first_entry(&self) -> Result<Option<String>, RunDirError> {
        let root = &self.root;
        let entries = match fs::read_dir(root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !root.is_symlink() => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(RunDirError::NotAFolder(root.clone()));
            }
            Err(error) => return Err(failed("list the folder", root)(error)),
        };
        for entry in entries {
            let name = entry.map_err(failed("list the folder", root))?.file_name();
            if !is_lock(Path::new(&name)) {
                return Ok(Some(name.to_string_lossy().into_owned()));
            }
        }
        Ok(None)
    }

    /// Compares with the saved recipe of the folder's run; false if there is no saved recipe.
    fn compare_saved(&self, recipe: &Resolved) -> Result<bool, RunDirError> {
        let path = self.recipe();
        let read = none_if_missing(fs::read_to_string(&path)).map_err(failed("read", &path))?;
        let Some(text) = read else { return Ok(false) };
        let source = Source { name: path.to_string_lossy().into_owned(), text };
        let saved = AnyRecipe::parse(&source, &[])
            .map_err(|source| RunDirError::SavedRecipe(self.root.clone(), source))?;
        match recipe.differences(&saved) {
            none if none.is_empty() => Ok(true),
            differences => Err(RunDirError::Differs(self.root.clone(), differences)),
        }
    }

    /// Rejects a checkpoint of another run. This run's checkpoints include those that rollbacks set aside.
    fn check_own(&self, checkpoint: &Path) -> Result<(), RunDirError> {
        let folder = self.checkpoints();
        if exists(&folder)? {
            let (checkpoint, folder) = (real(checkpoint)?, real(&folder)?);
            let parent = checkpoint.parent();
            if parent == Some(&folder) || self.set_aside_in(&checkpoint).is_some() {
                return Ok(());
            }
        }
        Err(RunDirError::CheckpointElsewhere(checkpoint.into(), self.root.clone()))
    }
}

fn same_experiment(recipe: &Resolved, manifest: &Manifest, checkpoint: &Path) -> Result<(), RunDirError> {
    match recipe.differences(&manifest.recipe) {
        none if none.is_empty() => Ok(()),
        differences => Err(RunDirError::CheckpointDiffers(checkpoint.into(), differences)),
    }
}
