//! Copies of the state after every step, in memory that outlives the workers: a dead worker costs no step.
//!
//! Slots are used in turn. A rank copies and writes step k during step k + 1, and ends before the agreement
//! on step k + 1. A rank that writes step k + 1 thus knows that all ranks have written step k to the other
//! slot: one slot is always complete. `dtrain_common::memory_copies` describes the files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::{self, Manifest};
use dtrain_common::memory_copies::{SLOTS, mark, step_of};
use tch::Device;

use super::background::BackgroundTask;
use super::copying::{CompleteCopy, Copier};
use super::error::CheckpointError;
use super::layout::Digest;
use super::memory::Memory;
use crate::collectives::Ranks;
use crate::state::Model;

/// The copies of a run, on one of its ranks.
pub(crate) struct MemoryCopies {
    rank: usize,
    slots: [PathBuf; 2],
    copier: Copier,
    writing: Option<BackgroundTask<Memory>>,
}

impl MemoryCopies {
    /// Uses the launcher's folder. `cores`: this rank's share of the machine. Every rank calls this.
    pub(crate) fn new(
        folder: &Path,
        ranks: &Ranks,
        device: Device,
        cores: usize,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            rank: ranks.rank(),
            slots: SLOTS.map(|slot| folder.join(slot)),
            copier: Copier::new(ranks, ranks.size(), device, cores)?,
            writing: None,
        })
    }

    /// Begins to copy this rank's part of the state after `manifest.step`. Every rank calls this between the
    /// same steps, and [`MemoryCopies::wait_until_written`] before parameters, moments or averages change.
    pub(crate) fn begin(&mut self, model: &Model, mut manifest: Manifest) -> Result<(), CheckpointError> {
        self.wait_until_written()?;
        let copying = self.copier.begin(model)?;
        // Nothing verifies copies in memory, but a manifest needs a checksum for every part.
        let mut unchecked = std::iter::repeat(Digest::default());
        let entries = copying.files.iter().map(|file| file.entry(&mut unchecked));
        manifest.files = entries.collect();
        let (slot, rank) = (self.slots[(manifest.step % 2) as usize].clone(), self.rank);
        self.writing = Some(BackgroundTask::begin(move || {
            let copied = copying.finish()?;
            write(&slot, rank, &copied, &manifest)?;
            Ok(copied.memory)
        }));
        Ok(())
    }

    /// Waits until a begun copy is written. Every rank calls this before it agrees on the next step.
    pub(crate) fn wait_until_written(&mut self) -> Result<(), CheckpointError> {
        if let Some(writing) = self.writing.take() {
            self.copier.reuse(writing.finish()?);
        }
        Ok(())
    }
}

/// Returns the newest slot that `ranks` ranks have written completely, and its step.
pub(crate) fn newest(folder: &Path, ranks: usize) -> Option<(PathBuf, u64)> {
    let whole = |slot: &str| {
        let slot = folder.join(slot);
        let step = step_of(&slot, ranks)?;
        let manifest = Manifest::read(&slot).ok()?;
        (manifest.step == step && manifest.check_sizes(&slot).is_ok()).then_some((slot, step))
    };
    SLOTS.into_iter().filter_map(whole).max_by_key(|(_, step)| *step)
}

fn write(
    slot: &Path,
    rank: usize,
    copied: &CompleteCopy,
    manifest: &Manifest,
) -> Result<(), CheckpointError> {
    let failed = || CheckpointError::io("write", slot);
    mark(slot, rank, 0).map_err(failed())?;
    if rank == 0 {
        let path = slot.join(manifest::FILE_NAME);
        let bytes = manifest.to_bytes(&path)?;
        write_in_place(&path, bytes.len() as u64, [(0, &bytes[..])])?;
    }
    for (layout, parts) in copied.by_file() {
        let pieces = parts.iter().map(|part| (part.offset, copied.bytes_of(part)));
        write_in_place(&slot.join(&layout.name), layout.bytes, pieces)?;
    }
    mark(slot, rank, manifest.step).map_err(failed())
}

/// Sets an existing file's length, and writes the bytes at their offsets.
fn write_in_place<'a>(
    path: &Path,
    len: u64,
    pieces: impl IntoIterator<Item = (u64, &'a [u8])>,
) -> Result<(), CheckpointError> {
    let write = || {
        let file = File::options().write(true).open(path)?;
        file.set_len(len)?;
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|(offset, bytes)| file.write_all_at(bytes, offset))
    };
    write().map_err(CheckpointError::io("write", path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_common::memory_copies::FILES;

    use super::super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE};
    use super::write_in_place;

    #[test]
    fn the_launcher_knows_every_file() {
        for name in [MODEL_FILE, OPTIMIZER_FILE, EMA_FILE] {
            assert!(FILES.contains(&name), "{name}");
        }
    }

    #[test]
    fn an_error_of_a_write_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(MODEL_FILE);
        let error = write_in_place(&path, 1, [(0, &b"a"[..])]).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot write {}: ", path.display())), "{error}");
    }
}
