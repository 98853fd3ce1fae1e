//! A checkpoint under way: what the ranks do together between the copy and the name.
//!
//! Whether a rank still writes travels in the status of every step, so all ranks come to the same next state at the same step.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::manifest::{CHECKSUM_BYTES, Checksum, FileEntry, Manifest, Part};
use dtrain_common::run_dir::RunDir;
use dtrain_torch_shim::landing::Landed;
use tch::{Device, Tensor};

use super::commit::{self, Commit, Keep};
use super::disk::{Disk, FaultyDisk, SystemDisk};
use super::error::CheckpointError;
use super::filling::Filler;
use super::items::{self, Snapshot};
use super::layout::FileLayout;
use super::remove::remove;
use super::staging::{self, Copying, Memory};
use super::writer::{Digest, Done, Staged, Write, Writer};
use crate::collectives::{Ranks, ReduceOp};
use crate::engine::patiently;

/// How a rank's writing stands, as it travels between the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left to do here.
    Done,
    /// It goes on.
    Working,
    /// It has failed.
    Failed,
}

impl Progress {
    /// As a figure that can be added to those of other ranks, each in a place of its own.
    pub fn figure(self) -> f64 {
        match self {
            Self::Done => 0.0,
            Self::Working => 1.0,
            Self::Failed => 2.0,
        }
    }

    /// What [`Progress::figure`] says.
    pub fn read(figure: f64) -> Self {
        match figure {
            figure if figure >= 2.0 => Self::Failed,
            figure if figure >= 1.0 => Self::Working,
            _ => Self::Done,
        }
    }
}

/// A checkpoint that is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// Its step.
    pub step: u64,
    /// Its folder; on rank 0.
    pub folder: Option<PathBuf>,
    /// The bytes of its files but the manifest.
    pub bytes: u64,
    /// How long the training stood still for it on this rank.
    pub blocked: Duration,
    /// How long this rank wrote.
    pub wrote: Duration,
    /// From its beginning until it was there.
    pub took: Duration,
}

/// The checkpoints of a run, on one of its ranks. At most one is under way.
pub struct Checkpoints {
    run_dir: RunDir,
    ranks: Ranks,
    device: Device,
    /// Of the machine's cores this rank's share.
    cores: usize,
    writer: Writer,
    filler: Filler,
    /// Where the copy lies; lent to the writer while it writes.
    memory: Option<Memory>,
    /// Whether the writer has it to make it ready.
    is_preparing: bool,
    flight: Option<Flight>,
}

struct Flight {
    files: Arc<[FileLayout]>,
    manifest: Manifest,
    keep: Keep,
    begun: Instant,
    blocked: Duration,
    wrote: Duration,
    /// The copy is not whole: what lasts until the next update is still being read.
    is_copying: bool,
    /// When a device has made the copy, where it does.
    landed: Option<Landed>,
    state: State,
}

enum State {
    /// Every rank writes its part.
    Writing,
    /// This rank has written its part, or has not.
    Wrote(Result<Vec<Digest>, CheckpointError>),
    /// All have, and rank 0 makes it a checkpoint.
    Committing,
    /// What rank 0 has to say of that.
    Committed(Result<PathBuf, CheckpointError>),
}

impl Checkpoints {
    /// For a run in `run_dir` of tensors on `device`, where `cores` of the machine are this rank's share; every rank makes one,
    /// after rank 0 has called [`super::clear`].
    ///
    /// # Errors
    /// Where the system refuses a thread, or `DTRAIN_FAULT` asks for what there is not.
    pub fn new(
        run_dir: &RunDir,
        ranks: &Ranks,
        device: Device,
        cores: usize,
    ) -> Result<Self, CheckpointError> {
        let disk: Arc<dyn Disk> = match FaultyDisk::from_env(ranks.rank())? {
            Some(faulty) => Arc::new(faulty),
            None => Arc::new(SystemDisk),
        };
        let writer = Writer::start(disk).map_err(CheckpointError::io("start a thread for", "checkpoints"))?;
        Ok(Self {
            run_dir: run_dir.clone(),
            ranks: ranks.clone(),
            device,
            cores,
            writer,
            filler: Filler::new(device)?,
            memory: None,
            is_preparing: false,
            flight: None,
        })
    }

