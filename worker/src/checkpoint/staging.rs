//! The copy of a checkpoint in the memory of the host, which is written while the training goes on.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use dtrain_torch_shim::copy::copy_out;
use dtrain_torch_shim::cuda;
use dtrain_torch_shim::landing::{Beside, Landing, Pairs, Pinned};
use memmap2::{Advice, MmapMut};
use tch::{Device, TchError, Tensor};

use super::error::CheckpointError;
use super::layout::{Content, FileLayout, Held};
use super::source::Source;

/// Bytes of a page, and of what a disk writes at once: no machine has smaller pages, and hardly a disk larger blocks.
pub(super) const PAGE: usize = 4096;

/// Memory for a copy. It begins at a page.
pub(super) struct Memory {
    /// Before the memory: it ends first. None where no GPU copies into it.
    pinned: Option<Pinned>,
    bytes: MmapMut,
}

impl Memory {
    /// So much of it, all zero; the system gives it when it is touched.
    ///
    /// # Errors
    /// Where there is not so much.
    pub(super) fn of(bytes: usize) -> Result<Self, CheckpointError> {
        let memory = MmapMut::map_anon(bytes.max(1))
            .map_err(CheckpointError::io("make room in memory for", "a checkpoint"))?;
        // Large pages are copied to and written from with less work; without them it goes as well.
        let _ = memory.advise(Advice::HugePage);
        Ok(Self {
            pinned: None,
            bytes: memory,
        })
    }

    /// Pins it where a GPU copies into it, so that neither the host nor a thread of it has a part in that. Where the system has no more
    /// to pin, the copies are slower.
    pub(super) fn pin(&mut self, device: Device) {
        let Device::Cuda(gpu) = device else { return };
        if self.pinned.is_some() {
            return;
        }
        match cuda::set_device(gpu).and_then(|()| Pinned::over(&mut self.bytes)) {
            Ok(pinned) => self.pinned = Some(pinned),
            Err(error) => tracing::warn!("checkpoints are copied through memory that is not pinned: {error}"),
        }
    }

    /// What was kept, if it is enough, or as [`Memory::of`].
    ///
    /// # Errors
    /// As [`Memory::of`].
    pub(super) fn at_least(bytes: usize, kept: Option<Self>) -> Result<Self, CheckpointError> {
        match kept {
            Some(kept) if kept.len() >= bytes => Ok(kept),
            small => {
                // Not held while there is to be more.
                drop(small);
                Self::of(bytes)
            }
        }
    }

