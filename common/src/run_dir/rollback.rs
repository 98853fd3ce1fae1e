//! Rollback: a run that resumes from an earlier checkpoint sets later ones aside; they do not count.
//!
//! They are in `checkpoints/rollback-N`, with their lines of metrics.jsonl. Before anything moves, the plan
//! is written to `checkpoints/.rollback-N`; that folder gets its final name at the end. After a crash, the
//! next start first completes the rollback as planned.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::entries::{numbered, rename_for_removal, steps_in};
use super::error::failed;
use super::set_aside::{FILE, INTERRUPTED, PREFIX, Rollback, SetAside, name_of, read, step_named};
use super::{EVALUATIONS, RunDir, RunDirError, pointer, real};
use crate::files::{none_if_missing, remove_temporary, sync_folder, write_atomic, write_atomic_with};
use crate::metrics;

const METRICS: &str = "metrics.jsonl";

impl RunDir {
    /// Makes `checkpoint`, of `step`, the newest of the run's line: sets later ones aside, and brings
    /// `checkpoint` back if it was set aside. Returns its path now and what was set aside, if anything.
    /// `best` is the best step by its manifest; the link follows if that checkpoint exists. Rank 0 calls it
    /// after [`RunDir::recover`], when all other checks have passed. A checkpoint of another run, or a copy
    /// in memory, does not move. If the disk fails, the next start completes it.
    pub fn start_from(
        &self,
        checkpoint: &Path,
        step: u64,
        best: Option<u64>,
    ) -> Result<(PathBuf, Option<SetAside>), RunDirError> {
        let restores = if checkpoint.exists() { self.set_aside_in(&real(checkpoint)?) } else { None };
        let to = match &restores {
            Some(name) => {
                let left = self.rollbacks_since(name)?.into_iter().map(|(_, rollback)| rollback.to);
                left.min().unwrap_or(u64::MAX).min(step.saturating_sub(1))
            }
            None => step,
        };
        let newest = self.steps().map_err(self.unlisted())?.last().copied().filter(|newest| *newest > to);
        if newest.is_none() && restores.is_none() {
            self.point_latest(step)?;
            self.point_best(best, step)?;
            self.record_start()?;
            return Ok((checkpoint.to_owned(), None));
        }
        let own = match &restores {
            Some(_) => self.checkpoint(step),
            None => checkpoint.to_owned(),
        };
        let rollback = Rollback { from: newest.unwrap_or(to), to, restores };
        let folder = self.write_plan(&rollback)?;
        self.record_start()?;
        let set_aside = self.apply(rollback, &folder)?;
        self.point_best(best, step)?;
        Ok((own, Some(set_aside)))
    }

    /// Completes an interrupted rollback and an interrupted commit: a checkpoint with its final name becomes
    /// the latest, and a replaced checkpoint returns if its replacement is missing. Rank 0 calls it with the
    /// claim of the training.
    pub fn recover(&self) -> Result<Option<SetAside>, RunDirError> {
        let folder = self.checkpoints();
        for (step, path) in &self.replaced().map_err(failed("list the folder", &folder))? {
            let moved = match self.checkpoint(*step).exists() {
                true => rename_for_removal(path).map(drop),
                false => fs::rename(path, self.checkpoint(*step)),
            };
            moved.map_err(failed("move", path))?;
        }
        let next = self.next();
        if self.linked(&next).is_some() {
            fs::rename(&next, self.latest()).map_err(failed("rename", &next))?;
        } else {
            pointer::remove(&next).map_err(failed("remove", &next))?;
        }
        if folder.is_dir() {
            sync_folder(&folder).map_err(failed("sync", &folder))?;
        }
        self.complete_rollback()
    }

    /// Completes an interrupted rollback, if any, as it was written down.
    pub(super) fn complete_rollback(&self) -> Result<Option<SetAside>, RunDirError> {
        let Some((_, folder)) = self.interrupted_in()? else { return Ok(None) };
        if let Some(rollback) = read(&folder) {
            return self.apply(rollback, &folder).map(Some);
        }
        // Without a plan, nothing has moved.
        let steps = steps_in(&folder).map_err(failed("list the folder", &folder))?;
        let (tidied, doing) = match steps.is_empty() {
            true => (fs::remove_dir_all(&folder), "remove"),
            false => (fs::rename(&folder, self.final_folder(&folder)), "rename"),
        };
        tidied.map_err(failed(doing, &folder))?;
        Ok(None)
    }

    /// Returns the rollback that set this checkpoint aside and all later ones, with their folders.
    fn rollbacks_since(&self, restores: &Path) -> Result<Vec<(PathBuf, Rollback)>, RunDirError> {
        let own = restores.parent();
        let all = self.set_aside().map_err(self.unlisted())?;
        Ok(all
            .into_iter()
            .skip_while(|one| Some(Path::new(name_of(&one.folder))) != own)
            .filter(|one| !one.is_interrupted())
            .filter_map(|one| Some((one.folder, one.rollback?)))
            .collect())
    }

    /// Returns the final name of a rollback's folder.
    fn final_folder(&self, folder: &Path) -> PathBuf {
        self.checkpoints().join(name_of(folder).trim_start_matches('.'))
    }

