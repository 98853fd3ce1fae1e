//! Writing a checkpoint: beside its place, synced, renamed, then `latest` switched and old ones removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::files::symlink_atomic;
use dtrain_common::manifest::{FileEntry, Manifest};
use dtrain_common::run_dir::RunDir;
use tch::Tensor;

use super::error::CheckpointError;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::engine::{Arena, Buffers, Resting};
use crate::models::{Registry, save_state, write_tensors};

/// What a checkpoint holds.
pub struct Snapshot<'a> {
    /// The model's parameters and buffers.
    pub registry: &'a Registry,
    /// The layout of the optimizer's state.
    pub arena: &'a Arena,
    /// The layout of the average behind the parameters.
    pub buffers: &'a Buffers,
    /// The moving average, laid out as the arena's buffers, then `buffers`, then `resting`.
    pub ema: Option<&'a [Tensor]>,
    /// What is frozen now and the average is of all the same.
    pub resting: &'a [Resting],
    /// The optimizer's state by name, in flat tensors laid out like the arena's buffers, one each.
    pub state: &'a [(&'static str, Vec<Tensor>)],
    /// Updates that each parameter has had, in the order of construction.
    pub steps: &'a [u64],
    /// Everything else; its `files` are filled here.
    pub manifest: Manifest,
}

/// Writes the checkpoint of `manifest.step`, points `latest` at it and `best` at the best one, and removes all but the newest
/// `keep` and that. Returns its folder.
/// One process at a time writes into a run directory: rank 0.
///
/// # Errors
/// Where the disk is full, for example. The previous checkpoint and `latest` are untouched then.
pub fn write(run_dir: &RunDir, snapshot: Snapshot<'_>, keep: usize) -> Result<PathBuf, CheckpointError> {
    let step = snapshot.manifest.step;
    let best = snapshot.manifest.best.as_ref().map(|best| best.step);
    let folder = run_dir.checkpoint(step);
    let parent = run_dir.checkpoints();
    fs::create_dir_all(&parent).map_err(CheckpointError::io("make the folder", &parent))?;
    let partial = parent.join(format!(".partial-{step:08}"));
    remove_dir(&partial)?;

    let written = fill(&partial, snapshot).and_then(|()| put_in_place(&partial, &folder));
    if let Err(error) = written {
        // What is half written is of no use, and the space may be what lacks.
        let _ = fs::remove_dir_all(&partial);
        return Err(error);
    }
    sync(&parent)?;
    point(&run_dir.latest(), &folder)?;
    // Whoever removed it by hand has no best one until the next.
    let best = best.map(|step| run_dir.checkpoint(step));
    if let Some(best) = best.filter(|best| best.is_dir()) {
        point(&run_dir.best(), &best)?;
    }
    prune(run_dir, keep)?;
    Ok(folder)
}

/// Points a link beside the checkpoints at one of them, where it does not already.
fn point(link: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let name = folder.file_name().map(PathBuf::from).unwrap_or_default();
    if fs::read_link(link).is_ok_and(|target| target == name) {
        return Ok(());
    }
    symlink_atomic(&name, link).map_err(CheckpointError::io("point the link to", folder))
}

fn fill(partial: &Path, snapshot: Snapshot<'_>) -> Result<(), CheckpointError> {
    let Snapshot {
        registry,
        arena,
        buffers,
        ema,
        resting,
        state: moments,
        steps,
        mut manifest,
    } = snapshot;
    fs::create_dir(partial).map_err(CheckpointError::io("make the folder", partial))?;
    save_state(registry, &partial.join(MODEL_FILE))?;

    let mut state = Vec::new();
    for (number, buffer) in arena.buffers().iter().enumerate() {
        for slot in &buffer.slots {
            let steps = Tensor::from(steps[slot.parameter] as i64);
            state.push((format!("{STEPS}.{}", slot.name), steps));
            for (kind, flats) in moments {
                state.push((format!("{kind}.{}", slot.name), slot.view(&flats[number])?));
            }
        }
    }
    let named: Vec<(&str, Tensor)> = state
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.shallow_clone()))
        .collect();
    write_tensors(&partial.join(OPTIMIZER_FILE), &named)?;

    let mut files = vec![MODEL_FILE, OPTIMIZER_FILE];
    if let Some(flats) = ema {
        let parameters = arena.buffers().iter().map(|buffer| buffer.slots.as_slice());
        let at_rest = resting.iter().map(|resting| std::slice::from_ref(&resting.slot));
        let mut named = Vec::new();
        for (slots, flat) in parameters.chain(buffers.slots()).chain(at_rest).zip(flats) {
            for slot in slots {
                named.push((slot.name.as_str(), slot.view(flat)?));
            }
        }
        write_tensors(&partial.join(EMA_FILE), &named)?;
        files.push(EMA_FILE);
    }

    manifest.files = Vec::new();
    for name in files {
        let path = partial.join(name);
        sync(&path)?;
        let entry = FileEntry::of(&path, name).map_err(CheckpointError::io("read back", &path))?;
        manifest.files.push(entry);
    }
    manifest.write(partial)?;
    sync(partial)
}

/// A checkpoint of the same step, left by a run that was resumed from an earlier one, gives way.
fn put_in_place(partial: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let old = folder.with_extension("old");
    remove_dir(&old)?;
    if folder.exists() {
        fs::rename(folder, &old).map_err(CheckpointError::io("move", folder))?;
    }
    fs::rename(partial, folder).map_err(CheckpointError::io("rename", partial))?;
    remove_dir(&old)
}

/// Removes the oldest checkpoints beyond the newest `keep`, but not the one that `best` points to.
fn prune(run_dir: &RunDir, keep: usize) -> Result<(), CheckpointError> {
    let parent = run_dir.checkpoints();
    let list = fs::read_dir(&parent).map_err(CheckpointError::io("list", &parent))?;
    let mut folders: Vec<PathBuf> = list
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir() && !path.is_symlink() && is_step(path))
        .collect();
    folders.sort();
    let excess = folders.len().saturating_sub(keep.max(1));
    let best = fs::canonicalize(run_dir.best()).ok();
    let is_best = |folder: &Path| best.is_some() && fs::canonicalize(folder).ok() == best;
    for folder in folders[..excess].iter().filter(|folder| !is_best(folder)) {
        remove_dir(folder)?;
    }
    Ok(())
}

fn is_step(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    name.strip_prefix("step-")
        .is_some_and(|digits| digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn remove_dir(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(CheckpointError::io("sync", path))
}
