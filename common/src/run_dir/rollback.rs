//! Going back: a run that goes on from an earlier checkpoint leaves those behind it, which are set aside, neither removed nor counted.
//!
//! They lie in `checkpoints/rollback-N`, with the lines of metrics.jsonl that belong to them. What is to be done is written down in
//! `checkpoints/.rollback-N` before anything moves, and that folder gets its final name when all is done: the next start completes one that a
//! crash has broken off, as it was written down, before it does anything else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::failed;
use super::line::{numbered, steps_in};
use super::{RunDir, RunDirError, real, step_of};
use crate::files::{if_there, remove_temporary, symlink_atomic, sync_folder, write_atomic};
use crate::metrics;

/// Begins the name of a folder of checkpoints that a rollback has set aside.
const PREFIX: &str = "rollback-";
/// That of one which is under way.
const UNDER_WAY: &str = ".rollback-";
/// What the rollback is, in its folder.
const FILE: &str = "rollback.json";
/// The lines of metrics.jsonl, in its folder.
const METRICS: &str = "metrics.jsonl";

/// What a rollback does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// The newest step of the run before.
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
    /// Their folder.
    pub folder: PathBuf,
    /// Why; none where its file does not read.
    pub rollback: Option<Rollback>,
    /// Their steps, in rising order; none where all have been brought back.
    pub steps: Vec<u64>,
}

impl SetAside {
    /// Whether a crash has broken it off: the next start completes it.
    pub fn is_under_way(&self) -> bool {
        name_of(&self.folder).starts_with(UNDER_WAY)
    }

    /// Where a checkpoint is that this rollback has moved, by its path before.
    pub fn moved(&self, checkpoint: &Path) -> Option<PathBuf> {
        let parents =
            [checkpoint.parent()?, self.folder.parent()?].map(|parent| fs::canonicalize(parent).ok());
        let moved = self.folder.join(checkpoint.file_name()?);
        (!checkpoint.exists() && parents[0] == parents[1] && moved.is_dir()).then_some(moved)
    }
}

impl Rollback {
    /// The checkpoint that is set aside and the run goes on from, as long as it is, and the newest step of its line in
    /// `checkpoints/`.
    pub(super) fn begins_at(&self, run_dir: &RunDir) -> (Option<PathBuf>, u64) {
        let Some(restores) = &self.restores else {
            return (None, self.to);
        };
        let set_aside = run_dir.checkpoints().join(restores);
        match set_aside.exists() {
            true => (Some(set_aside), self.to),
            false => (None, step_named(restores).unwrap_or(self.to)),
        }
    }
}

impl RunDir {
    /// What rollbacks have set aside, in their order; the one that a crash has broken off is the last.
    ///
    /// # Errors
    /// When the checkpoints cannot be listed.
    pub fn set_aside(&self) -> io::Result<Vec<SetAside>> {
        let mut folders = numbered(&self.checkpoints(), PREFIX)?;
        folders.sort_unstable();
        folders.extend(numbered(&self.checkpoints(), UNDER_WAY)?);
        let of = |(_, folder): (u64, PathBuf)| {
            Ok(SetAside {
                rollback: read(&folder),
                steps: steps_in(&folder)?,
                folder,
            })
        };
        folders.into_iter().map(of).collect()
    }

    /// Makes `checkpoint`, of `step`, the newest one of the run's line: those behind it are set aside, and if it was set aside itself
    /// it comes back. Returns where the checkpoint is now, and what was set aside, if anything was. `best` is the best step by its
    /// manifest, and the link follows where that is there. Rank 0 calls it after [`RunDir::recover`], when nothing stands in the way of the
    /// run any more. A checkpoint of another run, or a copy in memory, stays where it is.
    ///
    /// # Errors
    /// [`RunDirError::Io`] where the disk fails; the next start completes it.
    pub fn begin_after(
        &self,
        checkpoint: &Path,
        step: u64,
        best: Option<u64>,
    ) -> Result<(PathBuf, Option<SetAside>), RunDirError> {
        let restores = match checkpoint.exists() {
            true => self.set_aside_in(&real(checkpoint)?),
            false => None,
        };
        let to = match &restores {
            Some(name) => {
                let left = self.since(name)?.into_iter().map(|(_, rollback)| rollback.to);
                left.min().unwrap_or(u64::MAX).min(step.saturating_sub(1))
            }
            None => step,
        };
        let steps = self.steps().map_err(self.unlisted())?;
        let newest = steps.last().copied().filter(|newest| *newest > to);
        if newest.is_none() && restores.is_none() {
            self.point_latest(step)?;
            self.point_best(best, step)?;
            self.note_begun()?;
            return Ok((checkpoint.to_owned(), None));
        }
        let own = match &restores {
            Some(_) => self.checkpoint(step),
            None => checkpoint.to_owned(),
        };
        let rollback = Rollback {
            from: newest.unwrap_or(to),
            to,
            restores,
        };
        let folder = self.write_down(&rollback)?;
        self.note_begun()?;
        let set_aside = self.carry_out(rollback, &folder)?;
        self.point_best(best, step)?;
        Ok((own, Some(set_aside)))
    }

