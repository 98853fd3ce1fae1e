//! The progress of each rank: one board of atomics per rank, in memory that all ranks share.
//!
//! Each rank counts its operations from 1. On its board it announces the last operation for which it is
//! *ready* (the other ranks may read and write its memory) and the last that it has *done* (it no longer
//! touches their memory). If a rank finds after its announcement that all ranks have made the same one, it
//! rings the bell of every rank. The thread of a rank sleeps on its bell.
//!
//! Sequence numbers wrap around. Only their distance is compared, which stays far below 2^31.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::thread::futex;

use crate::error::{MemoryError, failed};
use crate::lock;
use crate::segment::{Segment, Ticket};

/// The number of operations whose tags stay readable. The tag of a rank further ahead is not checked.
const TAGS: usize = 256;

/// Reads of the bell before a thread sleeps: about two microseconds. This is shorter than a sleep and a
/// wake-up, and too short to take the core from the training.
const SPINS: usize = 64;

/// A value in its own cache lines, so that a write does not slow down ranks that read other values.
#[repr(C, align(128))]
struct Line<T>(T);

/// What one rank announces, and its bell. Initially all bytes are zero.
#[repr(C)]
struct Board {
    /// The last operation of each [`Stage`].
    announced: [Line<AtomicU32>; 2],
    bell: Line<Bell>,
    left: Line<AtomicU32>,
    tags: [AtomicU64; TAGS],
}

#[repr(C)]
struct Bell {
    rung: AtomicU32,
    sleeping: AtomicU32,
}

/// A stage of an operation that a rank announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The other ranks may read and write this rank's memory.
    Ready,
    /// This rank no longer touches the memory of other ranks.
    Done,
}

/// All boards, and the rank of this process.
#[derive(Debug)]
pub struct Control {
    segment: Segment,
    rank: usize,
}

impl Control {
    /// Creates the boards of `size` ranks on rank 0, and the ticket for the other ranks.
    pub fn create(size: usize) -> Result<(Self, Ticket), MemoryError> {
        let (segment, ticket) = Segment::create(size, size_of::<Board>())?;
        Ok((Self::join(segment, 0)?, ticket))
    }

    /// Opens the boards on a rank other than 0.
    pub fn open(ticket: &Ticket, rank: usize) -> Result<Self, MemoryError> {
        let segment = Segment::open(ticket)?;
        if segment.region_bytes() < size_of::<Board>() || rank >= segment.regions() {
            return Err(MemoryError::WrongFile(ticket.path(), "memory for another purpose"));
        }
        Self::join(segment, rank)
    }

    fn join(segment: Segment, rank: usize) -> Result<Self, MemoryError> {
        segment.reserve(rank)?;
        if !lock::try_lock(segment.file(), rank).map_err(failed("lock shared memory (F_OFD_SETLK)"))? {
            return Err(MemoryError::RankTaken(rank));
        }
        Ok(Self { segment, rank })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.segment.regions()
    }

    fn board(&self, rank: usize) -> &Board {
        let board = self.segment.region(rank).cast::<Board>();
        // SAFETY: regions are page-aligned, hold a Board (ensured in create, checked in open) and stay mapped
        // as long as self. A Board has only atomics, so other processes may write to it.
        unsafe { board.as_ref() }
    }

    /// Announces that this rank's memory is ready for operation `sequence`, and the operation's tag.
    pub(crate) fn publish_ready(&self, sequence: u32, tag: u32) {
        self.board(self.rank).tags[sequence as usize % TAGS].store(tag_word(sequence, tag), SeqCst);
        self.publish(Stage::Ready, sequence);
    }

    pub(crate) fn publish(&self, stage: Stage, sequence: u32) {
        self.board(self.rank).announced[stage as usize].0.store(sequence, SeqCst);
        if self.missing_ranks(stage, sequence).next().is_none() {
            self.ring_all();
        }
    }

    /// Returns the ranks that have not announced `stage` of operation `sequence`.
    pub(crate) fn missing_ranks(&self, stage: Stage, sequence: u32) -> impl Iterator<Item = usize> {
        let announced = move |rank| self.board(rank).announced[stage as usize].0.load(SeqCst);
        (0..self.size()).filter(move |rank| is_before(announced(*rank), sequence))
    }

    /// Returns a rank that is ready for operation `sequence` with another tag.
    pub(crate) fn find_mismatch(&self, sequence: u32, tag: u32) -> Option<usize> {
        (0..self.size()).find(|rank| {
            let theirs = self.board(*rank).tags[sequence as usize % TAGS].load(SeqCst);
            // Another number: the slot holds a later operation's tag, as that rank is TAGS operations ahead.
            theirs >> 32 == u64::from(sequence) && theirs != tag_word(sequence, tag)
        })
    }