    /// Has memory for the first copy made ready beside the training. Every rank calls it, between two steps, or none does.
    ///
    /// # Errors
    /// As [`Checkpoints::begin`].
    pub fn prepare(&mut self, snapshot: &Snapshot<'_>) -> Result<(), CheckpointError> {
        if self.memory.is_some() || self.is_preparing || self.flight.is_some() {
            return Ok(());
        }
        let files = items::files(snapshot, &self.ranks, self.device)?;
        let (_, bytes) = staging::parts(&items::divide(&files, self.ranks.size())?, self.ranks.rank());
        self.writer.prepare(Memory::of(bytes)?, self.cores, self.device)?;
        self.is_preparing = true;
        Ok(())
    }

    /// Copies what this rank writes of a checkpoint, and begins to write it. Every rank calls it, between the same two steps,
    /// with a manifest that lacks its files; none may be under way. Returns when the training may compute again; before it changes
    /// parameters, moments or averages, it calls [`Checkpoints::settle`] (the pipelined snapshot of CheckFreq: Mohan et al., FAST
    /// 2021).
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub fn begin(
        &mut self,
        snapshot: &Snapshot<'_>,
        manifest: Manifest,
        keep: Keep,
    ) -> Result<(), CheckpointError> {
        let begun = Instant::now();
        let rank = self.ranks.rank();
        let sources = items::files(snapshot, &self.ranks, self.device)?;
        let files: Arc<[FileLayout]> = items::divide(&sources, self.ranks.size())?.into();
        let (parts, bytes) = staging::parts(&files, rank);
        let memory = self.take_memory(bytes)?;
        let copying = Copying {
            rank,
            layouts: Arc::clone(&files),
            files: sources,
            threads: self.cores,
        };
        let filling = self.filler.fill(copying, &parts, memory)?;
        let landed = filling.landed();
        self.writer.write(Write {
            filling,
            staged: Staged {
                folder: commit::partial(&self.run_dir, manifest.step),
                files: files.iter().map(FileLayout::named).collect(),
                parts,
                hashers: hashers(self.cores),
            },
        })?;
        self.flight = Some(Flight {
            files,
            manifest,
            keep,
            begun,
            blocked: begun.elapsed(),
            wrote: Duration::ZERO,
            is_copying: true,
            landed,
            state: State::Writing,
        });
        Ok(())
    }

    /// Waits until the copy is whole, if one is made: called before anything changes that a checkpoint has and that only updates
    /// change. Most of it has been copied by then, beside the step.
    ///
    /// # Errors
    /// Where the thread that copies has ended.
    pub fn settle(&mut self) -> Result<(), CheckpointError> {
        if let Some(landed) = self.flight.as_mut().and_then(|flight| flight.landed.take()) {
            // The device waits where it has to, and the host goes on.
            return Ok(landed.hold()?);
        }
        if self.device.is_cuda() {
            return Ok(());
        }
        let begun = Instant::now();
        while self.flight.as_ref().is_some_and(|flight| flight.is_copying) {
            let done = self.writer.wait()?;
            self.take(done);
            if let Some(flight) = self.flight.as_mut().filter(|flight| !flight.is_copying) {
                flight.blocked += begun.elapsed();
            }
        }
        Ok(())
    }

    fn take_memory(&mut self, bytes: usize) -> Result<Memory, CheckpointError> {
        // What is nearly ready is ready sooner than new memory, and the cores are free for it now.
        while self.is_preparing {
            let done = self.writer.wait()?;
            self.take(done);
        }
        Memory::at_least(bytes, self.memory.take())
    }

