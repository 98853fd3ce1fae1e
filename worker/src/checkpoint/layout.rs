//! Divides the bytes of a checkpoint's files among ranks. Pure arithmetic with the same result on all ranks.
//!
//! Bytes that every rank holds are divided equally; bytes of a single rank are written by that rank.

use std::borrow::Borrow;
use std::ops::Range;

use dtrain_common::manifest::{self, CHECKSUM_BYTES, Checksum, FileEntry};
use dtrain_common::safetensors_file::{Dtype, StoredTensor, header, widest_first};
use serde::{Deserialize, Serialize};

use super::error::CheckpointError;

/// The BLAKE3 checksum of a part.
pub(super) type Digest = [u8; CHECKSUM_BYTES];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<i64>,
    pub(super) holders: Holders,
}

/// The ranks that hold the values of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holders {
    /// Every rank. If `divisible`, memory and file have the same order, and several ranks may write ranges.
    All { divisible: bool },
    /// The end of each range and its rank, in rising order; the last end is the number of elements.
    Parts(Vec<(u64, usize)>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileLayout {
    pub(super) name: String,
    pub(super) header: Vec<u8>,
    pub(super) bytes: u64,
    /// The parts of all ranks, end to end.
    pub(super) parts: Vec<Part>,
    /// The bytes that only one rank holds.
    pub(super) shards: Vec<Part>,
    /// The pieces of all ranks, end to end.
    pieces: Vec<Piece>,
}

/// Bytes of a file that one rank writes: at most [`PART_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) rank: usize,
}

/// Bytes of a file that are contiguous in one rank's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) content: Content,
    rank: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Header,
    /// Elements of the item with this index.
    Elements(usize, Range<u64>),
}

impl Item {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }

    pub(super) fn width(&self) -> u64 {
        (self.dtype.bitsize() / 8) as u64
    }
}

impl FileLayout {
    /// Returns the pieces of `rank`, in the order of the file.
    pub(super) fn pieces(&self, rank: usize) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.rank == rank)
    }

    /// Returns the parts of `rank`, in the order of the file.
    pub(super) fn parts_of(&self, rank: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.rank == rank)
    }

    /// Returns the manifest's entry of the file. Takes the checksum of each part from `digests`.
    pub(super) fn entry(&self, digests: &mut impl Iterator<Item = Digest>) -> FileEntry {
        let part = |(part, digest): (&Part, Digest)| manifest::Part {
            bytes: part.bytes,
            checksum: Checksum::of_bytes(&digest),
        };
        FileEntry {
            name: self.name.clone(),
            bytes: self.bytes,
            parts: self.parts.iter().zip(digests).map(part).collect(),
        }
    }

    fn push(&mut self, bytes: u64, content: Content, rank: usize) {
        if bytes == 0 {
            return;
        }
        let offset = self.bytes;
        self.bytes += bytes;
        self.pieces.push(Piece { offset, bytes, content, rank });
        match self.parts.last_mut() {
            Some(part) if part.rank == rank => part.bytes += bytes,
            _ => self.parts.push(Part { offset, bytes, rank }),
        }
    }
}

/// A file's header, and its items with their indices, in the order of the file.
type Described<'i> = (Vec<u8>, Vec<(usize, &'i Item)>);

/// Divides the files, each a name and its items, among `writers` (at least one rank). Other ranks only provide
/// what they alone hold.
pub(super) fn layout<I: Borrow<Item>>(
    files: &[(&str, Vec<I>)],
    writers: Range<usize>,
) -> Result<Vec<FileLayout>, CheckpointError> {
    let described = files.iter().map(|(_, items)| describe(items));
    let described: Vec<Described<'_>> = described.collect::<Result<_, CheckpointError>>()?;
    let mut shares = Shares::new(&described, writers);
    let file =
        |((name, _), (header, items)): (&(&str, _), Described<'_>)| divide(name, header, &items, &mut shares);
    Ok(std::iter::zip(files, described).map(file).collect())
}

fn describe<I: Borrow<Item>>(items: &[I]) -> Result<Described<'_>, CheckpointError> {
    let mut items: Vec<(usize, &Item)> = items.iter().map(I::borrow).enumerate().collect();
    items.sort_by_key(|(_, item)| widest_first(item.dtype));
    let stored = |(_, item): &(usize, &Item)| {
        let shape = item.shape.iter().map(|&size| size as usize).collect();
        StoredTensor::new(&item.name, item.dtype, shape)
            .ok_or_else(|| CheckpointError::Tensors(format!("the sizes of {} overflow", item.name)))
    };
    let stored: Vec<StoredTensor> = items.iter().map(stored).collect::<Result<_, _>>()?;
    let header = header(&stored, None).map_err(CheckpointError::Tensors)?;
    Ok((header, items))
}

