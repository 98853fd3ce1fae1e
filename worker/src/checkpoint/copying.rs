//! Copies this rank's part of a checkpoint into host memory.
//!
//! Tensors that the next step may change are copied at once. The others are copied during that step: by a
//! separate stream of a GPU, or by the thread that writes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dtrain_torch_shim::copy::copy_out;
use dtrain_torch_shim::host_copy::{CopyDone, CopyStream, HostCopy, Pairs};
use tch::{Device, TchError};

use super::background::{Work, stand_back};
use super::error::CheckpointError;
use super::items::{self, Source};
use super::layout::{Content, FileLayout, Held, layout};
use super::memory::{Memory, PAGE};
use crate::collectives::Ranks;
use crate::out_of_memory::retry_on_oom;
use crate::state::Model;

/// A part of a file that this rank writes, and the range of its copy in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StagedPart {
    file: usize,
    /// Offset of the part in the file.
    pub(super) offset: u64,
    place: Range<usize>,
}

/// Assigns memory to ranges, which come in the order of the files. Each copy has the page offset that it has
/// in its file, and ranges that are adjacent in a file are adjacent in memory.
#[derive(Default)]
struct Places {
    end: usize,
    /// File and offset after the last range.
    behind: (usize, u64),
}

impl Places {
    fn next(&mut self, file: usize, offset: u64, bytes: u64) -> Range<usize> {
        if self.behind != (file, offset) {
            self.end = self.end.next_multiple_of(PAGE) + (offset % PAGE as u64) as usize;
        }
        let begin = self.end;
        self.end += bytes as usize;
        self.behind = (file, offset + bytes);
        begin..self.end
    }
}

/// Returns the parts of the files that `rank` writes, and the bytes of memory for their copy.
fn parts(files: &[FileLayout], rank: usize) -> (Vec<StagedPart>, usize) {
    let mut places = Places::default();
    let mut parts = Vec::new();
    for (file, layout) in files.iter().enumerate() {
        parts.extend(layout.parts_of(rank).map(|part| StagedPart {
            file,
            offset: part.offset,
            place: places.next(file, part.offset, part.bytes),
        }));
    }
    (parts, places.end)
}

pub(super) struct Copier {
    ranks: Ranks,
    device: Device,
    threads: usize,
    beside: Option<CopyStream>,
    /// Prepares memory for the first copy.
    preparing: Option<Work<Memory>>,
    /// Stops the preparation.
    is_over: Arc<AtomicBool>,
    memory: Option<Memory>,
}

impl Copier {
    pub(super) fn new(ranks: &Ranks, device: Device, threads: usize) -> Result<Self, CheckpointError> {
        Ok(Self {
            ranks: ranks.clone(),
            device,
            threads,
            beside: device.is_cuda().then(|| CopyStream::of(device)).transpose()?,
            preparing: None,
            is_over: Arc::default(),
            memory: None,
        })
    }

    /// Prepares memory for the first copy beside the training. Every rank calls this between two steps.
    pub(super) fn prepare(&mut self, model: &Model) -> Result<(), CheckpointError> {
        let sources = items::files(model, &self.ranks, self.device)?;
        let (_, bytes) = parts(&layout(&sources, self.ranks.size())?, self.ranks.rank());
        let (device, is_over) = (self.device, Arc::clone(&self.is_over));
        self.preparing = Some(Work::begin(move || {
            stand_back();
            ready(bytes, device, &is_over)
        }));
        Ok(())
    }