    /// The step of the one under way.
    pub fn step(&self) -> Option<u64> {
        self.flight.as_ref().map(|flight| flight.manifest.step)
    }

    /// Whether one is under way.
    pub fn is_under_way(&self) -> bool {
        self.flight.is_some()
    }

    /// How this rank's writing stands, for the status of a step.
    ///
    /// # Errors
    /// Where the thread that writes has ended.
    pub fn progress(&mut self) -> Result<Progress, CheckpointError> {
        while let Some(done) = self.writer.poll()? {
            self.take(done);
        }
        let Some(flight) = &self.flight else {
            return Ok(Progress::Done);
        };
        Ok(match &flight.state {
            State::Writing => Progress::Working,
            State::Committing if self.ranks.rank() == 0 => Progress::Working,
            State::Wrote(Err(_)) | State::Committed(Err(_)) => Progress::Failed,
            State::Wrote(Ok(_)) | State::Committing | State::Committed(Ok(_)) => Progress::Done,
        })
    }

    /// Goes on with the checkpoint under way, when the ranks have told each other how theirs stands: `progress` by rank. Every
    /// rank calls it after the same step. Returns the checkpoint when it is there.
    ///
    /// # Errors
    /// Where this rank or another could not write, which every rank learns at the same step; the checkpoint is given up.
    pub fn follow(&mut self, progress: &[Progress]) -> Result<Option<Written>, CheckpointError> {
        if self.flight.is_none() || progress.contains(&Progress::Working) {
            return Ok(None);
        }
        if let Some(failed) = progress.iter().position(|progress| *progress == Progress::Failed) {
            return Err(self.give_up(failed));
        }
        self.advance()
    }

    /// Waits for the checkpoint under way, if there is one. Every rank calls it between the same two steps.
    ///
    /// # Errors
    /// As [`Checkpoints::follow`].
    pub fn finish(&mut self) -> Result<Option<Written>, CheckpointError> {
        while let Some(flight) = &self.flight {
            let waits = match flight.state {
                State::Writing => true,
                State::Committing => self.ranks.rank() == 0,
                State::Wrote(_) | State::Committed(_) => false,
            };
            if waits {
                let done = self.writer.wait()?;
                self.take(done);
                continue;
            }
            if let Some(written) = self.advance()? {
                return Ok(Some(written));
            }
        }
        Ok(None)
    }

    /// The next state, where nothing is left to do for this one.
    fn advance(&mut self) -> Result<Option<Written>, CheckpointError> {
        let rank = self.ranks.rank();
        let Some(mut flight) = self.flight.take() else {
            return Ok(None);
        };
        match flight.state {
            State::Wrote(written) => {
                let (progress, digests) = exchange(&self.ranks, &flight.files, &written)?;
                if let Some(failed) = progress.iter().position(|progress| *progress == Progress::Failed) {
                    flight.state = State::Wrote(written);
                    self.flight = Some(flight);
                    return Err(self.give_up(failed));
                }
                flight.state = State::Committing;
                if rank == 0 {
                    let mut manifest = flight.manifest.clone();
                    manifest.files = entries(&flight.files, &digests);
                    self.writer.commit(Commit {
                        run_dir: self.run_dir.clone(),
                        partial: commit::partial(&self.run_dir, manifest.step),
                        manifest,
                        keep: flight.keep,
                    })?;
                }
                self.flight = Some(flight);
                Ok(None)
            }
            // The other ranks come here when rank 0 has said that it is done, or without waiting for it.
            State::Committing => Ok(Some(flight.written(None))),
            State::Committed(Ok(ref folder)) => {
                let folder = folder.clone();
                Ok(Some(flight.written(Some(folder))))
            }
            State::Committed(Err(error)) => Err(error),
            State::Writing => {
                self.flight = Some(flight);
                Ok(None)
            }
        }
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Prepared(memory) => (self.memory, self.is_preparing) = (Some(memory), false),
            Done::Copied => {
                if let Some(flight) = &mut self.flight {
                    flight.is_copying = false;
                }
            }
            Done::Written(memory, written) => {
                self.memory = memory;
                if let Some(flight) = &mut self.flight {
                    flight.state = State::Wrote(written.map(|written| {
                        flight.wrote = written.took;
                        written.digests
                    }));
                }
            }
            Done::Committed(outcome) => {
                if let Some(flight) = &mut self.flight {
                    flight.state = State::Committed(outcome);
                }
            }
        }
    }

    /// The checkpoint under way is none: `failed` could not write. No rank writes any more.
    fn give_up(&mut self, failed: usize) -> CheckpointError {
        let Some(flight) = self.flight.take() else {
            return CheckpointError::Peer(failed);
        };
        if self.ranks.rank() == 0 {
            // What is half written is of no use, and the space may be what lacks.
            remove(&commit::partial(&self.run_dir, flight.manifest.step));
        }
        match flight.state {
            State::Wrote(Err(error)) | State::Committed(Err(error)) => error,
            _ => CheckpointError::Peer(failed),
        }
    }
}

