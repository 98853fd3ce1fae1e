//! Copies this rank's part of a checkpoint into host memory.
//!
//! Tensors that the next step may change are copied at once. The others are copied during that step: by a
//! separate stream of a GPU, or by the thread that writes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dtrain_common::trace;
use dtrain_torch_shim::copy::copy_out;
use dtrain_torch_shim::host_copy::{CopyDone, CopyStream, HostCopy, Pairs};
use tch::{Device, TchError};

use super::background::{BackgroundTask, lower_priority};
use super::error::CheckpointError;
use super::items::{self, Source};
use super::layout::{Content, FileLayout, Holders, layout};
use super::memory::{Memory, PAGE};
use crate::collectives::Ranks;
use crate::optim::Model;
use crate::out_of_memory::retry_on_oom;

/// A part of a file that this rank writes, and the range of its copy in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StagedPart {
    file: usize,
    /// Offset of the part in the file.
    pub(super) offset: u64,
    range: Range<usize>,
}

/// Assigns memory to ranges, which come in the order of the files. Each copy has the page offset that it has
/// in its file, and ranges that are adjacent in a file are adjacent in memory.
#[derive(Default)]
struct SlotAllocator {
    end: usize,
    /// File and offset after the last range.
    previous_end: (usize, u64),
}

impl SlotAllocator {
    fn allocate(&mut self, file: usize, offset: u64, bytes: u64) -> Range<usize> {
        if self.previous_end != (file, offset) {
            self.end = self.end.next_multiple_of(PAGE) + (offset % PAGE as u64) as usize;
        }
        let begin = self.end;
        self.end += bytes as usize;
        self.previous_end = (file, offset + bytes);
        begin..self.end
    }
}

/// Returns the parts of the files that `rank` writes, and the bytes of memory for their copy.
fn assign_parts(files: &[FileLayout], rank: usize) -> (Vec<StagedPart>, usize) {
    let mut slots = SlotAllocator::default();
    let mut parts = Vec::new();
    for (file, layout) in files.iter().enumerate() {
        parts.extend(layout.parts_of(rank).map(|part| StagedPart {
            file,
            offset: part.offset,
            range: slots.allocate(file, part.offset, part.bytes),
        }));
    }
    (parts, slots.end)
}

/// Returns the bytes of host memory for this rank's copy of a checkpoint, which `writers` share. Every rank calls this.
pub(crate) fn copy_bytes(
    model: &Model,
    ranks: &Ranks,
    writers: Range<usize>,
    device: Device,
) -> Result<u64, CheckpointError> {
    let sources = items::files(model, ranks, device)?;
    Ok(assign_parts(&layout(&sources, writers)?, ranks.rank()).1 as u64)
}

pub(super) struct Copier {
    ranks: Ranks,
    /// The ranks that share what all ranks hold.
    writers: Range<usize>,
    device: Device,
    threads: usize,
    copy_stream: Option<CopyStream>,
    /// Prepares memory for the first copy.
    preparing: Option<BackgroundTask<Memory>>,
    /// Stops the preparation.
    cancelled: Arc<AtomicBool>,
    memory: Option<Memory>,
}

