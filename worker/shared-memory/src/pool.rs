//! Blocks of bytes that the processes of a machine write once, together, and all read.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

use crate::error::MemoryError;
use crate::segment::{Segment, Ticket};

/// Bytes of a number in the memory; blocks begin at multiples of it.
const WORD: u64 = size_of::<u64>() as u64;
/// The state of a place whose block is being written. If its process dies, the place stays unused.
const WRITING: u64 = 1;

/// Memory for blocks, with a place for each. A place is empty, being written, or has a block that never changes.
///
/// The memory begins with the number of bytes in use and the places: 0, `WRITING`, or where the block is. A block begins with
/// its length.
#[derive(Debug)]
pub struct Pool {
    segment: Segment,
    places: u64,
}

/// The numbers by which other processes open a pool.
pub type PoolTicket = [i64; Ticket::WORDS + 1];

impl Pool {
    /// Creates a pool of this number of places in at most `bytes` bytes, which are taken as they are needed. Other processes can open it
    /// while this value lives. An error if the places alone need more.
    pub fn create(places: u64, bytes: u64) -> Result<(Self, PoolTicket), MemoryError> {
        let size =
            || usize::try_from(bytes).ok().filter(|_| first_block(places).is_some_and(|first| first < bytes));
        let size = size().ok_or(MemoryError::Size(places as usize, bytes as usize))?;
        let (segment, ticket) = Segment::create(1, size)?;
        let pool = Self { segment, places };
        let first = first_block(places).unwrap_or(bytes);
        pool.reserve(0, first).map_err(|error| MemoryError::NoMemory(first as usize, error.into()))?;
        pool.used().store(first, Ordering::Relaxed);
        let mut words = [places as i64; Ticket::WORDS + 1];
        words[..Ticket::WORDS].copy_from_slice(&ticket.to_words());
        Ok((pool, words))
    }

    /// Opens a pool that another process has created.
    pub fn open(words: PoolTicket) -> Result<Self, MemoryError> {
        let [pid, fd, high, low, regions, bytes, places] = words;
        let segment = Segment::open(&Ticket::from_words([pid, fd, high, low, regions, bytes]))?;
        let (places, bytes) = (places.cast_unsigned(), segment.region_bytes() as u64);
        match first_block(places) {
            Some(first) if first < bytes => Ok(Self { segment, places }),
            _ => Err(MemoryError::Size(places as usize, bytes as usize)),
        }
    }

    /// Returns the bytes in use, of blocks and places.
    pub fn used_bytes(&self) -> u64 {
        self.used().load(Ordering::Relaxed)
    }

    /// Returns whether a place is empty, and the pool has room for a block of this size.
    pub fn has_room(&self, place: u64, bytes: u64) -> bool {
        let is_empty = self.place(place).is_some_and(|place| place.load(Ordering::Relaxed) == 0);
        is_empty && self.end_of(self.used_bytes(), bytes).is_some()
    }

    /// Writes a block of these parts, one after the other. Returns whether this call has written it.
    pub fn put(&self, place: u64, parts: &[&[u8]]) -> bool {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let Some(state) = self.place(place) else { return false };
        if !self.has_room(place, bytes)
            || state.compare_exchange(0, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let more = |used| self.end_of(used, bytes);
        let Ok(start) = self.used().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            state.store(0, Ordering::Relaxed);
            return false;
        };
        if self.reserve(start, WORD + bytes).is_err() {
            // The machine has no more memory: nothing else is kept.
            self.used().store(self.bytes(), Ordering::Relaxed);
            return false;
        }
        let mut at = start;
        for part in [&bytes.to_ne_bytes()[..]].into_iter().chain(parts.iter().copied()) {
            // SAFETY: the range was taken from the pool's memory above, for this call alone.
            unsafe { self.address(at).copy_from_nonoverlapping(NonNull::from(part).cast(), part.len()) };
            at += part.len() as u64;
        }
        state.store(start, Ordering::Release);
        true
    }

    /// Returns the block of a place, if it is written.
    pub fn get(&self, place: u64) -> Option<Block<'_>> {
        let start = self.place(place)?.load(Ordering::Acquire);
        // Another process has written the numbers.
        let is_inside = start.checked_add(WORD).is_some_and(|values| values <= self.bytes());
        if start < first_block(self.places)? || !start.is_multiple_of(WORD) || !is_inside {
            return None;
        }
        // SAFETY: the word is inside of the memory and aligned, and was written before its place.
        let length = unsafe { self.address(start).cast::<u64>().read() };
        let end = start.checked_add(WORD)?.checked_add(length)?;
        let block = || Block { start: self.address(start + WORD), length: length as usize, of: PhantomData };
        (end <= self.bytes()).then(block)
    }

    fn bytes(&self) -> u64 {
        self.segment.region_bytes() as u64
    }

    fn used(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn place(&self, place: u64) -> Option<&AtomicU64> {
        (place < self.places).then(|| self.word(1 + place))
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        // SAFETY: the words of `used` and the places are at the beginning of the memory, which lives as long as the value, and
        // every process uses them as atomic numbers.
        unsafe { AtomicU64::from_ptr(self.address(WORD * number).cast().as_ptr()) }
    }

    /// Returns where a block ends that begins at `start`, if it has room.
    fn end_of(&self, start: u64, bytes: u64) -> Option<u64> {
        let end = start.checked_add(WORD)?.checked_add(bytes)?.checked_next_multiple_of(WORD)?;
        (end <= self.bytes()).then_some(end)
    }

    fn address(&self, at: u64) -> NonNull<u8> {
        debug_assert!(at <= self.bytes());
        // SAFETY: callers stay inside of the region.
        unsafe { self.segment.region(0).add(at as usize) }
    }

    /// Allocates memory, so that a lack of it is no signal later.
    fn reserve(&self, start: u64, bytes: u64) -> rustix::io::Result<()> {
        let start = self.segment.offset_in_file(0) + start;
        let reserve = || rustix::fs::fallocate(self.segment.file(), FallocateFlags::empty(), start, bytes);
        rustix::io::retry_on_intr(reserve)
    }
}

