//! The checkpoint that is being written: the work of the ranks between the copy and the commit.
//!
//! The status of a step holds each rank's progress, so all ranks enter the next stage at the same step.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use dtrain_common::manifest::{CHECKSUM_BYTES, Manifest};
use dtrain_common::run_dir::{Keep, RunDir};
use dtrain_torch_shim::host_copy::CopyDone;
use tch::{Device, Tensor};

use super::attached::attach;
use super::background::{BackgroundTask, Progress, lower_priority};
use super::commit;
use super::copying::Copier;
use super::disk::{Disk, checksums, write};
use super::error::CheckpointError;
use super::gathering::Gathering;
use super::layout::{Digest, FileLayout};
use super::memory::Memory;
use super::remove::remove;
use crate::collectives::{Ranks, ReduceOp};
use crate::data::TokenizerFiles;
use crate::metrics::CheckpointRecord;
use crate::optim::Model;
use crate::out_of_memory::retry_on_oom;

/// The checkpoints of a run, on one of its ranks. At most one is pending.
pub(crate) struct Checkpoints {
    run_dir: RunDir,
    ranks: Ranks,
    disk: Arc<Disk>,
    gathering: Arc<Gathering>,
    copier: Copier,
    pending: Option<PendingCheckpoint>,
}

struct PendingCheckpoint {
    manifest: Manifest,
    tokenizer: Option<TokenizerFiles>,
    keep: Keep,
    files: Arc<[FileLayout]>,
    begun: Instant,
    record: CheckpointRecord,
    copy: Option<UnfinishedCopy>,
    /// Returns the copy's memory when it is free, even if the write failed.
    memory: Receiver<Memory>,
    stage: Stage,
}

/// The part of the copy that the training has not waited for.
enum UnfinishedCopy {
    /// The device copies.
    Device(CopyDone),
    /// The writing thread copies, and then drops the other end.
    Host(Receiver<()>),
}

enum Stage {
    /// Every rank writes its part.
    Write(BackgroundTask<WriteResult>),
    /// All ranks have written; rank 0 commits the checkpoint.
    Commit(Option<BackgroundTask<()>>),
}

struct WriteResult {
    digests: Vec<Digest>,
    took: Duration,
}