    pub(super) fn keep(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Begins a copy. Every rank calls this between the same steps. No update may begin until the copy is
    /// complete.
    pub(super) fn begin(&mut self, model: &Model) -> Result<Copying, CheckpointError> {
        let kept = match self.preparing.take() {
            // Memory in preparation is ready sooner than new memory. After a failure, new memory is taken.
            Some(preparing) => preparing.end().ok(),
            None => self.memory.take(),
        };
        let sources = items::files(model, &self.ranks, self.device)?;
        self.start(sources, kept)
    }

    fn start(
        &mut self,
        sources: Vec<(&'static str, Vec<Source>)>,
        kept: Option<Memory>,
    ) -> Result<Copying, CheckpointError> {
        let files: Arc<[FileLayout]> = layout(&sources, self.ranks.size())?.into();
        let rank = self.ranks.rank();
        let (parts, bytes) = parts(&files, rank);
        // Drops memory that is too small before larger memory is allocated.
        let kept = kept.filter(|kept| kept.len() >= bytes);
        let mut memory = kept.map_or_else(|| Memory::of(bytes), Ok)?;
        let rest = if let Some(beside) = &mut self.beside {
            memory.pin(self.device);
            let mut memory = Some(Box::new(memory));
            Rest::Device(retry_on_oom(self.device, || {
                HostCopy::start(beside, &mut memory, |memory| {
                    pairs(&files, &sources, rank, memory).map_err(CheckpointError::from)
                })
            })?)
        } else {
            retry_on_oom(self.device, || {
                let [changing, _] = pairs(&files, &sources, rank, &mut memory)?;
                copy(changing, self.threads)
            })?;
            Rest::Host { memory, sources, threads: self.threads }
        };
        Ok(Copying { files, parts, rank, rest })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Allocates `bytes`, touches every page and pins them for a GPU; stops early if `is_over`.
fn ready(bytes: usize, device: Device, is_over: &AtomicBool) -> Result<Memory, CheckpointError> {
    let mut memory = Memory::of(bytes)?;
    let mut pages = memory.iter_mut().step_by(PAGE);
    // The first access to new memory takes longer than a copy.
    while let (false, Some(page)) = (is_over.load(Ordering::Relaxed), pages.next()) {
        *page = 1;
    }
    if !is_over.load(Ordering::Relaxed) {
        memory.pin(device);
    }
    Ok(memory)
}

/// A copy that has begun. Tensors that the next step may change are copied.
pub(super) struct Copying {
    pub(super) files: Arc<[FileLayout]>,
    parts: Vec<StagedPart>,
    rank: usize,
    rest: Rest,
}

/// The copy of tensors that last until the next update.
enum Rest {
    /// The thread that calls [`Copying::end`] copies.
    Host { memory: Memory, sources: Vec<(&'static str, Vec<Source>)>, threads: usize },
    /// The device copies.
    Device(HostCopy<Memory>),
}

impl Copying {
    /// Returns a handle to wait for the device's copies; None if the host copies.
    pub(super) fn landed(&self) -> Option<CopyDone> {
        let Rest::Device(landing) = &self.rest else { return None };
        Some(landing.done())
    }

    /// Copies the rest, or waits for the device.
    pub(super) fn end(self) -> Result<Copied, CheckpointError> {
        let memory = match self.rest {
            Rest::Host { mut memory, sources, threads } => {
                let [_, lasting] = pairs(&self.files, &sources, self.rank, &mut memory)?;
                copy(lasting, threads)?;
                memory
            }
            Rest::Device(landing) => *landing.wait()?,
        };
        Ok(Copied { files: self.files, parts: self.parts, memory })
    }
}

/// The complete copy of this rank's part.
pub(super) struct Copied {
    files: Arc<[FileLayout]>,
    pub(super) parts: Vec<StagedPart>,
    /// The memory of the copy, reusable for the next one.
    pub(super) memory: Memory,
}

impl Copied {
    pub(super) fn bytes_of(&self, part: &StagedPart) -> &[u8] {
        &self.memory[part.place.clone()]
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
    let some = || -> Result<(), TchError> {
        loop {
            let next = pairs.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((tensor, to)) = next else { return Ok(()) };
            copy_out(&tensor, to)?;
        }
    };
    std::thread::scope(|scope| {
        // If the system refuses a thread, the other threads copy its share.
        let others: Vec<_> =
            (1..threads).flat_map(|_| std::thread::Builder::new().spawn_scoped(scope, some)).collect();
        let mut outcome = some();
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
fn pairs<'m>(
    files: &[FileLayout],
    sources: &[(&str, Vec<Source>)],
    rank: usize,
    mut memory: &'m mut [u8],
) -> Result<[Pairs<'m>; 2], TchError> {
    let (mut places, mut taken) = (Places::default(), 0);
    let mut take = |place: Range<usize>| {
        memory.split_off_mut(..place.start - taken)?;
        taken = place.end;
        memory.split_off_mut(..place.len())
    };
    let [mut changing, mut lasting] = [Pairs::new(), Pairs::new()];
    for (file, (layout, (_, sources))) in files.iter().zip(sources).enumerate() {
        for piece in layout.pieces(rank) {
            let place = places.next(file, piece.offset, piece.bytes);
            let short = || TchError::Convert("the memory for a checkpoint is too short".to_owned());
            let mut to = take(place).ok_or_else(short)?;
            let Content::Elements(index, range) = &piece.content else {
                to.copy_from_slice(&layout.header);
                continue;
            };
            let source = &sources[*index];
            let width = piece.bytes / (range.end - range.start);
            let most = match source.item.held {
                Held::All { divisible: false } => range.end - range.start,
                _ => PAIR_BYTES / width,
            };
            let pairs = if source.lasts { &mut lasting } else { &mut changing };
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + most);
                let own = to.split_off_mut(..((end - at) * width) as usize);
                pairs.push((source.elements(&(at..end))?, own.ok_or_else(short)?));
                at = end;
            }
        }
    }
    Ok([changing, lasting])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Kind, Tensor};

    use super::*;

    #[test]
    fn what_may_change_is_copied_at_once_and_what_lasts_later() {
        let tensor = |value| Tensor::full([1000], value, (Kind::Float, Device::Cpu));
        let (mut changes, mut lasts) = (tensor(1.0), tensor(2.0));
        let source =
            |name: &str, tensor: &Tensor| Source::whole(name.into(), tensor.shallow_clone()).unwrap();
        let mut sources = [source("changes", &changes), source("lasts", &lasts)];
        sources[1].lasts = true;
        let sources = || vec![("file", sources.iter().map(copy_of).collect())];

        let mut copier = Copier::new(&Ranks::single(), Device::Cpu, 2).unwrap();
        let copying = copier.start(sources(), None).unwrap();
        // The following step changes one tensor; the other lasts until it is copied.
        let _ = changes.fill_(-1.0);
        let _ = lasts.fill_(3.0);
        let copied = copying.end().unwrap();
        let _ = lasts.fill_(-1.0);
        all_are(&copied, 1.0, 3.0);

        // As by a GPU, beside the step; a CPU device copies at once.
        copier.beside = Some(CopyStream::of(Device::Cpu).unwrap());
        let copying = copier.start(sources(), Some(copied.memory)).unwrap();
        let _ = changes.fill_(-2.0);
        copying.landed().unwrap().block_current_stream().unwrap();
        all_are(&copying.end().unwrap(), -1.0, -1.0);
    }

    fn copy_of(source: &Source) -> Source {
        let whole = source.elements(&(0..1000)).unwrap();
        let copy = Source::whole(source.item.name.clone(), whole).unwrap();
        Source { lasts: source.lasts, ..copy }
    }

    #[test]
    fn memory_that_nobody_waits_for_is_not_made_ready() {
        let touched = |is_over| {
            let memory = ready(10 * PAGE, Device::Cpu, &AtomicBool::new(is_over)).unwrap();
            memory.iter().filter(|byte| **byte > 0).count()
        };
        assert_eq!((touched(false), touched(true)), (10, 0));
    }

    fn all_are(copied: &Copied, changes: f32, lasts: f32) {
        let start = copied.parts[0].place.start;
        let file = &copied.memory[start..start + copied.files[0].bytes as usize];
        let read = safetensors::SafeTensors::deserialize(file).unwrap();
        let all = |name: &str, value: f32| {
            let bytes = read.tensor(name).unwrap().data().to_vec();
            assert_eq!(bytes.len(), 4000);
            assert!(bytes.chunks(4).all(|chunk| chunk == value.to_le_bytes()), "{name}");
        };
        all("changes", changes);
        all("lasts", lasts);
    }
}