/// Returns where the first block may begin.
fn first_block(places: u64) -> Option<u64> {
    places.checked_add(1)?.checked_mul(WORD)
}

/// A block of a [`Pool`]. Its bytes are copied, not borrowed: they are another process's memory too.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    start: NonNull<u8>,
    length: usize,
    of: PhantomData<&'a Pool>,
}

impl Block<'_> {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.length
    }

    /// Copies the bytes from `start` on to all of `out`. Returns whether the block has them.
    pub fn copy(&self, start: usize, out: &mut [u8]) -> bool {
        let has_them = start.checked_add(out.len()).is_some_and(|end| end <= self.length);
        if has_them {
            // SAFETY: the range is in the block, which no process writes to any more, and the pool is borrowed.
            unsafe {
                self.start.add(start).copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len())
            };
        }
        has_them
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(pool: &Pool, place: u64) -> Option<Vec<u8>> {
        let block = pool.get(place)?;
        let mut bytes = vec![0; block.bytes()];
        assert!(block.copy(0, &mut bytes) && !block.copy(1, &mut bytes));
        Some(bytes)
    }

    #[test]
    fn a_block_is_written_once_and_read_by_all() {
        let (own, ticket) = Pool::create(3, 1000).unwrap();
        let other = Pool::open(ticket).unwrap();
        assert_eq!(read(&other, 1), None);
        assert!(own.put(1, &[b"ab", b"", b"cde"]));
        assert!(!other.put(1, &[b"later"]) && !other.has_room(1, 5));
        assert!(other.put(2, &[]) && !own.put(3, &[b"no such place"]));
        for pool in [&own, &other] {
            assert_eq!(
                (read(pool, 0), read(pool, 1), read(pool, 2)),
                (None, Some(b"abcde".to_vec()), Some(vec![]))
            );
        }
        drop(own);
        assert_eq!(read(&other, 1).unwrap(), b"abcde");
        assert!(Pool::open(ticket).is_err(), "the memory's first process has left it");
    }

    #[test]
    fn blocks_stay_within_the_bytes() {
        let (pool, _) = Pool::create(100, 101 * 8 + 3 * (8 + 16)).unwrap();
        let kept: Vec<u64> = (0..100).filter(|&place| pool.put(place, &[&[7; 10]])).collect();
        assert_eq!(kept, [0, 1, 2]);
        assert!(!pool.has_room(50, 0) && pool.used_bytes() == 101 * 8 + 72);
        assert!(Pool::create(100, 800).is_err() && Pool::create(u64::MAX, 800).is_err());
    }

    /// A process that dies while it writes leaves its place unused.
    #[test]
    fn an_unfinished_block_is_never_read() {
        let (pool, ticket) = Pool::create(2, 1000).unwrap();
        pool.place(0).unwrap().store(WRITING, Ordering::Relaxed);
        let other = Pool::open(ticket).unwrap();
        assert!(read(&other, 0).is_none() && !other.put(0, &[b"x"]) && other.put(1, &[b"y"]));
        for wrong in [2, 9, 24 + 1, 1000, 1 << 20, u64::MAX, u64::MAX - 7] {
            pool.place(0).unwrap().store(wrong, Ordering::Relaxed);
            assert!(other.get(0).is_none(), "{wrong}");
        }
    }

    #[test]
    fn threads_of_two_processes_agree() {
        let (own, ticket) = Pool::create(200, 200 * (8 + 8 + 128) + 64).unwrap();
        let other = Pool::open(ticket).unwrap();
        std::thread::scope(|scope| {
            for (thread, pool) in [&own, &other, &own, &other].into_iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..400u64 {
                        let place = round * (thread as u64 + 1) % 200;
                        pool.put(place, &[&[place as u8; 100]]);
                        assert!(read(pool, place).is_none_or(|bytes| bytes == [place as u8; 100]));
                    }
                });
            }
        });
        assert_eq!((0..200).filter(|&place| own.get(place).is_some()).count(), 200);
    }
}
