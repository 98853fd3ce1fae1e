//! Copies of the state after every step, in memory that outlives the workers: a dead worker costs no step.
//!
//! Slots are used in turn. A rank copies and writes step k during step k + 1, and ends before the agreement
//! on step k + 1. A rank that writes step k + 1 thus knows that all ranks have written step k to the other
//! slot: one slot is always complete. `dtrain_common::memory_copies` describes the files.
//!
//! Each node has its own slots. Its ranks write what all ranks hold, and their shards of the state. Each
//! rank also sends its shards to a rank of the next node, which keeps them too (`shards`). A lost node thus
//! costs no step either: at a restart rank 0 finds the newest copy whose shards are all left (`slot`,
//! `choice`), and completes its own slot.

mod choice;
mod shards;
mod slot;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::manifest::{self, Manifest};
use dtrain_common::memory_copies::{COPY, SLOTS, clear, mark};
use serde::{Deserialize, Serialize};
use tch::Device;

pub(crate) use self::choice::ShardSource;
use self::choice::newest_whole;
pub(crate) use self::shards::Neighbours;
pub(crate) use self::slot::HeldCopy;
use self::slot::{Description, Slot, slots};
use super::background::BackgroundTask;
use super::copying::{CompleteCopy, Copier};
use super::error::CheckpointError;
use super::layout::Digest;
use super::memory::Memory;
use crate::collectives::Ranks;
use crate::optim::Model;

/// The copies of a run, on one of its ranks.
pub(crate) struct MemoryCopies {
    rank: usize,
    place: CopiesPlace,
    copier: Copier,
    writing: Option<BackgroundTask<Memory>>,
}

/// The folder of the copies of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct CopiesPlace {
    /// The launcher's folder.
    pub(crate) folder: PathBuf,
    /// A number that no other attempt on several nodes has.
    pub(crate) attempt: u64,
    /// The ranks of this node.
    pub(crate) node: Range<usize>,
    /// The other nodes, if ranks have shards.
    pub(crate) neighbours: Option<Arc<Neighbours>>,
}

/// The copies that a run resumes from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChosenCopies {
    attempt: u64,
    step: u64,
    /// The shards that rank 0's slot lacks.
    pub(crate) sources: Vec<ShardSource>,
    /// The hosts that have the copies, if there are several nodes.
    pub(crate) hosts: Vec<String>,
}