    /// Touches all of it by so many threads, which for new memory takes longer than a copy. Each begins with `begin`.
    pub(super) fn touch(&mut self, threads: usize, begin: fn()) {
        let share = self.bytes.len().div_ceil(threads.max(1)).next_multiple_of(PAGE);
        std::thread::scope(|scope| {
            for share in self.bytes.chunks_mut(share) {
                let touch = move || {
                    begin();
                    share.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
                };
                // What no thread touches is touched by the copy.
                let _ = std::thread::Builder::new().spawn_scoped(scope, touch);
            }
        });
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A contiguous range of a file that this rank writes, and where the copy of it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StagedPart {
    /// The number of the file.
    pub(super) file: usize,
    /// Where the range begins in it.
    pub(super) offset: u64,
    /// Where it begins in the memory: as far behind the beginning of a page as `offset` is.
    pub(super) start: usize,
    /// Its bytes.
    pub(super) bytes: usize,
}

/// What `rank` has to write of the files, and how much memory the copy of that takes. Ranges that follow each other in a file do so in
/// memory too.
pub(super) fn parts(files: &[FileLayout], rank: usize) -> (Vec<StagedPart>, usize) {
    let mut end = 0usize;
    let mut parts: Vec<StagedPart> = Vec::new();
    for (file, layout) in files.iter().enumerate() {
        for (offset, bytes) in layout.parts_of(rank) {
            let follows = |last: &StagedPart| last.file == file && last.offset + last.bytes as u64 == offset;
            let start = if parts.last().is_some_and(follows) {
                end
            } else {
                end.next_multiple_of(PAGE) + (offset % PAGE as u64) as usize
            };
            let bytes = bytes as usize;
            parts.push(StagedPart {
                file,
                offset,
                start,
                bytes,
            });
            end = start + bytes;
        }
    }
    (parts, end)
}

/// Bytes that go from one place to another.
struct Move<'l, 'm> {
    from: From<'l>,
    to: &'m mut [u8],
    /// As [`Source::lasts`].
    lasts: bool,
}

enum From<'a> {
    Bytes(&'a [u8]),
    Tensor(Tensor),
}

impl Move<'_, '_> {
    fn make(self) -> Result<(), TchError> {
        match self.from {
            From::Bytes(bytes) => self.to.copy_from_slice(bytes),
            From::Tensor(tensor) => copy_out(&tensor, self.to)?,
        }
        Ok(())
    }
}

/// What a rank copies of a checkpoint.
pub(super) struct Copying {
    pub(super) rank: usize,
    pub(super) layouts: Arc<[FileLayout]>,
    /// The files with their tensors, in the order of the layouts.
    pub(super) files: Vec<(String, Vec<Source>)>,
    /// How many threads copy.
    pub(super) threads: usize,
}

impl Copying {
    /// Has the device copy all of it beside what it computes. The calling thread goes on: what may change before the next update is
    /// copied before the device computes anything that it is given from now on.
    ///
    /// # Errors
    /// Where memory runs out; the memory is as good as new then.
    pub(super) fn start(
        &self,
        parts: &[StagedPart],
        beside: &mut Beside,
        memory: &mut Option<Box<Memory>>,
    ) -> Result<Landing<Memory>, CheckpointError> {
        Landing::start(beside, memory, |bytes| {
            let [mut changing, mut lasting] = [Pairs::new(), Pairs::new()];
            for part in moves(&self.layouts, &self.files, (self.rank, parts), bytes)? {
                match part.from {
                    From::Bytes(bytes) => part.to.copy_from_slice(bytes),
                    From::Tensor(tensor) if part.lasts => lasting.push((tensor, part.to)),
                    From::Tensor(tensor) => changing.push((tensor, part.to)),
                }
            }
            Ok([changing, lasting])
        })
    }
}

/// Copies what the rank writes to where `parts` says: of tensors those that last until the next update, or the others.
///
/// # Errors
/// Where a tensor on a GPU cannot be read, or memory for its copy runs out.
pub(super) fn copy(
    copying: &Copying,
    parts: &[StagedPart],
    memory: &mut [u8],
    lasting: bool,
) -> Result<(), CheckpointError> {
    let Copying {
        rank,
        layouts,
        files,
        threads,
    } = copying;
    let mut moves = moves(layouts, files, (*rank, parts), memory)?;
    moves.retain(|part| part.lasts == lasting);
    // A GPU copies one thing after the other.
    let is_here = |part: &Move<'_, '_>| match &part.from {
        From::Bytes(_) => true,
        From::Tensor(tensor) => tensor.device() == Device::Cpu,
    };
    let threads = if moves.iter().all(is_here) {
        (*threads).clamp(1, moves.len().max(1))
    } else {
        1
    };
    let moves = Mutex::new(moves.into_iter());
    let some = || loop {
        let next = moves.lock().unwrap_or_else(PoisonError::into_inner).next();
        match next {
            Some(next) => next.make()?,
            None => return Ok(()),
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, some))
            .collect();
        // Where the system refuses a thread, this one does it all.
        let mut outcome: Result<(), TchError> = some();
        for other in others.into_iter().flatten() {
            let ended = || Err(TchError::Convert("a thread that copied has ended".to_owned()));
            outcome = outcome.and(other.join().unwrap_or_else(|_| ended()));
        }
        outcome
    })?;
    Ok(())
}

/// Larger ones are divided among threads.
const MOVE_BYTES: u64 = 16 << 20;

