//! The copy of a checkpoint in the memory of the host, which is written while the training goes on.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use dtrain_torch_shim::copy::copy_out;
use memmap2::{Advice, MmapMut};
use tch::{Device, TchError, Tensor};

use super::error::CheckpointError;
use super::items::Source;
use super::layout::{Content, FileLayout, Held};

/// Bytes of a page, and of what a disk writes at once: no machine has smaller pages, and hardly a disk larger blocks.
pub(super) const PAGE: usize = 4096;

/// Memory for a copy. It begins at a page.
pub(super) struct Memory(MmapMut);

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
        Ok(Self(memory))
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
        let share = self.0.len().div_ceil(threads.max(1)).next_multiple_of(PAGE);
        std::thread::scope(|scope| {
            for share in self.0.chunks_mut(share) {
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
        &self.0
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
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
struct Move<'a> {
    from: From<'a>,
    to: &'a mut [u8],
}

enum From<'a> {
    Bytes(&'a [u8]),
    Tensor(Tensor),
}

impl Move<'_> {
    fn make(self) -> Result<(), TchError> {
        match self.from {
            From::Bytes(bytes) => self.to.copy_from_slice(bytes),
            From::Tensor(tensor) => copy_out(&tensor, self.to)?,
        }
        Ok(())
    }
}

/// Copies what `rank` writes to where `parts` says, by so many threads; these are idle anyway while the training waits for it.
///
/// # Errors
/// Where a tensor on a GPU cannot be read, or memory for its copy runs out.
pub(super) fn copy(
    layouts: &[FileLayout],
    files: &[(String, Vec<Source>)],
    (rank, parts): (usize, &[StagedPart]),
    memory: &mut [u8],
    threads: usize,
) -> Result<(), CheckpointError> {
    let moves = moves(layouts, files, (rank, parts), memory)?;
    // A GPU copies one thing after the other.
    let is_here = |part: &Move<'_>| match &part.from {
        From::Bytes(_) => true,
        From::Tensor(tensor) => tensor.device() == Device::Cpu,
    };
    let threads = if moves.iter().all(is_here) {
        threads.clamp(1, moves.len().max(1))
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
fn moves<'a>(
    layouts: &'a [FileLayout],
    files: &[(String, Vec<Source>)],
    (rank, parts): (usize, &[StagedPart]),
    memory: &'a mut [u8],
) -> Result<Vec<Move<'a>>, TchError> {
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
                    moves.push(Move { from, to });
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
                        moves.push(Move { from, to });
                        at = end;
                    }
                }
            }
        }
    }
    Ok(moves)
}