    /// Returns whether another rank has left the team.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.board(rank).left.0.load(SeqCst) != 0
    }

    /// Asks the kernel whether another rank's process lives. Returns true if the kernel cannot answer.
    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        lock::is_locked(self.segment.file(), rank).unwrap_or(true)
    }

    /// Reads this rank's bell. Call it before checking the condition for which [`Control::sleep`] will wait.
    pub(crate) fn bell(&self) -> u32 {
        self.board(self.rank).bell.0.rung.load(SeqCst)
    }

    /// Sleeps until this rank's bell is rung after `heard` was read, or until `limit` has passed.
    pub(crate) fn sleep(&self, heard: u32, limit: Duration) {
        let bell = &self.board(self.rank).bell.0;
        for _ in 0..SPINS {
            if bell.rung.load(SeqCst) != heard {
                return;
            }
            std::hint::spin_loop();
        }
        // The ringer adds to `rung` and then reads `sleeping`. This thread writes `sleeping` and then reads
        // `rung`. So the ringer wakes this thread, or the kernel finds that `rung` differs from `heard`.
        bell.sleeping.store(1, SeqCst);
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // Any result is fine: the caller checks its condition again.
        let _ = futex::wait(&bell.rung, futex::Flags::empty(), heard, Some(&limit));
        bell.sleeping.store(0, SeqCst);
    }

    pub(crate) fn ring_own(&self) {
        ring(&self.board(self.rank).bell.0);
    }

    fn ring_all(&self) {
        (0..self.size()).for_each(|rank| ring(&self.board(rank).bell.0));
    }
}

fn ring(bell: &Bell) {
    bell.rung.fetch_add(1, SeqCst);
    if bell.sleeping.load(SeqCst) != 0 {
        // Only one thread sleeps on a bell. An error is ignored: the sleeper wakes after its limit.
        let _ = futex::wake(&bell.rung, futex::Flags::empty(), 1);
    }
}

fn tag_word(sequence: u32, tag: u32) -> u64 {
    u64::from(sequence) << 32 | u64::from(tag)
}

/// Returns whether `announced` has not reached `sequence`.
fn is_before(announced: u32, sequence: u32) -> bool {
    announced.wrapping_sub(sequence).cast_signed() < 0
}

/// Leaves the team and announces it to the other ranks.
impl Drop for Control {
    fn drop(&mut self) {
        self.board(self.rank).left.0.store(1, SeqCst);
        // A child process may have inherited the descriptor; the lock must be released anyway.
        let _ = lock::release(self.segment.file(), self.rank);
        self.ring_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    fn pair() -> (Control, Control) {
        let (zero, ticket) = Control::create(2).unwrap();
        let one = Control::open(&ticket, 1).unwrap();
        (zero, one)
    }

    #[test]
    fn announcements_reach_the_other_ranks() {
        let (zero, one) = pair();
        assert_eq!((zero.rank(), one.rank(), one.size()), (0, 1, 2));
        let unready =
            |control: &Control, sequence| control.missing_ranks(Stage::Ready, sequence).collect::<Vec<_>>();
        let undone =
            |control: &Control, sequence| control.missing_ranks(Stage::Done, sequence).collect::<Vec<_>>();
        assert_eq!(unready(&zero, 1), [0, 1]);
        one.publish_ready(2, 5);
        assert_eq!((unready(&zero, 1), unready(&zero, 3)), (vec![0], vec![0, 1]));
        zero.publish_ready(1, 5);
        assert!(unready(&one, 1).is_empty());
        one.publish(Stage::Done, 1);
        assert_eq!((undone(&zero, 1), undone(&one, 1)), (vec![0], vec![0]));
        zero.publish(Stage::Done, 1);
        assert!(undone(&one, 1).is_empty());
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        assert!(is_before(u32::MAX, 0));
        assert!(is_before(u32::MAX - 5, 3));
        assert!(!is_before(0, u32::MAX));
        assert!(!is_before(7, 7));
    }

    #[test]
    fn a_different_operation_is_detected() {
        let (zero, one) = pair();
        zero.publish_ready(1, 10);
        one.publish_ready(1, 11);
        assert_eq!(zero.find_mismatch(1, 10), Some(1));
        assert_eq!(one.find_mismatch(1, 11), Some(0));
        zero.publish_ready(2, 20);
        one.publish_ready(2, 20);
        assert_eq!(zero.find_mismatch(2, 20), None);
        // The tag of a rank that is far ahead has overwritten this one.
        one.publish_ready(2 + TAGS as u32, 99);
        assert_eq!(zero.find_mismatch(2, 20), None);
    }

    #[test]
    fn a_bell_wakes_the_sleeper_only_when_rung() {
        let (zero, one) = pair();
        let heard = zero.bell();
        let started = Instant::now();
        zero.sleep(heard, Duration::from_millis(30));
        assert!(started.elapsed() >= Duration::from_millis(30));
        let heard = zero.bell();
        one.publish_ready(1, 0);
        assert_eq!(zero.bell(), heard, "not all ranks are ready");
        zero.publish_ready(1, 0);
        assert_ne!(zero.bell(), heard);
        zero.sleep(heard, Duration::from_secs(60));
        std::thread::scope(|scope| {
            let heard = zero.bell();
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                one.ring_all();
            });
            zero.sleep(heard, Duration::from_secs(60));
        });
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_rank_that_left_is_detected() {
        let (zero, one) = pair();
        assert!(zero.is_alive(1) && one.is_alive(0) && !zero.has_left(1));
        drop(one);
        assert!(!zero.is_alive(1) && zero.has_left(1));
    }

    #[test]
    fn a_rank_can_be_opened_once() {
        let (zero, ticket) = Control::create(2).unwrap();
        let _one = Control::open(&ticket, 1).unwrap();
        assert!(matches!(Control::open(&ticket, 1), Err(MemoryError::RankTaken(1))));
        assert!(matches!(Control::open(&ticket, 2), Err(MemoryError::WrongFile(..))));
        let (_data, other) = Segment::create(2, 64).unwrap();
        assert!(matches!(Control::open(&other, 1), Err(MemoryError::WrongFile(..))));
        drop(zero);
    }
}