impl Flight {
    fn written(&self, folder: Option<PathBuf>) -> Written {
        Written {
            step: self.manifest.step,
            folder,
            bytes: self.files.iter().map(|file| file.bytes).sum(),
            blocked: self.blocked,
            wrote: self.wrote,
            took: self.begun.elapsed(),
        }
    }
}

/// Threads for the checksums of a rank with so many cores. One keeps up with most disks, and takes none from the training where a core
/// is free.
fn hashers(cores: usize) -> usize {
    /// More are faster than any disk.
    const MOST: usize = 4;
    (cores / 4).clamp(1, MOST)
}

/// Tells all ranks how the others have written, and the checksums of all parts of all files, in their order.
fn exchange(
    ranks: &Ranks,
    files: &[FileLayout],
    own: &Result<Vec<Digest>, CheckpointError>,
) -> Result<(Vec<Progress>, Vec<Digest>), CheckpointError> {
    let owners: Vec<usize> = files
        .iter()
        .flat_map(|file| file.parts.iter().map(|(_, owner)| *owner))
        .collect();
    // A byte of progress for each rank, then the checksums; each byte is set by one rank, so that the sum is what they say.
    let mut bytes = vec![0u8; ranks.size() + owners.len() * CHECKSUM_BYTES];
    let (progress, digests) = bytes.split_at_mut(ranks.size());
    match own {
        Err(_) => progress[ranks.rank()] = Progress::Failed.figure() as u8,
        Ok(own) => {
            let places = digests.chunks_exact_mut(CHECKSUM_BYTES).zip(&owners);
            let mine = places.filter(|(_, owner)| **owner == ranks.rank());
            for ((place, _), digest) in mine.zip(own) {
                place.copy_from_slice(digest);
            }
        }
    }
    let all = patiently(Device::Cpu, || Tensor::f_from_slice(&bytes))?;
    ranks.all_reduce(&all, ReduceOp::Sum)?.wait()?;
    all.f_copy_data_u8(&mut bytes, all.numel())?;
    let (progress, digests) = bytes.split_at(ranks.size());
    Ok((
        progress
            .iter()
            .map(|&byte| Progress::read(f64::from(byte)))
            .collect(),
        digests.as_chunks().0.to_vec(),
    ))
}

/// What the manifest says of the files.
fn entries(files: &[FileLayout], digests: &[Digest]) -> Vec<FileEntry> {
    let mut digests = digests.iter();
    let entry = |file: &FileLayout| FileEntry {
        name: file.name.clone(),
        bytes: file.bytes,
        parts: file
            .parts
            .iter()
            .zip(digests.by_ref())
            .map(|(&(bytes, _), digest)| Part {
                bytes,
                checksum: Checksum::of_bytes(digest),
            })
            .collect(),
    };
    files.iter().map(entry).collect()
}
