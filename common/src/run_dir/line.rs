//! The checkpoints of a run in the order of their steps, and the choice of the one to resume.
//!
//! Invariant: the checkpoints in `checkpoints/` up to the target of `latest` are one line: each follows from
//! the one before. A run resumes from a later checkpoint only if the user names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::entries::{numbered, steps_in};
use super::{REPLACED, RunDir, RunDirError, exists, pointer, step_of};
use crate::manifest::{BestSoFar, Manifest, ManifestError};

impl RunDir {
    /// Returns the folders of the run's checkpoints in the order in which a resume tries them: the target of
    /// `latest` and earlier ones (all without `latest`). During a rollback: its target and earlier ones.
    pub fn candidates(&self) -> Result<Vec<PathBuf>, RunDirError> {
        let listed = self.unlisted();
        let mut steps = self.steps().map_err(&listed)?;
        let mut elsewhere = self.replaced().map_err(listed)?;
        elsewhere.retain(|(step, _)| !self.checkpoint(*step).exists());
        elsewhere.extend(self.copies());
        steps.extend(elsewhere.iter().map(|(step, _)| *step));
        steps.sort_unstable();
        steps.dedup();
        let (set_aside, head) = match self.interrupted()? {
            Some(rollback) => rollback.resume_point(self),
            None => (None, self.head()),
        };
        let line = steps.into_iter().rev().filter(|step| *step <= head);
        let folders = |step| {
            let own = Some(self.checkpoint(step)).filter(|own| own.exists());
            let others = elsewhere.iter().filter(move |(of, _)| *of == step);
            own.into_iter().chain(others.map(|(_, path)| path.clone()))
        };
        Ok(set_aside.into_iter().chain(line.flat_map(folders)).collect())
    }

    /// Returns the first whole candidate by manifest and file sizes.
    pub fn newest_checkpoint(&self) -> Result<Option<(PathBuf, Manifest)>, RunDirError> {
        for folder in self.candidates()? {
            let read = Manifest::read(&folder);
            match read.and_then(|manifest| manifest.check_sizes(&folder).map(|()| manifest)) {
                Ok(manifest) => return Ok(Some((folder, manifest))),
                Err(error) => drop(passed_over(&folder, error)?),
            }
        }
        Ok(None)
    }

    /// Returns whether a resume may find a checkpoint: one that cannot be read now may be whole.
    pub fn may_have_checkpoint(&self) -> bool {
        self.newest_checkpoint().map_or_else(|error| error.is_unreadable(), |newest| newest.is_some())
    }

    /// Checks that a run without a whole checkpoint may start fresh: only if it has no checkpoint at all.
    pub fn check_fresh_start(&self) -> Result<(), RunDirError> {
        let path = self.checkpoints();
        if !self.candidates()?.is_empty() {
            return Err(RunDirError::NoneWhole(path));
        }
        let listed = self.unlisted();
        if let Some(first) = self.steps().map_err(&listed)?.first() {
            return Err(RunDirError::OnlyLater(path, self.head(), *first));
        }
        let mut set_aside = self.set_aside().map_err(listed)?.into_iter();
        match set_aside.find(|one| !one.steps.is_empty()) {
            Some(one) => Err(RunDirError::OnlySetAside(path, one.folder)),
            None => self.check_not_begun_elsewhere(),
        }
    }

    /// Returns the steps of all checkpoint folders, whole or not, in rising order; none without the folder.
    pub fn steps(&self) -> io::Result<Vec<u64>> {
        steps_in(&self.checkpoints())
    }

    /// Returns the step of this run's checkpoint to which [`RunDir::latest`] or [`RunDir::best`] points.
    pub fn linked(&self, link: &Path) -> Option<u64> {
        let step = self.named(link)?;
        let own = self.checkpoint(step);
        let same = match link.is_symlink() {
            true => fs::canonicalize(link).ok()? == fs::canonicalize(own).ok()?,
            false => own.is_dir(),
        };
        same.then_some(step)
    }

    /// Returns the manifest's entry for the target of [`RunDir::best`], if it is not after `step`.
    pub fn linked_best(&self, step: u64) -> Option<BestSoFar> {
        let linked = self.linked(&self.best()).filter(|linked| *linked <= step)?;
        let best = Manifest::read(&self.checkpoint(linked)).ok()?.best;
        best.filter(|best| best.step == linked)
    }

    /// Returns the step that `link` names, even if the checkpoint is missing.
    pub(super) fn named(&self, link: &Path) -> Option<u64> {
        if pointer::is_copy(link) {
            return Manifest::read(link).ok().map(|manifest| manifest.step);
        }
        let target = pointer::target(link)?;
        let parent = target.parent()?;
        let beside = parent.as_os_str().is_empty() || parent == self.checkpoints();
        step_of(target.file_name()?.to_str()?).filter(|_| beside)
    }

    /// Returns the newest step of the run's line: the run never resumes from a later one.
    pub(super) fn head(&self) -> u64 {
        self.linked(&self.next()).or_else(|| self.named(&self.latest())).unwrap_or(u64::MAX)
    }

    /// Returns the path of this step's checkpoint while another replaces it.
    pub fn replaced_by(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("{REPLACED}{step:08}"))
    }

    /// Returns the checkpoints that are being replaced, with their steps.
    pub fn replaced(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        Ok(numbered(&self.checkpoints(), REPLACED)?.into_iter().filter(|(_, path)| path.is_dir()).collect())
    }
}

/// Returns the error of a candidate that a resume passes over for an earlier one. A newer format is an error of the search,
/// and a checkpoint that cannot be read: it may be whole, and a resume from an earlier one would set it aside.
pub fn passed_over(folder: &Path, error: ManifestError) -> Result<ManifestError, RunDirError> {
    match error {
        ManifestError::NewerFormat { .. } => Err(error.into()),
        // A running training may have removed it since it was listed.
        _ if error.is_unreadable() && exists(folder).unwrap_or(true) => Err(RunDirError::Unreadable(error)),
        _ => Ok(error),
    }
}