    /// Completes the rollback that a crash has broken off, if there is one, as it was written down.
    pub(super) fn complete_rollback(&self) -> Result<Option<SetAside>, RunDirError> {
        let Some((_, folder)) = self.under_way_in()? else {
            return Ok(None);
        };
        if let Some(rollback) = read(&folder) {
            return self.carry_out(rollback, &folder).map(Some);
        }
        // Nothing has moved before it was written down.
        let steps = steps_in(&folder).map_err(failed("list the folder", &folder))?;
        let (tidied, doing) = match steps.is_empty() {
            true => (fs::remove_dir_all(&folder), "remove"),
            false => (fs::rename(&folder, self.done(&folder)), "rename"),
        };
        tidied.map_err(failed(doing, &folder))?;
        Ok(None)
    }

    /// Whether a rollback that is under way brings this checkpoint back. It may have moved.
    pub(super) fn is_coming_back(&self, checkpoint: &Path) -> Result<bool, RunDirError> {
        let restores = self.under_way()?.and_then(|rollback| rollback.restores);
        Ok(restores.is_some_and(|restores| restores == self.below(checkpoint)))
    }

    /// Where a crash has broken a rollback off, the last step that stays: what lies behind it, or is set aside, may be needed to complete it.
    ///
    /// # Errors
    /// [`RunDirError::Io`] when the checkpoints cannot be listed.
    pub fn broken_off_at(&self) -> Result<Option<u64>, RunDirError> {
        Ok(self.under_way()?.map(|rollback| rollback.to))
    }

    /// The rollback that set this checkpoint aside and those since, with their folders. The line of steps that it belongs to and the present
    /// one have in common what the one that went back furthest has left.
    fn since(&self, restores: &Path) -> Result<Vec<(PathBuf, Rollback)>, RunDirError> {
        let own = restores.parent();
        let all = self.set_aside().map_err(self.unlisted())?;
        Ok(all
            .into_iter()
            .skip_while(|one| Some(Path::new(name_of(&one.folder))) != own)
            .filter(|one| !one.is_under_way())
            .filter_map(|one| Some((one.folder, one.rollback?)))
            .collect())
    }

    fn unlisted(&self) -> impl Fn(io::Error) -> RunDirError + use<> {
        failed("list the folder", &self.checkpoints())
    }

    /// The name of a rollback's folder when all is done.
    fn done(&self, folder: &Path) -> PathBuf {
        self.checkpoints().join(name_of(folder).trim_start_matches('.'))
    }

    /// The rollback that a crash has broken off.
    pub(super) fn under_way(&self) -> Result<Option<Rollback>, RunDirError> {
        Ok(self.under_way_in()?.and_then(|(_, folder)| read(&folder)))
    }

    fn under_way_in(&self) -> Result<Option<(u64, PathBuf)>, RunDirError> {
        let found = numbered(&self.checkpoints(), UNDER_WAY).map_err(self.unlisted())?;
        Ok(found.into_iter().max())
    }

    /// The path below `checkpoints/` of a checkpoint that a rollback of this run has set aside; none where it lies elsewhere. `checkpoint` is
    /// a path without links.
    pub(super) fn set_aside_in(&self, checkpoint: &Path) -> Option<PathBuf> {
        let folder = checkpoint.parent()?;
        let number = name_of(folder).strip_prefix(PREFIX)?;
        number.parse::<u64>().ok()?;
        step_named(checkpoint)?;
        let own = real(&self.checkpoints()).ok()?;
        let below = checkpoint.strip_prefix(&own).ok()?.to_owned();
        (folder.parent()? == own).then_some(below)
    }

    /// Makes the folder of a rollback and writes down what is to be done.
    fn write_down(&self, rollback: &Rollback) -> Result<PathBuf, RunDirError> {
        let all = numbered(&self.checkpoints(), PREFIX).map_err(self.unlisted())?;
        let next = all.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
        let folder = self.checkpoints().join(format!("{UNDER_WAY}{next}"));
        fs::create_dir(&folder).map_err(failed("create the folder", &folder))?;
        let path = folder.join(FILE);
        let written = serde_json::to_vec_pretty(rollback).map_err(io::Error::other);
        written
            .and_then(|json| write_atomic(&path, &json))
            .and_then(|()| sync_folder(&self.checkpoints()))
            .map_err(failed("write", &path))?;
        Ok(folder)
    }

