//! The state after every step, in memory that outlives the workers: the death of one of them then costs no step.
//!
//! Slots are used in turn. A rank copies and writes step k while step k + 1 is computed, and ends before it takes part in the agreement on that
//! step. Whoever writes step k + 1 therefore knows that all ranks have written step k, which is in the other slot: whenever the ranks
//! die, one slot is whole. `dtrain_common::memory_copies` describes the place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::{self, CHECKSUM_BYTES, Checksum, FileEntry, Manifest, Part};
use dtrain_common::memory_copies::{SLOTS, mark, step_of};
use tch::Device;

use super::background::Work;
use super::copying::{Copied, Copier, Memory};
use super::error::CheckpointError;
use super::items::Snapshot;
use super::layout::FileLayout;
use crate::collectives::Ranks;

/// The copies of a run, on one of its ranks.
pub(crate) struct MemoryCopies {
    rank: usize,
    slots: [PathBuf; 2],
    copier: Copier,
    /// For the next copy.
    memory: Option<Memory>,
    writing: Option<Work<Memory>>,
}

impl MemoryCopies {
    /// In the place that the launcher has made, where `cores` of the machine are this rank's share; every rank makes one.
    pub(crate) fn new(
        place: &Path,
        ranks: &Ranks,
        device: Device,
        cores: usize,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            rank: ranks.rank(),
            slots: SLOTS.map(|slot| place.join(slot)),
            copier: Copier::new(ranks, device, cores)?,
            memory: None,
            writing: None,
        })
    }

    /// Begins to copy what this rank keeps of the state after `manifest.step`. Every rank calls it, between the same two steps, and
    /// [`MemoryCopies::settle`] before it changes parameters, moments or averages.
    pub(crate) fn begin(
        &mut self,
        snapshot: &Snapshot<'_>,
        mut manifest: Manifest,
    ) -> Result<(), CheckpointError> {
        self.settle()?;
        let copying = self.copier.begin(snapshot, self.memory.take())?;
        manifest.files = copying.files.iter().map(entry).collect();
        let (slot, rank) = (self.slots[(manifest.step % 2) as usize].clone(), self.rank);
        self.writing = Some(Work::begin(move || {
            let copied = copying.end()?;
            write(&slot, rank, &copied, &manifest).map_err(CheckpointError::io("write", slot))?;
            Ok(copied.memory)
        })?);
        Ok(())
    }

    /// Waits until the copy that was begun is written, if there is one. Every rank calls it before it agrees on the next step.
    pub(crate) fn settle(&mut self) -> Result<(), CheckpointError> {
        if let Some(writing) = self.writing.take() {
            self.memory = Some(writing.end()?);
        }
        Ok(())
    }
}

/// The newest slot that so many ranks have written whole, with its step.
pub(crate) fn newest(place: &Path, ranks: usize) -> Option<(PathBuf, u64)> {
    let whole = |slot: &str| {
        let slot = place.join(slot);
        let step = step_of(&slot, ranks)?;
        let manifest = Manifest::read(&slot).ok()?;
        (manifest.step == step && manifest.check_sizes(&slot).is_ok()).then_some((slot, step))
    };
    SLOTS.into_iter().filter_map(whole).max_by_key(|(_, step)| *step)
}

/// Nobody checks what is in memory; a manifest has no entry without a checksum all the same.
fn entry(file: &FileLayout) -> FileEntry {
    let part = Part {
        bytes: file.bytes,
        checksum: Checksum::of_bytes(&[0; CHECKSUM_BYTES]),
    };
    FileEntry {
        name: file.name.clone(),
        bytes: file.bytes,
        parts: vec![part],
    }
}

fn write(slot: &Path, rank: usize, copied: &Copied, manifest: &Manifest) -> io::Result<()> {
    mark(slot, rank, 0)?;
    if rank == 0 {
        write_manifest(slot, manifest)?;
    }
    for (layout, parts) in copied.by_file() {
        let file = File::options().write(true).open(slot.join(&layout.name))?;
        file.set_len(layout.bytes)?;
        for part in parts {
            file.write_all_at(copied.bytes_of(part), part.offset)?;
        }
    }
    mark(slot, rank, manifest.step)
}

fn write_manifest(slot: &Path, manifest: &Manifest) -> io::Result<()> {
    let path = slot.join(manifest::FILE_NAME);
    let bytes = manifest.to_bytes(&path).map_err(io::Error::other)?;
    let file = File::options().write(true).open(path)?;
    file.set_len(bytes.len() as u64)?;
    file.write_all_at(&bytes, 0)
}

#[cfg(test)]
mod tests {
    use dtrain_common::memory_copies::FILES;

    use super::super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE};

    #[test]
    fn the_launcher_knows_every_file() {
        for name in [MODEL_FILE, OPTIMIZER_FILE, EMA_FILE] {
            assert!(FILES.contains(&name), "{name}");
        }
    }
}