    /// Makes the folder of a rollback and writes its plan.
    fn write_plan(&self, rollback: &Rollback) -> Result<PathBuf, RunDirError> {
        let all = numbered(&self.checkpoints(), PREFIX).map_err(self.unlisted())?;
        let next = all.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
        let folder = self.checkpoints().join(format!("{INTERRUPTED}{next}"));
        fs::create_dir(&folder).map_err(failed("create the folder", &folder))?;
        let path = folder.join(FILE);
        let written = serde_json::to_vec_pretty(rollback).map_err(io::Error::other);
        written
            .and_then(|json| write_atomic(&path, &json))
            .and_then(|()| sync_folder(&self.checkpoints()))
            .map_err(failed("write", &path))?;
        Ok(folder)
    }

    /// Carries out the plan, from the beginning or from the point of a crash.
    fn apply(&self, rollback: Rollback, folder: &Path) -> Result<SetAside, RunDirError> {
        let (parent, done) = (self.checkpoints(), self.final_folder(folder));
        remove_temporary(folder).map_err(failed("remove temporary files in", folder))?;
        let (restored, head) = rollback.resume_point(self);
        if let Some(restores) = &rollback.restores
            && restored.is_none()
            && !parent.join(name_of(restores)).exists()
        {
            let name = name_of(&done).to_owned();
            return Err(RunDirError::RestoredIsGone(folder.to_owned(), parent.join(restores), name));
        }
        if rollback.restores.is_none() || restored.is_some() {
            // Switch the links first: they must never point to a missing checkpoint.
            self.point_latest(head)?;
            self.point_best(None, head)?;
            for step in self.steps().map_err(self.unlisted())?.into_iter().filter(|step| *step > head) {
                let own = self.checkpoint(step);
                fs::rename(&own, folder.join(name_of(&own))).map_err(failed("move", &own))?;
            }
            for own in self.later_evaluations(head).map_err(failed("list the folder", &self.evaluations()))? {
                let aside = folder.join(EVALUATIONS);
                fs::create_dir_all(&aside).map_err(failed("create the folder", &aside))?;
                fs::rename(&own, aside.join(name_of(&own))).map_err(failed("move", &own))?;
            }
            self.split_metrics(&rollback, folder, &done)?;
        }
        if let Some(restored) = &restored {
            fs::rename(restored, parent.join(name_of(restored))).map_err(failed("move", restored))?;
        }
        self.point_latest(rollback.resume_point(self).1)?;
        for changed in [folder, &parent] {
            sync_folder(changed).map_err(failed("sync", changed))?;
        }
        fs::rename(folder, &done).map_err(failed("rename", folder))?;
        sync_folder(&parent).map_err(failed("sync", &parent))?;
        let steps = steps_in(&done).map_err(failed("list the folder", &done))?;
        Ok(SetAside { folder: done, rollback: Some(rollback), steps })
    }

    /// Points `latest` to the newest checkpoint up to `step`, or removes the link if no such checkpoint
    /// exists.
    fn point_latest(&self, step: u64) -> Result<(), RunDirError> {
        let newest = self.steps().map_err(self.unlisted())?.into_iter().rev().find(|own| *own <= step);
        let link = self.latest();
        if newest != self.linked(&link) || newest.is_none() {
            self.switch(&link, newest)?;
        }
        Ok(())
    }

    /// Points `best` to the best step, if it exists; removes a link to a step after `head`.
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
            Some(step) => pointer::point(link, name_of(&self.checkpoint(step))),
            None => pointer::remove(link),
        };
        switched.map_err(failed("switch the link", link))
    }

    /// Sets the lines of later steps aside, brings back those of a restored checkpoint, adds a rollback line.
    fn split_metrics(&self, rollback: &Rollback, folder: &Path, done: &Path) -> Result<(), RunDirError> {
        let path = self.metrics();
        let Some(mut file) = none_if_missing(File::open(&path)).map_err(failed("open", &path))? else {
            return Ok(());
        };
        let mut line = serde_json::json!({"rollback": rollback});
        line["rollback"]["folder"] = name_of(done).into();
        let line = format!("{line}\n").into_bytes();
        if metrics::ends_with(&file, &line).map_err(failed("read", &path))? {
            return Ok(());
        }
        let (begin, mut kept, left) =
            metrics::split_end(&mut file, rollback.to).map_err(failed("read", &path))?;
        if !left.is_empty() {
            let aside = folder.join(METRICS);
            write_atomic(&aside, &left).map_err(failed("write", &aside))?;
        }
        if let Some(restores) = &rollback.restores {
            kept.extend(self.lines_of(restores)?);
        }
        kept.extend(line);
        let write = |new: &mut File| {
            file.rewind()?;
            io::copy(&mut file.take(begin), new)?;
            new.write_all(&kept)
        };
        write_atomic_with(&path, true, write).map_err(failed("write", &path))
    }

    /// Returns the metrics up to a restored checkpoint, without the steps shared with the present line.
    fn lines_of(&self, restores: &Path) -> Result<Vec<u8>, RunDirError> {
        let (mut lines, mut up_to) = (Vec::new(), step_named(restores).unwrap_or_default());
        for (folder, rollback) in self.rollbacks_since(restores)? {
            // The lines that a later rollback took from this line, before the steps already collected.
            if rollback.to < up_to {
                let aside = fs::read(folder.join(METRICS)).unwrap_or_default();
                lines.splice(0..0, metrics::split(&aside, up_to).0);
                up_to = rollback.to;
            }
        }
        Ok(lines)
    }
}