fn divide(name: &str, header: Vec<u8>, items: &[(usize, &Item)], shares: &mut Shares) -> FileLayout {
    let bytes = header.len() as u64;
    let mut file = FileLayout {
        name: name.to_owned(),
        header,
        bytes: 0,
        parts: Vec::new(),
        shards: Vec::new(),
        pieces: Vec::new(),
    };
    file.push(bytes, Content::Header, shares.assign_whole(bytes));
    for &(index, item) in items {
        let (elements, width) = (item.elements(), item.width());
        let (mut done, begin) = (0, file.pieces.len());
        let mut push = |end: u64, rank: usize| {
            file.push((end - done) * width, Content::Elements(index, done..end), rank);
            done = end;
        };
        match &item.holders {
            Holders::Parts(ends) => {
                ends.iter().for_each(|&(end, rank)| push(end, rank));
                let part = |&Piece { offset, bytes, rank, .. }: &Piece| Part { offset, bytes, rank };
                file.shards.extend(file.pieces[begin..].iter().map(part));
            }
            Holders::All { divisible: false } => push(elements, shares.assign_whole(elements * width)),
            Holders::All { divisible: true } => {
                let mut end = 0;
                while end < elements {
                    let (some, rank) = shares.assign_next(elements - end, width);
                    end += some;
                    push(end, rank);
                }
            }
        }
    }
    file.parts = file.parts.into_iter().flat_map(Part::split).collect();
    file
}

/// Larger parts are divided: each part has a checksum, and several are computed at once.
pub(super) const PART_BYTES: u64 = 256 << 20;

impl Part {
    /// Divides the part into the fewest parts of equal size.
    fn split(self) -> impl Iterator<Item = Self> {
        let Self { offset, bytes, rank } = self;
        let count = bytes.div_ceil(PART_BYTES).max(1);
        let at = move |number: u64| (u128::from(bytes) * u128::from(number) / u128::from(count)) as u64;
        (0..count).map(move |number| Self {
            offset: offset + at(number),
            bytes: at(number + 1) - at(number),
            rank,
        })
    }
}

/// Divides bytes that every rank holds into equal shares, in the order of the files.
struct Shares {
    writers: Range<usize>,
    share: u64,
    assigned: u64,
}

impl Shares {
    fn new(files: &[Described<'_>], writers: Range<usize>) -> Self {
        let headers = files.iter().map(|(header, _)| header.len() as u64);
        let items = files.iter().flat_map(|(_, items)| items);
        let held_by_all = items.filter(|(_, item)| matches!(item.holders, Holders::All { .. }));
        let all = headers.chain(held_by_all.map(|(_, item)| item.elements() * item.width()));
        let share = all.sum::<u64>().div_ceil(writers.len() as u64).max(1);
        Self { writers, share, assigned: 0 }
    }

    /// Returns the index of the writer whose share contains this byte.
    fn of(&self, byte: u64) -> usize {
        ((byte / self.share) as usize).min(self.writers.len() - 1)
    }

    /// Returns the rank for indivisible bytes: the rank whose share contains their middle.
    fn assign_whole(&mut self, bytes: u64) -> usize {
        let writer = self.of(self.assigned + bytes / 2);
        self.assigned += bytes;
        self.writers.start + writer
    }

    /// Returns how many of `elements` (at least 1) of `width` bytes go to the next rank, and that rank.
    fn assign_next(&mut self, elements: u64, width: u64) -> (u64, usize) {
        let writer = self.of(self.assigned);
        let room = (writer as u64 + 1) * self.share - self.assigned;
        let is_last = writer + 1 == self.writers.len();
        let some = if is_last { elements } else { elements.min(room.div_ceil(width)) };
        self.assigned += some * width;
        (some, self.writers.start + writer)
    }
}

#[cfg(test)]
mod tests;
