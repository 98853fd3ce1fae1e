//! Where the ranks tell each other how far they are: a board of atomics for each rank, in memory that all share.
//!
//! Each rank counts its operations from 1. On its own board it writes the last operation that it is *ready* for (its memory
//! may be read and written by the others) and the last that it has *done* (it will not touch the others' memory for it any
//! more). Whoever finds after its own announcement that all ranks have made it rings every rank's bell, on which the
//! rank's thread sleeps; the others need not be woken before that.
//!
//! Numbers wrap around; what is compared is their distance, which stays far below 2^31.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::thread::futex;

use crate::error::{MemoryError, failed};
use crate::lock;
use crate::segment::{Segment, Ticket};

/// How many of the last operations' tags stay readable. A rank that runs further ahead goes unchecked, not astray.
const TAGS: usize = 256;

/// Looks at the bell this often before sleeping on it: about two microseconds, less than a sleep and a wake-up cost and
/// too short to take the core from the training.
const SPINS: usize = 64;

/// One line of the cache, so that ranks that write do not disturb those that read something else.
#[repr(C, align(128))]
struct Line<T>(T);

/// What one rank announces, and the bell it sleeps on. Zero bytes are its state at the start.
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

/// What a rank announces of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The others may read and write its memory.
    Ready,
    /// It does not touch that of the others any more.
    Done,
}

/// The boards of all ranks, seen by one of them.
#[derive(Debug)]
pub struct Control {
    segment: Segment,
    rank: usize,
}

impl Control {
    /// Rank 0's: makes the boards of `size` ranks, and the ticket for the others.
    pub fn create(size: usize) -> Result<(Self, Ticket), MemoryError> {
        let (segment, ticket) = Segment::create(size, size_of::<Board>())?;
        Ok((Self::join(segment, 0)?, ticket))
    }

    /// The other ranks'.
    pub fn open(ticket: &Ticket, rank: usize) -> Result<Self, MemoryError> {
        let segment = Segment::open(ticket)?;
        if segment.region_bytes() < size_of::<Board>() || rank >= segment.regions() {
            return Err(MemoryError::WrongFile(ticket.path(), "memory of another purpose"));
        }
        Self::join(segment, rank)
    }

    fn join(segment: Segment, rank: usize) -> Result<Self, MemoryError> {
        segment.reserve(rank)?;
        if !lock::hold(segment.file(), rank).map_err(failed("lock shared memory (F_OFD_SETLK)"))? {
            return Err(MemoryError::Taken(rank));
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
        let place = self.segment.region(rank).cast::<Board>();
        // SAFETY: regions are page-aligned and at least a Board long (made so in create, checked in open) and mapped as long
        // as self. A Board is atomics alone, of which every bit pattern is a value, so other processes may write to it.
        unsafe { place.as_ref() }
    }

    /// Announces that the memory of operation `sequence` is ready, and what the operation is.
    pub(crate) fn publish_ready(&self, sequence: u32, tag: u32) {
        self.board(self.rank).tags[sequence as usize % TAGS].store(tagged(sequence, tag), SeqCst);
        self.publish(Stage::Ready, sequence);
    }

    pub(crate) fn publish(&self, stage: Stage, sequence: u32) {
        self.board(self.rank).announced[stage as usize].0.store(sequence, SeqCst);
        if self.behind(stage, sequence).next().is_none() {
            self.ring_all();
        }
    }

    /// The ranks that have not announced this of operation `sequence`.
    pub(crate) fn behind(&self, stage: Stage, sequence: u32) -> impl Iterator<Item = usize> {
        let announced = move |rank| self.board(rank).announced[stage as usize].0.load(SeqCst);
        (0..self.size()).filter(move |rank| before(announced(*rank), sequence))
    }

    /// A rank whose operation `sequence`, for which it is ready, is not `tag`.
    pub(crate) fn mismatch(&self, sequence: u32, tag: u32) -> Option<usize> {
        (0..self.size()).find(|rank| {
            let theirs = self.board(*rank).tags[sequence as usize % TAGS].load(SeqCst);
            // Another operation's tag: that rank has gone on by TAGS operations.
            theirs >> 32 == u64::from(sequence) && theirs != tagged(sequence, tag)
        })
    }

    /// Whether a rank other than this has left or died.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.board(rank).left.0.load(SeqCst) != 0
    }

    /// Asks the kernel whether a rank other than this lives. Where the kernel cannot say, it does: the time-out remains.
    pub(crate) fn lives(&self, rank: usize) -> bool {
        lock::is_held(self.segment.file(), rank).unwrap_or(true)
    }

    /// A rank's bell; read it before looking at what [`Control::sleep`] is to wait for.
    pub(crate) fn bell(&self) -> u32 {
        self.board(self.rank).bell.0.rung.load(SeqCst)
    }