/// All that [`copy`] has to copy, in the order of the memory.
fn moves<'l, 'm>(
    layouts: &'l [FileLayout],
    files: &[(String, Vec<Source>)],
    (rank, parts): (usize, &[StagedPart]),
    memory: &'m mut [u8],
) -> Result<Vec<Move<'l, 'm>>, TchError> {
    let short = || TchError::Convert("the memory for a checkpoint is too short".to_owned());
    let (mut rest, mut begin) = (memory, 0);
    let mut take = |start: usize, bytes: u64| {
        let (_, from) = std::mem::take(&mut rest).split_at_mut_checked(start.checked_sub(begin)?)?;
        let (own, behind) = from.split_at_mut_checked(bytes as usize)?;
        (rest, begin) = (behind, start + own.len());
        Some(own)
    };
    let mut moves = Vec::new();
    let mut parts = parts.iter().peekable();
    for (number, (layout, (_, sources))) in layouts.iter().zip(files).enumerate() {
        for piece in layout.pieces(rank) {
            // Its first byte lies in the part, and what follows in the next ones follows there.
            let ends_before =
                |part: &&StagedPart| part.file < number || part.offset + part.bytes as u64 <= piece.offset;
            while parts.next_if(ends_before).is_some() {}
            let part = parts.peek().ok_or_else(short)?;
            let mut start = part.start + (piece.offset - part.offset) as usize;
            match &piece.content {
                Content::Header => {
                    let to = take(start, piece.bytes).ok_or_else(short)?;
                    let from = From::Bytes(&layout.header);
                    let lasts = false;
                    moves.push(Move { from, to, lasts });
                }
                Content::Elements(index, range) => {
                    let source = &sources[*index];
                    let size = piece.bytes / (range.end - range.start);
                    let most = match source.item.held {
                        Held::All { divisible: false } => range.end - range.start,
                        _ => MOVE_BYTES / size,
                    };
                    let mut at = range.start;
                    while at < range.end {
                        let end = range.end.min(at + most);
                        let to = take(start, (end - at) * size).ok_or_else(short)?;
                        start += to.len();
                        let from = From::Tensor(source.elements(&(at..end))?);
                        let lasts = source.lasts;
                        moves.push(Move { from, to, lasts });
                        at = end;
                    }
                }
            }
        }
    }
    Ok(moves)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Kind;

    use super::*;
    use crate::checkpoint::layout::{Item, layout};

    #[test]
    fn what_may_change_is_copied_at_once_and_what_lasts_later() {
        let tensor = |value| Tensor::full([1000], value, (Kind::Float, Device::Cpu));
        let (mut changes, mut lasts) = (tensor(1.0), tensor(2.0));
        let source =
            |name: &str, tensor: &Tensor| Source::whole(name.into(), tensor.shallow_clone()).unwrap();
        let sources = vec![source("changes", &changes), source("lasts", &lasts).lasting()];
        let items: Vec<Item> = sources.iter().map(|source| source.item.clone()).collect();
        let layouts: Arc<[FileLayout]> = layout(&[("file".into(), items)], 1).unwrap().into();
        let (parts, bytes) = parts(&layouts, 0);
        let mut memory = Memory::of(bytes).unwrap();
        let copying = Copying {
            rank: 0,
            layouts: Arc::clone(&layouts),
            files: vec![("file".into(), sources)],
            threads: 2,
        };

        copy(&copying, &parts, &mut memory, false).unwrap();
        // The step that follows changes the one, and computes the other's next value from what is still there.
        let _ = changes.fill_(-1.0);
        let _ = lasts.fill_(3.0);
        copy(&copying, &parts, &mut memory, true).unwrap();
        let _ = lasts.fill_(-1.0);
        all_are(&memory[parts[0].start..][..layouts[0].bytes as usize], 1.0, 3.0);

        // Beside the step, as by a GPU, which here copies at once.
        let mut memory = Some(Box::new(Memory::of(bytes).unwrap()));
        let landing = copying
            .start(&parts, &mut Beside::of(Device::Cpu).unwrap(), &mut memory)
            .unwrap();
        let _ = changes.fill_(-2.0);
        landing.landed().hold().unwrap();
        let memory = landing.wait().unwrap();
        all_are(&memory[parts[0].start..][..layouts[0].bytes as usize], -1.0, -1.0);
    }

    fn all_are(file: &[u8], changes: f32, lasts: f32) {
        let read = safetensors::SafeTensors::deserialize(file).unwrap();
        let all = |name: &str, value: f32| {
            let bytes = read.tensor(name).unwrap().data().to_vec();
            assert_eq!(bytes.len(), 4000);
            assert!(
                bytes.chunks(4).all(|chunk| chunk == value.to_le_bytes()),
                "{name}"
            );
        };
        all("changes", changes);
        all("lasts", lasts);
    }
}