impl Checkpoints {
    /// Makes the checkpoints of a run with tensors on `device`. `cores` is this rank's share of the machine;
    /// `gathering` collects what other nodes cannot write. Every rank calls this after rank 0 has called
    /// [`super::clear`].
    pub(crate) fn new(
        run_dir: &RunDir,
        ranks: &Ranks,
        gathering: Gathering,
        device: Device,
        cores: usize,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            run_dir: run_dir.clone(),
            ranks: ranks.clone(),
            disk: Arc::new(Disk::from_env(ranks.rank())?),
            copier: Copier::new(ranks, 0..gathering.writers(ranks.size()), device, cores)?,
            gathering: Arc::new(gathering),
            pending: None,
        })
    }

    /// Prepares memory for the first copy beside the training. Every rank calls this once, between two steps.
    pub(crate) fn prepare(&mut self, model: &Model) -> Result<(), CheckpointError> {
        match self.pending {
            Some(_) => Ok(()),
            None => self.copier.prepare(model),
        }
    }

    /// Copies this rank's part of a checkpoint and begins to write it (the pipelined snapshot of CheckFreq:
    /// Mohan et al., FAST 2021). `manifest` lacks its files. Every rank calls this between the same two
    /// steps, while no checkpoint is pending, and [`Checkpoints::wait_for_copy`] before the next update.
    pub(crate) fn begin(
        &mut self,
        model: &Model,
        manifest: Manifest,
        keep: Keep,
    ) -> Result<(), CheckpointError> {
        let begun = Instant::now();
        let copying = self.copier.begin(model)?;
        let files = Arc::clone(&copying.files);
        let (copied, on_host) = mpsc::channel();
        let (free, memory) = mpsc::channel();
        let copy = copying.copy_done().map_or(UnfinishedCopy::Host(on_host), UnfinishedCopy::Device);
        let (step, bytes) = (manifest.step, files.iter().map(|file| file.bytes).sum());
        let folder = commit::partial_folder(&self.run_dir, step);
        let (disk, gathering) = (Arc::clone(&self.disk), Arc::clone(&self.gathering));
        let all = Arc::clone(&copying.files);
        let write = BackgroundTask::begin(move || {
            lower_priority();
            let whole = copying.finish();
            drop::<mpsc::Sender<()>>(copied);
            let begun = Instant::now();
            if gathering.sends() {
                gathering.send(&all, whole.as_ref().ok())?;
            }
            let digests = match &whole {
                Ok(whole) if gathering.sends() => checksums(whole),
                Ok(whole) => write(whole, &folder, &disk),
                Err(_) => Ok(Vec::new()),
            };
            // Without an own copy too: the other nodes wait until their parts are received.
            let received = gathering.receive(&all, &folder, &disk, whole.is_ok() && digests.is_ok());
            let whole = whole?;
            let digests = digests.and_then(|digests| received.map(|()| digests));
            let took = begun.elapsed();
            // If the checkpoint was given up, nothing receives the memory.
            let _ = free.send(whole.memory);
            Ok(WriteResult { digests: digests?, took })
        });
        self.pending = Some(PendingCheckpoint {
            manifest,
            tokenizer: model.task.facts().tokenizer.clone(),
            keep,
            files,
            record: CheckpointRecord {
                step,
                bytes,
                blocked_ms: ms(begun.elapsed()),
                write_ms: 0.0,
                total_ms: 0.0,
            },
            begun,
            copy: Some(copy),
            memory,
            stage: Stage::Write(write),
        });
        Ok(())
    }

    /// Waits until the copy is complete, if there is one; most was copied beside the step. Called before each
    /// update of state that a checkpoint contains.
    pub(crate) fn wait_for_copy(&mut self) -> Result<(), CheckpointError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        match pending.copy.take() {
            // The device waits; the host continues.
            Some(UnfinishedCopy::Device(done)) => done.block_current_stream()?,
            Some(UnfinishedCopy::Host(copied)) => {
                let begun = Instant::now();
                // No message comes: the other end is dropped.
                let _ = copied.recv();
                pending.record.blocked_ms += ms(begun.elapsed());
            }
            None => {}
        }
        Ok(())
    }

    pub(crate) fn step(&self) -> Option<u64> {
        self.pending.as_ref().map(|pending| pending.manifest.step)
    }

    /// Returns this rank's progress for the status of a step; ranks' figures must not be added.
    pub(crate) fn progress(&mut self) -> f64 {
        let stage = self.pending.as_mut().map(|pending| &mut pending.stage);
        progress_number(match stage {
            Some(Stage::Write(task)) => task.progress(),
            Some(Stage::Commit(Some(task))) => task.progress(),
            Some(Stage::Commit(None)) | None => Progress::Done,
        })
    }

    /// Continues the pending checkpoint, given the [`Checkpoints::progress`] of each rank. Every rank calls
    /// this after the same step. Returns the checkpoint when it is committed. If a rank could not write, all
    /// ranks learn that at the same step and give the checkpoint up.
    pub(crate) fn continue_pending(
        &mut self,
        progress: &[f64],
    ) -> Result<Option<CheckpointRecord>, CheckpointError> {
        let first =
            |wanted: Progress| progress.iter().position(|&reported| reported == progress_number(wanted));
        if self.pending.is_none() || first(Progress::Working).is_some() {
            return Ok(None);
        }
        match (self.advance(), first(Progress::Failed)) {
            (Ok(_), Some(failed)) => Err(CheckpointError::Peer(failed)),
            (outcome, _) => outcome,
        }
    }

    /// Waits for the pending checkpoint, if any. Every rank calls this between the same steps.
    pub(crate) fn finish(&mut self) -> Result<Option<CheckpointRecord>, CheckpointError> {
        let begun = Instant::now();
        while self.pending.is_some() {
            if let Some(mut written) = self.advance()? {
                written.blocked_ms += ms(begun.elapsed());
                return Ok(Some(written));
            }
        }
        Ok(None)
    }

    /// Ends the current stage of the pending checkpoint, and begins the next.
    fn advance(&mut self) -> Result<Option<CheckpointRecord>, CheckpointError> {
        let Some(pending) = self.pending.take() else { return Ok(None) };
        let partial = commit::partial_folder(&self.run_dir, pending.manifest.step);
        self.next_stage(pending).inspect_err(|error| {
            let is_agreed = !matches!(error, CheckpointError::Collective(_));
            if self.ranks.rank() == 0 && is_agreed {
                // No rank writes any more, and the disk may need the space.
                remove(&partial);
            }
        })
    }

    fn next_stage(
        &mut self,
        mut pending: PendingCheckpoint,
    ) -> Result<Option<CheckpointRecord>, CheckpointError> {
        match pending.stage {
            Stage::Write(task) => {
                let wrote = task.finish();
                if let Ok(memory) = pending.memory.try_recv() {
                    self.copier.reuse(memory);
                }
                let own = wrote.as_ref().ok().map(|wrote| &wrote.digests[..]);
                let digests = match exchange(&self.ranks, &pending.files, own) {
                    // The collective's error goes first: other ranks have not learnt of this rank's error.
                    Err(error @ CheckpointError::Collective(_)) => return Err(error),
                    digests => digests,
                };
                let wrote = wrote?;
                pending.record.write_ms = ms(wrote.took);
                let mut digests = digests?.into_iter();
                let commit = (self.ranks.rank() == 0).then(|| {
                    let entries = pending.files.iter().map(|file| file.entry(&mut digests));
                    pending.manifest.files = entries.collect();
                    let (run_dir, mut manifest) = (self.run_dir.clone(), pending.manifest.clone());
                    let (keep, tokenizer) = (pending.keep.clone(), pending.tokenizer.take());
                    BackgroundTask::begin(move || {
                        lower_priority();
                        let partial = commit::partial_folder(&run_dir, manifest.step);
                        attach(&partial, tokenizer.as_ref(), &mut manifest)?;
                        commit::commit(&run_dir, &manifest, &keep)
                    })
                });
                pending.stage = Stage::Commit(commit);
                self.pending = Some(pending);
                Ok(None)
            }
            // Other ranks come here when rank 0 has reported that it is done, or without waiting.
            Stage::Commit(task) => {
                task.map_or(Ok(()), BackgroundTask::finish)?;
                pending.record.total_ms = ms(pending.begun.elapsed());
                Ok(Some(pending.record))
            }
        }
    }
}

