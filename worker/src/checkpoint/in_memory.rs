//! The state after every step, in memory that outlives the workers: the death of one of them then costs no step.
//!
//! Slots are used in turn. A rank copies and writes step k while step k + 1 is computed, and ends before it takes part in the agreement on that
//! step. Whoever writes step k + 1 therefore knows that all ranks have written step k, which is in the other slot: whenever the ranks
//! die, one slot is whole. `dtrain_common::memory_copies` describes the place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use dtrain_common::manifest::{self, CHECKSUM_BYTES, Checksum, FileEntry, Manifest, Part};
use dtrain_common::memory_copies::{SLOTS, mark, step_of};
use tch::Device;

use super::error::CheckpointError;
use super::filling::{Filler, Filling};
use super::items::{self, Snapshot};
use super::layout::FileLayout;
use super::staging::{self, Copying, Memory, StagedPart};
use crate::collectives::Ranks;

/// The copies of a run, on one of its ranks.
pub struct MemoryCopies {
    ranks: Ranks,
    device: Device,
    /// Of the machine's cores this rank's share.
    cores: usize,
    slots: [PathBuf; 2],
    filler: Filler,
    /// Where the next copy is staged; with the thread while one is written.
    memory: Option<Memory>,
    is_writing: bool,
    jobs: Option<Sender<Copy>>,
    done: Receiver<(Option<Memory>, Result<(), CheckpointError>)>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread writes.
struct Copy {
    slot: PathBuf,
    rank: usize,
    step: u64,
    files: Vec<(String, u64)>,
    parts: Vec<StagedPart>,
    filling: Filling,
    /// On rank 0.
    manifest: Option<Manifest>,
}

impl MemoryCopies {
    /// In the place that the launcher has made, where `cores` of the machine are this rank's share; every rank makes one.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub fn new(place: &Path, ranks: &Ranks, device: Device, cores: usize) -> Result<Self, CheckpointError> {
        let (jobs, queue) = mpsc::channel::<Copy>();
        let (says, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("memory-copies".to_owned())
            .spawn(move || {
                for copy in queue {
                    // Fails only when the training is over.
                    let _ = says.send(copy.make());
                }
            })
            .map_err(CheckpointError::io("start a thread for", place))?;
        Ok(Self {
            ranks: ranks.clone(),
            device,
            cores,
            slots: SLOTS.map(|slot| place.join(slot)),
            filler: Filler::new(device)?,
            memory: None,
            is_writing: false,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        })
    }

    /// Begins to copy what this rank keeps of the state after `manifest.step`. Every rank calls it, between the same two steps, and
    /// [`MemoryCopies::settle`] before it changes parameters, moments or averages.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub fn begin(&mut self, snapshot: &Snapshot<'_>, mut manifest: Manifest) -> Result<(), CheckpointError> {
        self.settle()?;
        let rank = self.ranks.rank();
        let sources = items::files(snapshot, &self.ranks, self.device)?;
        let layouts: Arc<[FileLayout]> = items::divide(&sources, self.ranks.size())?.into();
        let (parts, bytes) = staging::parts(&layouts, rank);
        let memory = Memory::at_least(bytes, self.memory.take())?;
        let copying = Copying {
            rank,
            layouts: Arc::clone(&layouts),
            files: sources,
            threads: self.cores,
        };
        manifest.files = layouts.iter().map(entry).collect();
        let copy = Copy {
            slot: self.slots[(manifest.step % 2) as usize].clone(),
            rank,
            step: manifest.step,
            files: layouts.iter().map(FileLayout::named).collect(),
            filling: self.filler.fill(copying, &parts, memory)?,
            parts,
            manifest: (rank == 0).then_some(manifest),
        };
        let jobs = self.jobs.as_ref().ok_or(CheckpointError::Writer)?;
        jobs.send(copy).map_err(|_| CheckpointError::Writer)?;
        self.is_writing = true;
        Ok(())
    }

    /// Waits until the copy under way is written, if there is one. Every rank calls it before it agrees on the next step.
    ///
    /// # Errors
    /// Where it could not be written.
    pub fn settle(&mut self) -> Result<(), CheckpointError> {
        if std::mem::take(&mut self.is_writing) {
            let (memory, written) = self.done.recv().map_err(|_| CheckpointError::Writer)?;
            self.memory = memory;
            written?;
        }
        Ok(())
    }
}

impl Drop for MemoryCopies {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The newest slot that so many ranks have written whole, with its step.
pub fn newest(place: &Path, ranks: usize) -> Option<(PathBuf, u64)> {
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

impl Copy {
    /// The memory, where the device has not lost it, and whether all is written.
    fn make(self) -> (Option<Memory>, Result<(), CheckpointError>) {
        let Self {
            slot,
            rank,
            step,
            files,
            parts,
            filling,
            manifest,
        } = self;
        let (memory, filled) = filling.end(&parts);
        let write = |memory: &Memory| {
            let failed = || CheckpointError::io("write", slot.clone());
            mark(&slot, rank, 0).map_err(failed())?;
            if let Some(manifest) = &manifest {
                write_manifest(&slot, manifest).map_err(failed())?;
            }
            for (number, (name, bytes)) in files.iter().enumerate() {
                let path = slot.join(name);
                let fail = || CheckpointError::io("write", path.clone());
                let file = File::options().write(true).open(&path).map_err(fail())?;
                file.set_len(*bytes).map_err(fail())?;
                for part in parts.iter().filter(|part| part.file == number) {
                    let content = &memory[part.start..part.start + part.bytes];
                    file.write_all_at(content, part.offset).map_err(fail())?;
                }
            }
            mark(&slot, rank, step).map_err(failed())
        };
        let written = filled.and_then(|()| write(memory.as_ref().ok_or(CheckpointError::Writer)?));
        (memory, written)
    }
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
