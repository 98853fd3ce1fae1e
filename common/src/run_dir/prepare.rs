//! The rules by which a run may begin or go on in a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::failed;
use super::lock::is_lock;
use super::{Resume, RunDir, RunDirError, RunLock, exists, real};
use crate::exit::ExitStatus;
use crate::files::{if_there, write_atomic};
use crate::manifest::Manifest;
use crate::recipe::Recipe;
use crate::result::RunResult;

/// How a prepared run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Fresh,
    Resume(PathBuf),
}

impl RunDir {
    /// [`RunDir::prepare`] with a claim to the folder for as long as the run lasts. Call it once, first of
    /// all.
    pub fn begin(&self, recipe: &Recipe, resume: &Resume) -> Result<(Start, RunLock), RunDirError> {
        self.decide(recipe, resume)?;
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let lock = self.claim()?;
        // Somebody else may have been here just before.
        let start = self.prepare(recipe, resume)?;
        self.note_named(resume)?;
        Ok((start, lock))
    }

    /// Makes the folder for a run, or opens that of an earlier run of the same experiment, and writes
    /// recipe.toml. Whoever calls it has claimed the folder. Where it may not be used, nothing is written.
    pub fn prepare(&self, recipe: &Recipe, resume: &Resume) -> Result<Start, RunDirError> {
        let start = self.decide(recipe, resume)?;
        let toml = recipe.to_toml()?;
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let path = self.recipe();
        write_atomic(&path, toml.as_bytes()).map_err(failed("write", &path))?;
        Ok(start)
    }

    fn decide(&self, recipe: &Recipe, resume: &Resume) -> Result<Start, RunDirError> {
        let holds_run = match self.first_entry()? {
            None => false,
            Some(_) if exists(&self.recipe())? || exists(&self.checkpoints())? => !self.was_refused()?,
            Some(entry) => return Err(RunDirError::NotARun(self.root.clone(), entry)),
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
                    // Never a silent fresh start.
                    None => self.none_to_begin_with().map(|()| Start::Fresh),
                }
            }
        }
    }

    /// Whether the folder's run ended before it began, as by a recipe that does not go with the data.
    fn was_refused(&self) -> Result<bool, RunDirError> {
        if self.has_begun()? {
            return Ok(false);
        }
        let path = self.result();
        let result = RunResult::read(&path).map_err(failed("read", &path))?;
        Ok(result.and_then(|result| result.exit_code) == Some(ExitStatus::Usage.code()))
    }

    /// Whether the folder's run has come so far that it has something to lose.
    pub(super) fn has_begun(&self) -> Result<bool, RunDirError> {
        Ok(exists(&self.plan())? || exists(&self.metrics())? || exists(&self.checkpoints())?)
    }

    /// A checkpoint that is named; where that is this run's `latest`, the one that it will be when what a crash broke off is completed.
    fn newest_if_latest(&self, checkpoint: &Path) -> Result<PathBuf, RunDirError> {
        let is_latest = checkpoint.exists() && self.latest().ends_with(self.below(checkpoint));
        let newest = if is_latest { self.candidates()?.into_iter().next() } else { None };
        Ok(newest.unwrap_or_else(|| checkpoint.to_owned()))
    }

    /// An entry of the folder but locks; none when the folder is empty or absent.
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

    /// Compares with the recipe that the folder's run was started with; false when there is none.
    fn compare_saved(&self, recipe: &Recipe) -> Result<bool, RunDirError> {
        let path = self.recipe();
        let read = if_there(fs::read_to_string(&path)).map_err(failed("read", &path))?;
        let Some(text) = read else { return Ok(false) };
        let saved = Recipe::parse(&path.to_string_lossy(), &text, &[])
            .map_err(|source| RunDirError::SavedRecipe(self.root.clone(), source))?;
        match recipe.differences(&saved) {
            none if none.is_empty() => Ok(true),
            differences => Err(RunDirError::Differs(self.root.clone(), differences)),
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
        Err(RunDirError::CheckpointElsewhere(checkpoint.into(), self.root.clone()))
    }
}

fn same_experiment(recipe: &Recipe, manifest: &Manifest, checkpoint: &Path) -> Result<(), RunDirError> {
    match recipe.differences(&manifest.recipe) {
        none if none.is_empty() => Ok(()),
        differences => Err(RunDirError::CheckpointDiffers(checkpoint.into(), differences)),
    }
}