fn progress_number(progress: Progress) -> f64 {
    f64::from(progress as u8)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Sends the checksums of all parts to all ranks, in order. `own` is None if this rank could not write.
fn exchange(
    ranks: &Ranks,
    files: &[FileLayout],
    own: Option<&[Digest]>,
) -> Result<Vec<Digest>, CheckpointError> {
    let owners = || files.iter().flat_map(|file| &file.parts).map(|part| part.rank);
    // A failure flag per rank, then the checksums. One rank sets each byte, so the sum is its value.
    let mut bytes = vec![0u8; ranks.size() + owners().count() * CHECKSUM_BYTES];
    let (failed, digests) = bytes.split_at_mut(ranks.size());
    failed[ranks.rank()] = u8::from(own.is_none());
    let slots = digests.chunks_exact_mut(CHECKSUM_BYTES).zip(owners());
    let mine = slots.filter(|(_, owner)| *owner == ranks.rank());
    for ((slot, _), digest) in mine.zip(own.unwrap_or_default()) {
        slot.copy_from_slice(digest);
    }
    let all = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(&bytes))?;
    ranks.all_reduce(&all, ReduceOp::Sum)?.wait()?;
    all.f_copy_data_u8(&mut bytes, all.numel())?;
    let (failed, digests) = bytes.split_at(ranks.size());
    match failed.iter().position(|failed| *failed > 0) {
        Some(rank) => Err(CheckpointError::Peer(rank)),
        None => Ok(digests.as_chunks().0.to_vec()),
    }
}
