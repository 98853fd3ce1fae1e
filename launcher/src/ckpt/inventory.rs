//! Lists the folder of a run's checkpoints. Reads only the manifests.

use anyhow::Context;
use dtrain_common::manifest::{FILE_NAME, Manifest, ManifestError};
use dtrain_common::run_dir::{PARTIAL, REMOVED, REPLACED, RunDir, SetAside};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A checkpoint's folder.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) folder: PathBuf,
    /// Of all files of the folder.
    pub(super) bytes: u64,
    /// When the manifest was written; `None` if unknown.
    pub(super) written: Option<SystemTime>,
    /// `None` if it cannot be read.
    pub(super) manifest: Option<Manifest>,
    /// The reason if the checkpoint is not whole.
    pub(super) problem: Option<ManifestError>,
    pub(super) latest: bool,
    pub(super) best: bool,
}

impl Entry {
    /// Returns whether the manifest can be read and all files have their sizes.
    pub(super) fn is_whole(&self) -> bool {
        self.problem.is_none()
    }

    /// Returns whether a newer dtrain wrote the checkpoint, so that this version cannot check it.
    pub(super) fn is_newer(&self) -> bool {
        matches!(self.problem, Some(ManifestError::NewerFormat { .. }))
    }

    /// Returns whether it is proved that the checkpoint is not whole. It may only be unreadable at present.
    pub(super) fn is_damaged(&self) -> bool {
        self.problem.as_ref().is_some_and(ManifestError::is_damage)
    }

    pub(super) fn name(&self) -> String {
        name(&self.folder)
    }
}

#[derive(Debug)]
pub(super) struct Leftover {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// The time since the last change in it.
    pub(super) age: Duration,
}

impl Leftover {
    /// Returns whether it is an unfinished checkpoint, and not one that was being removed.
    pub(super) fn is_partial(&self) -> bool {
        self.name().starts_with(PARTIAL)
    }

    /// Returns whether its step has no other checkpoint: the next start of the run renames it back.
    pub(super) fn comes_back(&self, run_dir: &RunDir) -> bool {
        let name = self.name();
        let step = name.strip_prefix(REPLACED).and_then(|step| step.parse().ok());
        step.is_some_and(|step| !run_dir.checkpoint(step).exists())
    }

    pub(super) fn name(&self) -> String {
        name(&self.path)
    }
}

/// Returns the last part of a path.
pub(super) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns a run's checkpoints in the order of their steps.
pub(super) fn entries(run_dir: &RunDir) -> anyhow::Result<Vec<Entry>> {
    let steps =
        run_dir.steps().with_context(|| format!("cannot list {}", run_dir.checkpoints().display()))?;
    let (latest, best) = (run_dir.linked(&run_dir.latest()), run_dir.linked(&run_dir.best()));
    let entry = |step| {
        let folder = run_dir.checkpoint(step);
        let (manifest, problem) = match Manifest::read(&folder) {
            Ok(manifest) => {
                let problem = manifest.check_sizes(&folder).err();
                (Some(manifest), problem)
            }
            Err(error) => (None, Some(error)),
        };
        let about = fs::metadata(folder.join(FILE_NAME));
        Entry {
            step,
            bytes: size(&folder),
            written: about.and_then(|about| about.modified()).ok(),
            manifest,
            problem,
            latest: latest == Some(step),
            best: best == Some(step),
            folder,
        }
    };
    Ok(steps.into_iter().map(entry).collect())
}

/// Returns the checkpoints set aside by rollbacks.
pub(super) fn set_aside(run_dir: &RunDir) -> anyhow::Result<Vec<SetAside>> {
    let found = run_dir.set_aside();
    found.with_context(|| format!("cannot list {}", run_dir.checkpoints().display()))
}

/// Returns the leftovers of unfinished writes and removals, by name.
pub(super) fn leftovers(run_dir: &RunDir, now: SystemTime) -> anyhow::Result<Vec<Leftover>> {
    let folder = run_dir.checkpoints();
    let list = || format!("cannot list {}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).with_context(list)? {
        let path = entry.with_context(list)?.path();
        let name = name(&path);
        let prefixes = [PARTIAL, REMOVED, REPLACED];
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            let changed = newest(&path).unwrap_or(now);
            found.push(Leftover {
                bytes: size(&path),
                // If the clock was set back, the age is 0, which is the careful answer.
                age: now.duration_since(changed).unwrap_or_default(),
                path,
            });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Returns the bytes of all files below; unreadable files count 0.
pub(super) fn size(path: &Path) -> u64 {
    let mut bytes = 0;
    let _ = walk(path, &mut |about| bytes += if about.is_file() { about.len() } else { 0 });
    bytes
}

/// Returns the time of the last change below.
fn newest(path: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    walk(path, &mut |about| {
        newest = newest.max(about.modified().unwrap_or(newest));
    })?;
    Ok(newest)
}

/// Visits a folder and all its contents. Links are not followed.
fn walk(path: &Path, see: &mut impl FnMut(&fs::Metadata)) -> io::Result<()> {
    let about = path.symlink_metadata()?;
    see(&about);
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), see)?;
        }
    }
    Ok(())
}
