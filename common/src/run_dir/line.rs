//! The checkpoints of a run in the order of their steps, and which of them it goes on from.
//!
//! Invariant: those in `checkpoints/` up to the one that `latest` names are of one line of steps, each of which a later one follows
//! from. Nothing behind it is ever gone on from unless somebody names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::entries::{numbered, steps_in};
use super::{REPLACED, RunDir, RunDirError, step_of};
use crate::manifest::{BestSoFar, Manifest, ManifestError};

impl RunDir {
    /// The folders of the run's checkpoints, in the order in which a run tries to go on: the one that
    /// `latest` names and those before it, or all, or during a rollback the one that it goes back to and
    /// those before it.
    pub fn candidates(&self) -> Result<Vec<PathBuf>, RunDirError> {
        let listed = self.unlisted();
        let mut steps = self.steps().map_err(&listed)?;
        steps.extend(self.replaced().map_err(listed)?.iter().map(|(step, _)| *step));
        steps.sort_unstable();
        steps.dedup();
        let (set_aside, head) = match self.under_way()? {
            Some(rollback) => rollback.begins_at(self),
            None => (None, self.head()),
        };
        let line = steps.into_iter().rev().filter(|step| *step <= head);
        let folder = |step| {
            let (own, replaced) = (self.checkpoint(step), self.replaced_by(step));
            if own.exists() { own } else { replaced }
        };
        Ok(set_aside.into_iter().chain(line.map(folder)).collect())
    }

    /// The first candidate whose manifest reads and whose files have their sizes; a newer format is an error.
    pub fn newest_checkpoint(&self) -> Result<Option<(PathBuf, Manifest)>, RunDirError> {
        for folder in self.candidates()? {
            match Manifest::read(&folder) {
                Ok(manifest) if manifest.check_sizes(&folder).is_ok() => return Ok(Some((folder, manifest))),
                // It may well be whole: only this dtrain cannot tell.
                Err(error @ ManifestError::NewerFormat { .. }) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether a run without a whole checkpoint may begin anew: where there is none at all. Never a silent fresh start.
    pub fn none_to_begin_with(&self) -> Result<(), RunDirError> {
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
            None => self.begins_nowhere_else(),
        }
    }

    /// The steps that there are folders of checkpoints for, whole or not, in rising order; none without a folder.
    pub fn steps(&self) -> io::Result<Vec<u64>> {
        steps_in(&self.checkpoints())
    }

    /// The step of this run's checkpoint to which `link`, [`RunDir::latest`] or [`RunDir::best`], points.
    pub fn linked(&self, link: &Path) -> Option<u64> {
        let step = self.named(link)?;
        let same = fs::canonicalize(link).ok()? == fs::canonicalize(self.checkpoint(step)).ok()?;
        same.then_some(step)
    }

    /// What [`RunDir::best`] points to, by that checkpoint's own manifest, where it is not behind `step`.
    pub fn linked_best(&self, step: u64) -> Option<BestSoFar> {
        let linked = self.linked(&self.best()).filter(|linked| *linked <= step)?;
        let best = Manifest::read(&self.checkpoint(linked)).ok()?.best;
        best.filter(|best| best.step == linked)
    }

    /// The step that `link` names, whether its checkpoint is there or not.
    pub(super) fn named(&self, link: &Path) -> Option<u64> {
        let target = fs::read_link(link).ok()?;
        let parent = target.parent()?;
        let beside = parent.as_os_str().is_empty() || parent == self.checkpoints();
        step_of(target.file_name()?.to_str()?).filter(|_| beside)
    }

    /// The newest step of the run's line: behind it lies nothing that the run goes on from.
    pub(super) fn head(&self) -> u64 {
        self.linked(&self.next()).or_else(|| self.named(&self.latest())).unwrap_or(u64::MAX)
    }

    /// Where a checkpoint of this step is while another takes its place.
    pub fn replaced_by(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("{REPLACED}{step:08}"))
    }

    /// The checkpoints that have given way to another of their step, with their steps.
    pub fn replaced(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        Ok(numbered(&self.checkpoints(), REPLACED)?.into_iter().filter(|(_, path)| path.is_dir()).collect())
    }
}