    /// Sleeps until the own bell is rung after `heard` was read, or `limit` has passed.
    pub(crate) fn sleep(&self, heard: u32, limit: Duration) {
        let bell = &self.board(self.rank).bell.0;
        for _ in 0..SPINS {
            if bell.rung.load(SeqCst) != heard {
                return;
            }
            std::hint::spin_loop();
        }
        // Who rings adds to `rung` and then reads `sleeping`; here it is the other way round, so that one of the two sees the
        // other: the ringer wakes us, or the kernel finds that `rung` is not `heard` any more.
        bell.sleeping.store(1, SeqCst);
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // Woken, too late, interrupted: the caller looks again in any case.
        let _ = futex::wait(&bell.rung, futex::Flags::empty(), heard, Some(&limit));
        bell.sleeping.store(0, SeqCst);
    }

    /// Wakes this rank's own thread.
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
        // Only one thread sleeps on a bell. Nothing can be done about a failure; the sleeper looks again by itself.
        let _ = futex::wake(&bell.rung, futex::Flags::empty(), 1);
    }
}

fn tagged(sequence: u32, tag: u32) -> u64 {
    u64::from(sequence) << 32 | u64::from(tag)
}

/// Whether `announced` has not reached `sequence`.
fn before(announced: u32, sequence: u32) -> bool {
    announced.wrapping_sub(sequence).cast_signed() < 0
}

/// Leaves the team in sight of the others.
impl Drop for Control {
    fn drop(&mut self) {
        self.board(self.rank).left.0.store(1, SeqCst);
        // The descriptor may live on in a child process; the place must not.
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
    fn announcements_reach_the_others() {
        let (zero, one) = pair();
        assert_eq!((zero.rank(), one.rank(), one.size()), (0, 1, 2));
        let unready = |of: &Control, sequence| of.behind(Stage::Ready, sequence).collect::<Vec<_>>();
        let undone = |of: &Control, sequence| of.behind(Stage::Done, sequence).collect::<Vec<_>>();
        assert_eq!(unready(&zero, 1), [0, 1]);
        one.publish_ready(2, 5);
        assert_eq!((unready(&zero, 1), unready(&zero, 3)), (vec![0], vec![0, 1]));
        zero.publish_ready(1, 5);
        assert_eq!(unready(&one, 1), []);
        one.publish(Stage::Done, 1);
        assert_eq!((undone(&zero, 1), undone(&one, 1)), (vec![0], vec![0]));
        zero.publish(Stage::Done, 1);
        assert_eq!(undone(&one, 1), []);
    }

    #[test]
    fn numbers_wrap_around() {
        assert!(before(u32::MAX, 0));
        assert!(before(u32::MAX - 5, 3));
        assert!(!before(0, u32::MAX));
        assert!(!before(7, 7));
    }

    #[test]
    fn another_operation_is_seen() {
        let (zero, one) = pair();
        zero.publish_ready(1, 10);
        one.publish_ready(1, 11);
        assert_eq!(zero.mismatch(1, 10), Some(1));
        assert_eq!(one.mismatch(1, 11), Some(0));
        zero.publish_ready(2, 20);
        one.publish_ready(2, 20);
        assert_eq!(zero.mismatch(2, 20), None);
        // A rank that is far ahead has overwritten the place.
        one.publish_ready(2 + TAGS as u32, 99);
        assert_eq!(zero.mismatch(2, 20), None);
    }

    #[test]
    fn a_bell_wakes_the_sleeper_and_not_before() {
        let (zero, one) = pair();
        let heard = zero.bell();
        let begun = Instant::now();
        zero.sleep(heard, Duration::from_millis(30));
        assert!(begun.elapsed() >= Duration::from_millis(30));
        let heard = zero.bell();
        one.publish_ready(1, 0);
        assert_eq!(zero.bell(), heard, "not all are ready");
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
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn who_leaves_is_missed() {
        let (zero, one) = pair();
        assert!(zero.lives(1) && one.lives(0) && !zero.has_left(1));
        drop(one);
        assert!(!zero.lives(1) && zero.has_left(1));
    }

    #[test]
    fn a_place_is_taken_once() {
        let (zero, ticket) = Control::create(2).unwrap();
        let _one = Control::open(&ticket, 1).unwrap();
        assert!(matches!(Control::open(&ticket, 1), Err(MemoryError::Taken(1))));
        assert!(matches!(Control::open(&ticket, 2), Err(MemoryError::WrongFile(..))));
        let (_data, other) = Segment::create(2, 64).unwrap();
        assert!(matches!(Control::open(&other, 1), Err(MemoryError::WrongFile(..))));
        drop(zero);
    }
}