    /// Does what is written down, from the beginning or from wherever a crash has broken it off.
    fn carry_out(&self, rollback: Rollback, folder: &Path) -> Result<SetAside, RunDirError> {
        let (parent, done) = (self.checkpoints(), self.done(folder));
        remove_temporary(folder).map_err(failed("tidy up", folder))?;
        let (restored, head) = rollback.begins_at(self);
        if let Some(restores) = &rollback.restores
            && restored.is_none()
            && !parent.join(name_of(restores)).exists()
        {
            let name = name_of(&done).to_owned();
            return Err(RunDirError::RestoredIsGone(
                folder.to_owned(),
                parent.join(restores),
                name,
            ));
        }
        if rollback.restores.is_none() || restored.is_some() {
            // The links first: they never point to what is not there.
            self.point_latest(head)?;
            self.point_best(None, head)?;
            let later = self.steps().map_err(self.unlisted())?;
            for step in later.into_iter().filter(|step| *step > head) {
                let own = self.checkpoint(step);
                fs::rename(&own, folder.join(name_of(&own))).map_err(failed("move", &own))?;
            }
            self.divide_metrics(&rollback, folder, &done)?;
        }
        if let Some(restored) = &restored {
            let own = parent.join(name_of(restored));
            fs::rename(restored, own).map_err(failed("move", restored))?;
        }
        self.point_latest(rollback.begins_at(self).1)?;
        for changed in [folder, &parent] {
            sync_folder(changed).map_err(failed("sync", changed))?;
        }
        fs::rename(folder, &done).map_err(failed("rename", folder))?;
        sync_folder(&parent).map_err(failed("sync", &parent))?;
        let steps = steps_in(&done).map_err(failed("list the folder", &done))?;
        Ok(SetAside {
            folder: done,
            rollback: Some(rollback),
            steps,
        })
    }

    /// Points `latest` to the newest checkpoint up to `step`; without one there is no link.
    fn point_latest(&self, step: u64) -> Result<(), RunDirError> {
        let steps = self.steps().map_err(self.unlisted())?;
        let newest = steps.into_iter().rev().find(|own| *own <= step);
        let link = self.latest();
        if newest != self.linked(&link) || newest.is_none() {
            self.switch(&link, newest)?;
        }
        Ok(())
    }

    /// Points `best` to the best step, if it is there; a link to one behind `head` goes.
    fn point_best(&self, best: Option<u64>, head: u64) -> Result<(), RunDirError> {
        let link = self.best();
        match best.filter(|best| self.checkpoint(*best).is_dir()) {
            Some(best) if self.linked(&link) == Some(best) => Ok(()),
            Some(best) => self.switch(&link, Some(best)),
            None if self.named(&link).is_some_and(|step| step > head) => self.switch(&link, None),
            None => Ok(()),
        }
    }

    fn switch(&self, link: &Path, step: Option<u64>) -> Result<(), RunDirError> {
        let switched = match step {
            Some(step) => symlink_atomic(Path::new(name_of(&self.checkpoint(step))), link),
            None if link.is_symlink() => fs::remove_file(link),
            None => Ok(()),
        };
        switched.map_err(failed("switch the link", link))
    }

    /// Moves the lines of the steps that are left into the folder, brings those of a checkpoint that comes back, and says so in a line.
    fn divide_metrics(&self, rollback: &Rollback, folder: &Path, done: &Path) -> Result<(), RunDirError> {
        let path = self.metrics();
        let Some(text) = if_there(fs::read(&path)).map_err(failed("read", &path))? else {
            return Ok(());
        };
        let mut told = serde_json::json!({"rollback": rollback});
        told["rollback"]["folder"] = name_of(done).into();
        let told = format!("{told}\n").into_bytes();
        if text.ends_with(&told) {
            return Ok(());
        }
        let (mut kept, left) = metrics::split(&text, rollback.to);
        if !left.is_empty() {
            let aside = folder.join(METRICS);
            write_atomic(&aside, &left).map_err(failed("write", &aside))?;
        }
        if let Some(restores) = &rollback.restores {
            kept.extend(self.lines_of(restores)?);
        }
        kept.extend(told);
        write_atomic(&path, &kept).map_err(failed("write", &path))
    }

    /// The lines of metrics.jsonl up to a checkpoint that comes back, but for those that the present line of steps has in common with its own.
    fn lines_of(&self, restores: &Path) -> Result<Vec<u8>, RunDirError> {
        let (mut lines, mut up_to) = (Vec::new(), step_named(restores).unwrap_or_default());
        for (folder, rollback) in self.since(restores)? {
            // What a later rollback has left of this line before the steps that are there already.
            if rollback.to < up_to {
                let aside = fs::read(folder.join(METRICS)).unwrap_or_default();
                lines.splice(0..0, metrics::split(&aside, up_to).0);
                up_to = rollback.to;
            }
        }
        Ok(lines)
    }
}

fn read(folder: &Path) -> Option<Rollback> {
    serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
}

fn step_named(path: &Path) -> Option<u64> {
    step_of(path.file_name()?.to_str()?)
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}
