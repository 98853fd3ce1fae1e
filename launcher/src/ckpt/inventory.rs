//! What lies in the folder of a run's checkpoints, told without reading any file but the manifests.

use anyhow::Context;
use dtrain_common::manifest::{FILE_NAME, Manifest, ManifestError};
use dtrain_common::run_dir::{PARTIAL, REMOVED, REPLACED, RunDir, SetAside};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A folder of a checkpoint.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) folder: PathBuf,
    /// Of all its files.
    pub(super) bytes: u64,
    /// When its manifest was written; none where that cannot be told.
    pub(super) written: Option<SystemTime>,
    /// None where it cannot be read.
    pub(super) manifest: Option<Manifest>,
    /// Why it is not whole.
    pub(super) problem: Option<ManifestError>,
    pub(super) latest: bool,
    pub(super) best: bool,
}

impl Entry {
    /// Whether its manifest reads and all files have their sizes.
    pub(super) fn is_whole(&self) -> bool {
        self.problem.is_none()
    }

    /// Whether a newer dtrain wrote it, so that this one cannot tell.
    pub(super) fn is_newer(&self) -> bool {
        matches!(self.problem, Some(ManifestError::NewerFormat { .. }))
    }

    pub(super) fn name(&self) -> String {
        name(&self.folder)
    }
}

#[derive(Debug)]
pub(super) struct Leftover {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Since something in it last changed.
    pub(super) age: Duration,
}

impl Leftover {
    /// Whether it is a checkpoint that was not finished, and not one that was being removed.
    pub(super) fn is_partial(&self) -> bool {
        self.name().starts_with(PARTIAL)
    }

    /// Whether it is the only checkpoint of its step, whose successor did not come: the next start of the run gives it its name.
    pub(super) fn comes_back(&self, run_dir: &RunDir) -> bool {
        let name = self.name();
        let step = name.strip_prefix(REPLACED).and_then(|step| step.parse().ok());
        step.is_some_and(|step| !run_dir.checkpoint(step).exists())
    }

    pub(super) fn name(&self) -> String {
        name(&self.path)
    }
}

/// The last part of a path.
pub(super) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The checkpoints of a run in the order of their steps.
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

/// What rollbacks have set aside.
pub(super) fn set_aside(run_dir: &RunDir) -> anyhow::Result<Vec<SetAside>> {
    let found = run_dir.set_aside();
    found.with_context(|| format!("cannot list {}", run_dir.checkpoints().display()))
}

/// What is left over of checkpoints beside them, by name.
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
                // A clock that was set back makes it new, which is the careful answer.
                age: now.duration_since(changed).unwrap_or_default(),
                path,
            });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The bytes of all files below; what cannot be seen counts nothing.
pub(super) fn size(path: &Path) -> u64 {
    let mut bytes = 0;
    let _ = walk(path, &mut |about| bytes += if about.is_file() { about.len() } else { 0 });
    bytes
}

/// When something below last changed.
fn newest(path: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    walk(path, &mut |about| {
        newest = newest.max(about.modified().unwrap_or(newest));
    })?;
    Ok(newest)
}

/// Looks at a folder and everything in it. Links are not followed.
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
