//! Which bytes of a checkpoint's files are whose to write. Pure arithmetic, in which all ranks come to the same result.
//!
//! What every rank holds is divided so that all of them write equally much; what only one rank holds, that one writes.

use std::ops::Range;

use safetensors::Dtype;

use crate::models::{header, widest_first};

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Its name in the file.
    pub(super) name: String,
    /// Its type there.
    pub(super) dtype: Dtype,
    /// Its shape.
    pub(super) shape: Vec<i64>,
    /// Who has it.
    pub(super) held: Held,
}

/// Who has the values of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// Every rank; several may write parts of it, if it lies in memory as in the file.
    All {
        /// Whether it does.
        divisible: bool,
    },
    /// These ranks its elements up to these ends, in rising order, the last of which is their number.
    Parts(Vec<(u64, usize)>),
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileLayout {
    /// Its name.
    pub(super) name: String,
    /// What it begins with.
    pub(super) header: Vec<u8>,
    /// Its size.
    pub(super) bytes: u64,
    /// Who writes what, end to end: bytes and rank, at most [`PART_BYTES`].
    pub(super) parts: Vec<(u64, usize)>,
    /// The pieces of all ranks, end to end.
    pieces: Vec<Piece>,
}

/// Bytes of a file that lie together in one rank's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where they begin in the file.
    pub(super) offset: u64,
    /// How many they are.
    pub(super) bytes: u64,
    /// What they are.
    pub(super) content: Content,
    rank: usize,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The header.
    Header,
    /// Elements of the item with this number.
    Elements(usize, Range<u64>),
}

impl Item {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }

    fn element_bytes(&self) -> u64 {
        (self.dtype.bitsize() / 8) as u64
    }
}

impl FileLayout {
    /// Its name and its size.
    pub(super) fn named(&self) -> (String, u64) {
        (self.name.clone(), self.bytes)
    }

    /// What `rank` writes, in the order of the file.
    pub(super) fn pieces(&self, rank: usize) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.rank == rank)
    }

    /// The parts of `rank`: where each begins, and its bytes.
    pub(super) fn parts_of(&self, rank: usize) -> impl Iterator<Item = (u64, u64)> {
        let mut offset = 0;
        self.parts
            .iter()
            .map(move |&(bytes, owner)| {
                let begin = offset;
                offset += bytes;
                (begin, bytes, owner)
            })
            .filter(move |(_, _, owner)| *owner == rank)
            .map(|(begin, bytes, _)| (begin, bytes))
    }

    fn push(&mut self, bytes: u64, content: Content, rank: usize) {
        if bytes == 0 {
            return;
        }
        self.pieces.push(Piece {
            offset: self.bytes,
            bytes,
            content,
            rank,
        });
        self.bytes += bytes;
        match self.parts.last_mut() {
            Some((part, owner)) if *owner == rank => *part += bytes,
            _ => self.parts.push((bytes, rank)),
        }
    }
}

/// Divides the files, each a name and its items, among `ranks` (at least 1).
///
/// # Errors
/// In words, for tensors that the format cannot name.
pub(super) fn layout(files: &[(String, Vec<Item>)], ranks: usize) -> Result<Vec<FileLayout>, String> {
    let mut orders = Vec::with_capacity(files.len());
    let mut headers = Vec::with_capacity(files.len());
    for (_, items) in files {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&index| widest_first(items[index].dtype));
        let described = order.iter().map(|&index| {
            (
                items[index].name.as_str(),
                items[index].dtype,
                items[index].shape.clone(),
            )
        });
        headers.push(header(described)?);
        orders.push(order);
    }

    let mut shares = Shares::new(files, &headers, ranks);
    let mut layouts = Vec::with_capacity(files.len());
    for (((name, items), order), header) in files.iter().zip(orders).zip(headers) {
        let mut file = FileLayout {
            name: name.clone(),
            header: Vec::new(),
            bytes: 0,
            parts: Vec::new(),
            pieces: Vec::new(),
        };
        let rank = shares.whole(header.len() as u64);
        file.push(header.len() as u64, Content::Header, rank);
        file.header = header;
        for index in order {
            let item = &items[index];
            let (elements, size) = (item.elements(), item.element_bytes());
            let mut begin = 0;
            let mut push = |file: &mut FileLayout, end: u64, rank: usize| {
                file.push((end - begin) * size, Content::Elements(index, begin..end), rank);
                begin = end;
            };
            match &item.held {
                Held::Parts(ends) => ends.iter().for_each(|&(end, rank)| push(&mut file, end, rank)),
                Held::All { divisible: false } => {
                    let rank = shares.whole(elements * size);
                    push(&mut file, elements, rank);
                }
                Held::All { divisible: true } => {
                    let mut done = 0;
                    while done < elements {
                        let (some, rank) = shares.some(elements - done, size);
                        done += some;
                        push(&mut file, done, rank);
                    }
                }
            }
        }
        file.parts = file.parts.into_iter().flat_map(pieces_of).collect();
        layouts.push(file);
    }
    Ok(layouts)
}

/// What is larger is divided: each part has a checksum of its own, and several are computed at once.
pub(super) const PART_BYTES: u64 = 256 << 20;

/// A rank's part in as few equal ones as there may be.
fn pieces_of((bytes, rank): (u64, usize)) -> impl Iterator<Item = (u64, usize)> {
    let count = bytes.div_ceil(PART_BYTES).max(1);
    let at = move |number: u64| (u128::from(bytes) * u128::from(number) / u128::from(count)) as u64;
    (0..count).map(move |number| (at(number + 1) - at(number), rank))
}

/// What each rank may still write before the next one's turn comes, so that all write equally much.
struct Shares {
    left: Vec<u64>,
    rank: usize,
}

impl Shares {
    fn new(files: &[(String, Vec<Item>)], headers: &[Vec<u8>], ranks: usize) -> Self {
        let mut fixed = vec![0; ranks];
        let mut total: u64 = headers.iter().map(|header| header.len() as u64).sum();
        for item in files.iter().flat_map(|(_, items)| items) {
            total += item.elements() * item.element_bytes();
            if let Held::Parts(ends) = &item.held {
                let mut begin = 0;
                for &(end, rank) in ends {
                    fixed[rank] += (end - begin) * item.element_bytes();
                    begin = end;
                }
            }
        }
        let share = total.div_ceil(ranks as u64);
        Self {
            left: fixed.iter().map(|fixed| share.saturating_sub(*fixed)).collect(),
            rank: 0,
        }
    }

    /// The rank for bytes that cannot be divided: the one whose turn it is, unless it has less than half of the room for them.
    fn whole(&mut self, bytes: u64) -> usize {
        if self.left[self.rank] < bytes / 2 {
            self.next();
        }
        let left = &mut self.left[self.rank];
        *left = left.saturating_sub(bytes);
        self.rank
    }

    /// How many of `elements` (at least 1), of `size` bytes each, are for which rank.
    fn some(&mut self, elements: u64, size: u64) -> (u64, usize) {
        while self.left[self.rank] < size && self.next() {}
        let last = self.rank + 1 == self.left.len();
        let left = &mut self.left[self.rank];
        let some = if last {
            elements
        } else {
            elements.min(*left / size)
        };
        *left = left.saturating_sub(some * size);
        (some, self.rank)
    }

    /// The next rank's turn; false where there is none.
    fn next(&mut self) -> bool {
        let more = self.rank + 1 < self.left.len();
        self.rank += usize::from(more);
        more
    }
}

#[cfg(test)]
mod tests;
