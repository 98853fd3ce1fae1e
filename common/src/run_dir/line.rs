//! The checkpoints of a run in the order of their steps, and which of them it goes on from.
//!
//! Invariant: those in `checkpoints/` up to the one that `latest` names are of one line of steps, each of which a later one follows
//! from. Nothing behind it is ever gone on from unless somebody names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::failed;
use super::{REMOVED, REPLACED, RunDir, RunDirError, SetAside, step_of};
use crate::files::{if_there, sync_folder};
use crate::manifest::{BestSoFar, Manifest, ManifestError};

impl RunDir {
    /// The folders of the run's checkpoints, whole or not, in the order in which a run goes on from the first that is whole: the
    /// one that `latest` names, then those before it. Without `latest` all of them, the newest first; while a rollback is under way the
    /// one that it goes back to, then those before it.
    ///
    /// # Errors
    /// [`RunDirError::Io`] when the checkpoints cannot be listed.
    pub fn candidates(&self) -> Result<Vec<PathBuf>, RunDirError> {
        let listed = failed("list the folder", &self.checkpoints());
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

    /// The newest whole checkpoint: the first candidate whose manifest reads and whose files have their sizes.
    ///
    /// # Errors
    /// [`RunDirError::Io`] when the checkpoints cannot be listed, and [`RunDirError::Checkpoint`] for one that a newer dtrain wrote.
    /// A checkpoint that is not whole is no error.
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
    ///
    /// # Errors
    /// [`RunDirError::NoneWhole`], [`RunDirError::OnlyLater`] where all are behind the one that `latest` names,
    /// [`RunDirError::OnlySetAside`], and [`RunDirError::BeganElsewhere`] where the run was to begin with another run's.
    pub fn none_to_begin_with(&self) -> Result<(), RunDirError> {
        let path = self.checkpoints();
        if !self.candidates()?.is_empty() {
            return Err(RunDirError::NoneWhole(path));
        }
        let listed = failed("list the folder", &path);
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
    ///
    /// # Errors
    /// When the checkpoints cannot be listed.
    pub fn steps(&self) -> io::Result<Vec<u64>> {
        steps_in(&self.checkpoints())
    }

    /// The step of the checkpoint that `link`, which is [`RunDir::latest`] or [`RunDir::best`], points to, when it lies in this
    /// run's folder; none where there is no such link, or it points elsewhere or nowhere.
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
        let next = self.linked(&self.next());
        next.or_else(|| self.named(&self.latest())).unwrap_or(u64::MAX)
    }

    /// Completes what a crash has broken off: a rollback; and a commit, where a checkpoint that has its name becomes the latest, and one
    /// that gave way to another that did not come returns. One whose other came gets the name of what is removed. Returns what the
    /// rollback has set aside. Rank 0 calls it with the claim of the training, before it chooses a checkpoint.
    ///
    /// # Errors
    /// [`RunDirError::Io`] where the disk fails.
    pub fn recover(&self) -> Result<Option<SetAside>, RunDirError> {
        let folder = self.checkpoints();
        let replaced = self.replaced().map_err(failed("list the folder", &folder))?;
        for (step, path) in &replaced {
            let moved = match self.checkpoint(*step).exists() {
                true => hide(path).map(drop),
                false => fs::rename(path, self.checkpoint(*step)),
            };
            moved.map_err(failed("move", path))?;
        }
        let next = self.next();
        if self.linked(&next).is_some() {
            fs::rename(&next, self.latest()).map_err(failed("rename", &next))?;
        } else if next.is_symlink() {
            fs::remove_file(&next).map_err(failed("remove", &next))?;
        }
        if folder.is_dir() {
            sync_folder(&folder).map_err(failed("sync", &folder))?;
        }
        self.complete_rollback()
    }

    /// Where a checkpoint of this step is while another takes its place.
    pub fn replaced_by(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("{REPLACED}{step:08}"))
    }

    /// The checkpoints that have given way to another of their step, with their steps.
    ///
    /// # Errors
    /// When the checkpoints cannot be listed.
    pub fn replaced(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let found = numbered(&self.checkpoints(), REPLACED)?;
        Ok(found.into_iter().filter(|(_, path)| path.is_dir()).collect())
    }
}

/// Gives the folder of a checkpoint the name of one that is being removed, and returns that: whatever becomes of it then, nothing brings it
/// back. One of the usual name may be there that could not be removed.
///
/// # Errors
/// When it cannot be renamed.
pub fn hide(folder: &Path) -> io::Result<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut hidden = folder.with_file_name(format!("{REMOVED}{name}"));
    let mut number = 0;
    while hidden.symlink_metadata().is_ok() {
        number += 1;
        hidden = folder.with_file_name(format!("{REMOVED}{name}.{number}"));
    }
    fs::rename(folder, &hidden)?;
    Ok(hidden)
}

/// The steps of the checkpoints in a folder, in rising order; none without the folder.
pub(super) fn steps_in(folder: &Path) -> io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for name in names(folder)? {
        steps.extend(step_of(&name));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The entries of a folder whose names are `prefix` and a number, in no order; none without the folder.
pub(super) fn numbered(folder: &Path, prefix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let number = |name: String| Some((name.strip_prefix(prefix)?.parse().ok()?, folder.join(&name)));
    Ok(names(folder)?.into_iter().filter_map(number).collect())
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in if_there(fs::read_dir(folder))?.into_iter().flatten() {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}