impl Copier {
    pub(super) fn new(
        ranks: &Ranks,
        writers: Range<usize>,
        device: Device,
        threads: usize,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            ranks: ranks.clone(),
            writers,
            device,
            threads,
            copy_stream: device.is_cuda().then(|| CopyStream::of(device)).transpose()?,
            preparing: None,
            cancelled: Arc::default(),
            memory: None,
        })
    }

    /// Prepares memory for the first copy beside the training. Every rank calls this between two steps.
    pub(super) fn prepare(&mut self, model: &Model) -> Result<(), CheckpointError> {
        let bytes = copy_bytes(model, &self.ranks, self.writers.clone(), self.device)?;
        let (device, cancelled) = (self.device, Arc::clone(&self.cancelled));
        self.preparing = Some(BackgroundTask::begin(move || {
            lower_priority();
            prepare_memory(bytes as usize, device, &cancelled)
        }));
        Ok(())
    }

    pub(super) fn reuse(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Begins a copy. Every rank calls this between the same steps. No update may begin until the copy is
    /// complete.
    pub(super) fn begin(&mut self, model: &Model) -> Result<PendingCopy, CheckpointError> {
        let kept = match self.preparing.take() {
            // Memory in preparation is ready sooner than new memory. After a failure, new memory is taken.
            Some(preparing) => preparing.finish().ok(),
            None => self.memory.take(),
        };
        let sources = items::files(model, &self.ranks, self.device)?;
        self.start(sources, kept)
    }

    fn start(
        &mut self,
        sources: Vec<(&'static str, Vec<Source>)>,
        kept: Option<Memory>,
    ) -> Result<PendingCopy, CheckpointError> {
        let files: Arc<[FileLayout]> = layout(&sources, self.writers.clone())?.into();
        let rank = self.ranks.rank();
        let (parts, bytes) = assign_parts(&files, rank);
        // Drops memory that is too small before larger memory is allocated.
        let kept = kept.filter(|kept| kept.len() >= bytes);
        let mut memory = kept.map_or_else(|| Memory::allocate(bytes), Ok)?;
        let late = if let Some(stream) = &mut self.copy_stream {
            memory.pin(self.device);
            let mut memory = Some(Box::new(memory));
            LateCopy::Device(retry_on_oom(self.device, || {
                HostCopy::start(stream, &mut memory, |memory| {
                    plan_copies(&files, &sources, rank, memory).map_err(CheckpointError::from)
                })
            })?)
        } else {
            retry_on_oom(self.device, || {
                let [changing, _] = plan_copies(&files, &sources, rank, &mut memory)?;
                copy(changing, self.threads)
            })?;
            LateCopy::Host { memory, sources, threads: self.threads }
        };
        Ok(PendingCopy { files, parts, rank, late })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Allocates `bytes`, touches every page and pins them for a GPU; stops early if `cancelled`.
fn prepare_memory(bytes: usize, device: Device, cancelled: &AtomicBool) -> Result<Memory, CheckpointError> {
    let mut memory = Memory::allocate(bytes)?;
    let mut pages = memory.iter_mut().step_by(PAGE);
    // The first access to new memory takes longer than a copy.
    while let (false, Some(page)) = (cancelled.load(Ordering::Relaxed), pages.next()) {
        *page = 1;
    }
    if !cancelled.load(Ordering::Relaxed) {
        memory.pin(device);
    }
    Ok(memory)
}

/// A copy that has begun. Tensors that the next step may change are copied.
pub(super) struct PendingCopy {
    pub(super) files: Arc<[FileLayout]>,
    parts: Vec<StagedPart>,
    rank: usize,
    late: LateCopy,
}

/// The copy of tensors that stay unchanged until the next update.
enum LateCopy {
    /// The thread that calls [`PendingCopy::finish`] copies.
    Host { memory: Memory, sources: Vec<(&'static str, Vec<Source>)>, threads: usize },
    /// The device copies.
    Device(HostCopy<Memory>),
}

impl PendingCopy {
    /// Returns a handle to wait for the device's copies; None if the host copies.
    pub(super) fn copy_done(&self) -> Option<CopyDone> {
        let LateCopy::Device(copy) = &self.late else { return None };
        Some(copy.done())
    }

    /// Copies the late tensors, or waits for the device.
    pub(super) fn finish(self) -> Result<CompleteCopy, CheckpointError> {
        let _copy = trace::span(trace::Kind::Checkpoint, "copy a checkpoint");
        let memory = match self.late {
            LateCopy::Host { mut memory, sources, threads } => {
                let [_, unchanged] = plan_copies(&self.files, &sources, self.rank, &mut memory)?;
                copy(unchanged, threads)?;
                memory
            }
            LateCopy::Device(copy) => *copy.wait()?,
        };
        Ok(CompleteCopy { files: self.files, parts: self.parts, memory })
    }
}

/// The complete copy of this rank's part.
pub(super) struct CompleteCopy {
    files: Arc<[FileLayout]>,
    pub(super) parts: Vec<StagedPart>,
    /// The memory of the copy, reusable for the next one.
    pub(super) memory: Memory,
}

impl CompleteCopy {
    pub(super) fn bytes_of(&self, part: &StagedPart) -> &[u8] {
        &self.memory[part.range.clone()]
    }

    /// Returns the files that this rank writes parts of, with these parts.
    pub(super) fn by_file(&self) -> impl Iterator<Item = (&FileLayout, &[StagedPart])> {
        let same_file = |one: &StagedPart, next: &StagedPart| one.file == next.file;
        let parts = self.parts.chunk_by(same_file);
        parts.map(|parts| (&self.files[parts[0].file], parts))
    }
}

/// Copies tensors on the CPU with at most `threads` threads.
fn copy(pairs: Pairs<'_>, threads: usize) -> Result<(), CheckpointError> {
    let threads = threads.min(pairs.len());
    let pairs = Mutex::new(pairs.into_iter());
    let copy_next = || -> Result<(), TchError> {
        loop {
            let next = pairs.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((tensor, to)) = next else { return Ok(()) };
            copy_out(&tensor, to)?;
        }
    };
    std::thread::scope(|scope| {
        // If no thread can be started, the other threads copy its share.
        let others: Vec<_> =
            (1..threads).flat_map(|_| std::thread::Builder::new().spawn_scoped(scope, copy_next)).collect();
        let mut outcome = copy_next();
        for other in others {
            outcome = outcome.and(other.join().map_err(|_| CheckpointError::Writer)?);
        }
        Ok(outcome?)
    })
}

/// Larger tensors are divided among threads.
const PAIR_BYTES: u64 = 16 << 20;

/// Returns the tensors that `rank` writes and their targets in `memory`: first those that may change before
/// the next update, then the others. Writes headers at once.
fn plan_copies<'m>(
    files: &[FileLayout],
    sources: &[(&str, Vec<Source>)],
    rank: usize,
    mut memory: &'m mut [u8],
) -> Result<[Pairs<'m>; 2], TchError> {
    let (mut slots, mut taken) = (SlotAllocator::default(), 0);
    let mut take = |slot: Range<usize>| {
        memory.split_off_mut(..slot.start - taken)?;
        taken = slot.end;
        memory.split_off_mut(..slot.len())
    };
    let [mut changing, mut unchanged] = [Pairs::new(), Pairs::new()];
    for (file, (layout, (_, sources))) in files.iter().zip(sources).enumerate() {
        for piece in layout.pieces(rank) {
            let slot = slots.allocate(file, piece.offset, piece.bytes);
            let short = || TchError::Convert("the memory for a checkpoint is too small".to_owned());
            let mut to = take(slot).ok_or_else(short)?;
            let Content::Elements(index, range) = &piece.content else {
                to.copy_from_slice(&layout.header);
                continue;
            };
            let source = &sources[*index];
            let width = piece.bytes / (range.end - range.start);
            let most = match source.item.holders {
                Holders::All { divisible: false } => range.end - range.start,
                _ => PAIR_BYTES / width,
            };
            let pairs = if source.unchanged_until_update { &mut unchanged } else { &mut changing };
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + most);
                let own = to.split_off_mut(..((end - at) * width) as usize);
                pairs.push((source.elements(&(at..end))?, own.ok_or_else(short)?));
                at = end;
            }
        }
    }
    Ok([changing, unchanged])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Kind, Tensor};

    use super::*;

    #[test]
    fn tensors_that_may_change_are_copied_at_once_and_others_later() {
        let tensor = |value| Tensor::full([1000], value, (Kind::Float, Device::Cpu));
        let (changing, lasting) = (tensor(1.0), tensor(2.0));
        let source = |name: &str, tensor: &Tensor, unchanged_until_update| Source {
            unchanged_until_update,
            ..Source::whole(name.into(), tensor.shallow_clone()).unwrap()
        };
        let sources =
            || vec![("file", vec![source("changing", &changing, false), source("lasting", &lasting, true)])];
        let fill = |tensor: &Tensor, value: f64| drop(tensor.shallow_clone().fill_(value));

        let mut copier = Copier::new(&Ranks::single(), 0..1, Device::Cpu, 2).unwrap();
        let copying = copier.start(sources(), None).unwrap();
        // The following step changes one tensor; the other stays unchanged until it is copied.
        fill(&changing, -1.0);
        fill(&lasting, 3.0);
        let copied = copying.finish().unwrap();
        fill(&lasting, -1.0);
        all_are(&copied, 1.0, 3.0);

        // As by a GPU, beside the step; a CPU device copies at once.
        copier.copy_stream = Some(CopyStream::of(Device::Cpu).unwrap());
        let copying = copier.start(sources(), Some(copied.memory)).unwrap();
        fill(&changing, -2.0);
        copying.copy_done().unwrap().block_current_stream().unwrap();
        all_are(&copying.finish().unwrap(), -1.0, -1.0);
    }

    #[test]
    fn cancelled_preparation_touches_no_page() {
        let touched = |cancelled| {
            let memory = prepare_memory(10 * PAGE, Device::Cpu, &AtomicBool::new(cancelled)).unwrap();
            memory.iter().filter(|byte| **byte > 0).count()
        };
        assert_eq!((touched(false), touched(true)), (10, 0));
    }

    fn all_are(copied: &CompleteCopy, changing: f32, lasting: f32) {
        let start = copied.parts[0].range.start;
        let file = &copied.memory[start..start + copied.files[0].bytes as usize];
        let read = safetensors::SafeTensors::deserialize(file).unwrap();
        let all = |name: &str, value: f32| {
            let bytes = read.tensor(name).unwrap().data().to_vec();
            assert_eq!(bytes.len(), 4000);
            assert!(bytes.chunks(4).all(|chunk| chunk == value.to_le_bytes()), "{name}");
        };
        all("changing", changing);
        all("lasting", lasting);
    }
}