impl MemoryCopies {
    /// Uses the launcher's folder for steps after step `done`. `cores`: this rank's share of the machine. Every
    /// rank calls this before the first step, after all have read the copies of an earlier attempt.
    pub(crate) fn new(
        place: CopiesPlace,
        ranks: &Ranks,
        device: Device,
        cores: usize,
        done: u64,
    ) -> Result<Self, CheckpointError> {
        if ranks.rank() == place.node.start {
            // Later steps of earlier attempts are now of another line.
            for path in SLOTS.map(|slot| place.folder.join(slot)) {
                if Slot::read(path.clone()).is_none_or(|slot| slot.held.step != done) {
                    clear(&path).map_err(CheckpointError::io("clear", path))?;
                }
            }
        }
        Ok(Self {
            rank: ranks.rank(),
            copier: Copier::new(ranks, place.node.clone(), device, cores)?,
            place,
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
        let shards = copying.files.iter().map(|file| (file.name.clone(), file.shards.clone()));
        let (place, rank) = (self.place.clone(), self.rank);
        let description =
            Description { attempt: place.attempt, node: place.node.clone(), shards: shards.collect() };
        self.writing = Some(BackgroundTask::begin(move || {
            let copied = copying.finish()?;
            let slot = place.folder.join(SLOTS[(manifest.step % 2) as usize]);
            write(&slot, rank, &copied, &manifest, &description, place.neighbours.as_deref())?;
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

/// Returns what this node holds of the last steps.
pub(crate) fn held_copies(folder: &Path) -> Vec<HeldCopy> {
    slots(folder).into_iter().map(|slot| slot.held).collect()
}

/// The newest step that the nodes have completely.
pub(crate) struct NewestCopies {
    /// The slot of rank 0's node.
    pub(crate) slot: PathBuf,
    pub(crate) step: u64,
    /// All copies, with the sources of the shards that this node lacks.
    pub(crate) copies: ChosenCopies,
}

/// Returns the newest step of which the nodes have all shards. `others` returns the copies of other nodes, each with
/// the first rank there; it is called if this node's newest copy is not complete.
pub(crate) fn newest_copies<E>(
    folder: &Path,
    others: impl FnOnce() -> Result<Vec<(usize, HeldCopy)>, E>,
) -> Result<Option<NewestCopies>, E> {
    let mut own = slots(folder);
    let newest = own.iter().max_by_key(|slot| slot.held.step);
    let others = if newest.is_some_and(|slot| !slot.missing().is_empty()) { others()? } else { Vec::new() };
    let chosen =
        newest_whole(&own.iter().map(|slot| (&slot.held, slot.missing())).collect::<Vec<_>>(), &others);
    Ok(chosen.map(|(index, sources)| {
        let Slot { path: slot, held: HeldCopy { attempt, step, .. }, .. } = own.swap_remove(index);
        let copies = ChosenCopies { attempt, step, sources, hosts: Vec::new() };
        NewestCopies { slot, step, copies }
    }))
}

impl ChosenCopies {
    fn slot_in(&self, folder: &Path) -> Option<Slot> {
        slots(folder)
            .into_iter()
            .find(|slot| (slot.held.attempt, slot.held.step) == (self.attempt, self.step))
    }

    /// Returns the same copy in this node's `folder`, if all its shards are there.
    pub(crate) fn complete_in(&self, folder: &Path) -> Option<PathBuf> {
        self.slot_in(folder).filter(|slot| slot.missing().is_empty()).map(|slot| slot.path)
    }

    /// Sends rank 0 the shards that it lacks. Every rank calls this; `folder` is its node's.
    pub(crate) fn gather(
        &self,
        folder: Option<&Path>,
        rank: usize,
        neighbours: &Neighbours,
    ) -> Result<(), CheckpointError> {
        if rank > 0 && self.sources.iter().all(|source| source.rank != rank) {
            return Ok(());
        }
        let gone =
            || CheckpointError::Tensors(format!("the copy in memory after step {} is gone", self.step));
        let slot = folder.and_then(|folder| self.slot_in(folder)).ok_or_else(gone)?;
        for source in &self.sources {
            match rank {
                0 => neighbours.take(&slot, source)?,
                rank if rank == source.rank => neighbours.give(&slot, source)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn write(
    slot: &Path,
    rank: usize,
    copied: &CompleteCopy,
    manifest: &Manifest,
    description: &Description,
    neighbours: Option<&Neighbours>,
) -> Result<(), CheckpointError> {
    let mark_all = |ranks: &[usize], step| {
        let mut ranks = ranks.iter();
        ranks.try_for_each(|rank| mark(slot, *rank, step)).map_err(CheckpointError::io("write", slot))
    };
    let kept = neighbours.map_or(&[][..], Neighbours::kept);
    mark_all(&[rank], 0)?;
    mark_all(kept, 0)?;
    if rank == description.node.start {
        let path = slot.join(manifest::FILE_NAME);
        let bytes = manifest.to_bytes(&path)?;
        write_in_place(&path, bytes.len() as u64, [(0, &bytes[..])])?;
        let path = slot.join(COPY);
        let bytes = serde_json::to_vec(description)
            .map_err(|error| CheckpointError::io("write", &path)(error.into()))?;
        write_in_place(&path, bytes.len() as u64, [(0, &bytes[..])])?;
    }
    for (layout, parts) in copied.by_file() {
        let pieces = parts.iter().map(|part| (part.offset, copied.bytes_of(part)));
        write_in_place(&slot.join(&layout.name), layout.bytes, pieces)?;
    }
    mark_all(&[rank], manifest.step)?;
    if let Some(neighbours) = neighbours {
        neighbours.exchange(slot, &description.shards)?;
    }
    mark_all(kept, manifest.step)
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
