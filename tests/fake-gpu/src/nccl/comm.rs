//! A communicator: ranks that meet in shared memory, and move their data through slots there.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::fs::{self, File, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use super::{Call, Collective, IN_PROGRESS, INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, reduce};
use crate::ffi::{Code, Outcome};
use crate::machine::{Dead, MACHINE};
use crate::memory::View;
use crate::messages;
use crate::{books, counts};

/// The most ranks.
pub(super) const MOST: usize = 64;
/// The bytes of a rank's slot.
const SLOT: usize = 4 << 20;
/// The bytes of a rank's words, and of its announcement behind them.
const RECORD: usize = 256;
const TEXT: usize = 128;

/// The bytes of the box in which a rank leaves data for another one, and of its two words before it.
pub(super) const BOX: usize = 64 << 10;
const PAIR: usize = 16 + BOX;

/// A rank's words.
#[derive(Clone, Copy)]
enum Word {
    Phase,
    Pid,
    Start,
    Color,
    Key,
    Joined,
}

/// Memory that the ranks share: a record of each rank, a slot of each, and a box for each pair.
pub(super) struct Region(MmapRaw);

impl Region {
    fn open(file: &File, ranks: usize) -> Option<Self> {
        let bytes = ranks * (RECORD + SLOT) + ranks * ranks * PAIR;
        file.set_len(bytes as u64).ok()?;
        MmapOptions::new().len(bytes).map_raw(file).ok().map(Self)
    }

    fn word(&self, rank: usize, word: Word) -> &AtomicU64 {
        self.atomic(rank * RECORD + 8 * word as usize)
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: aligned and inside of the mapping, and all processes use it as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns the box for data from one rank to another, and the numbers of its left and taken parts.
    pub(super) fn pair(&self, ranks: usize, from: usize, to: usize) -> (View, &AtomicU64, &AtomicU64) {
        let start = ranks * (RECORD + SLOT) + (from * ranks + to) * PAIR;
        (self.view(start + 16, BOX), self.atomic(start), self.atomic(start + 8))
    }

    /// Returns the text in which a rank announces its collective.
    fn text(&self, rank: usize) -> View {
        self.view(rank * RECORD + RECORD - TEXT, TEXT)
    }

    fn slot(&self, ranks: usize, rank: usize) -> View {
        self.view(ranks * RECORD + rank * SLOT, SLOT)
    }

    fn view(&self, offset: usize, size: usize) -> View {
        // SAFETY: inside of the mapping, which lives as long as the communicator that makes the views.
        unsafe { View::trusted(self.0.as_mut_ptr().add(offset).expose_provenance(), size) }
    }
}

/// A rank's place in a connected communicator.
pub(super) struct Place {
    name: String,
    pub(super) size: usize,
    pub(super) rank: usize,
    /// `None` for a single rank.
    pub(super) region: Option<Region>,
}

/// A communicator.
pub(super) struct Comm {
    pub(super) device: usize,
    pub(super) blocking: bool,
    pub(super) state: AtomicI32,
    pub(super) is_aborted: AtomicBool,
    /// The number of collectives.
    pub(super) number: AtomicU64,
    splits: AtomicU64,
    place: OnceLock<Place>,
    message: OnceLock<CString>,
    /// The number of meetings; held during a collective.
    phase: Mutex<u64>,
    /// The order in which the program called, which all streams keep.
    tickets: AtomicU64,
    turn: Mutex<Turn>,
    turned: Condvar,
}

/// Which tickets are done: all before `next`, and some after it.
#[derive(Default)]
struct Turn {
    next: u64,
    done: BTreeSet<u64>,
}

impl Comm {
    pub(super) fn new(device: usize, blocking: bool) -> Self {
        Self {
            device,
            blocking,
            state: AtomicI32::new(IN_PROGRESS),
            is_aborted: AtomicBool::new(false),
            number: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            place: OnceLock::new(),
            message: OnceLock::new(),
            phase: Mutex::new(0),
            tickets: AtomicU64::new(0),
            turn: Mutex::default(),
            turned: Condvar::new(),
        }
    }

    /// Returns a place in the order of calls.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until all calls before a ticket are done.
    pub(super) fn wait_for_turn(&self, ticket: u64) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.turned.wait_while(turn, |turn| turn.next < ticket).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets the next call begin.
    pub(super) fn end_turn(&self, ticket: u64) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.done.insert(ticket);
        while turn.done.first() == Some(&turn.next) {
            turn.done.pop_first();
            turn.next += 1;
        }
        self.turned.notify_all();
    }

    /// Returns the place, once the communicator is connected.
    pub(super) fn place(&self) -> Option<&Place> {
        self.place.get()
    }

    pub(super) fn message(&self) -> Option<*const c_char> {
        self.message.get().map(|message| message.as_ptr())
    }

    /// Reports an asynchronous error. The first message stays.
    pub(super) fn break_down(&self, code: Code, why: &str) {
        messages::report(&format!("NCCL: {why}"));
        let _ = self.message.set(CString::new(why).unwrap_or_default());
        self.state.store(code, Ordering::Release);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed)
    }

    /// Waits until all ranks of a name have come. The name is the path of the file that they share.
    pub(super) fn connect(&self, name: &str, size: usize, rank: usize) -> Outcome {
        let mut region = None;
        if size > 1 {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(name);
            let shared = file.ok().and_then(|file| Region::open(&file, size)).ok_or(SYSTEM_ERROR)?;
            let pid = std::process::id();
            shared.word(rank, Word::Start).store(books::start_of(pid).unwrap_or_default(), Ordering::Release);
            shared.word(rank, Word::Pid).store(pid.into(), Ordering::Release);
            let is_last = shared.word(0, Word::Joined).fetch_add(1, Ordering::AcqRel) + 1 == size as u64;
            while shared.word(0, Word::Joined).load(Ordering::Acquire) < size as u64 {
                if self.is_aborted() {
                    return Err(INVALID_USAGE);
                }
                thread::sleep(Duration::from_micros(200));
            }
            if is_last {
                let _ = fs::remove_file(name);
            }
            region = Some(shared);
        }
        let _ = self.place.set(Place { name: name.to_owned(), size, rank, region });
        Ok(())
    }

    /// Connects `child` with the ranks of the same color, ordered by their keys.
    pub(super) fn split(&self, color: c_int, key: c_int, child: &Self) -> Outcome {
        let place = self.place().ok_or(INVALID_USAGE)?;
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let mut members = vec![(key, place.rank)];
        if let Some(region) = &place.region {
            region.word(place.rank, Word::Color).store(color as u32 as u64, Ordering::Release);
            region.word(place.rank, Word::Key).store(key as u32 as u64, Ordering::Release);
            let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
            let all_came = self.meet(place, region, &mut phase);
            let is_same =
                |rank: &usize| region.word(*rank, Word::Color).load(Ordering::Acquire) == color as u32 as u64;
            let key_of = |rank| region.word(rank, Word::Key).load(Ordering::Acquire) as c_int;
            members = (0..place.size).filter(is_same).map(|rank| (key_of(rank), rank)).collect();
            if !all_came || !self.meet(place, region, &mut phase) {
                return Err(INVALID_USAGE);
            }
        }
        if color < 0 {
            return Ok(());
        }
        members.sort_unstable();
        let rank = members.iter().position(|(_, rank)| *rank == place.rank).unwrap_or_default();
        child.connect(&format!("{}-{number}-{color}", place.name), members.len(), rank)
    }

    /// Waits until all ranks are here. Returns false after an abort.
    fn meet(&self, place: &Place, region: &Region, phase: &mut u64) -> bool {
        *phase += 1;
        region.word(place.rank, Word::Phase).store(*phase, Ordering::Release);
        for rank in 0..place.size {
            let mut round = 0_u32;
            while region.word(rank, Word::Phase).load(Ordering::Acquire) < *phase {
                round = round.saturating_add(1);
                if !self.pause(region, rank, round) {
                    return false;
                }
            }
        }
        true
    }

    /// Waits a bit for a rank. Returns false after an abort, also one since the rank died.
    pub(super) fn pause(&self, region: &Region, rank: usize, round: u32) -> bool {
        if round % 1000 == 999 && MACHINE.nccl_dead == Dead::Error && is_dead(region, rank) {
            self.break_down(REMOTE_ERROR, &format!("peer {rank} has closed its connection"));
            return self.wait_for_abort();
        }
        match round {
            0..200 => thread::yield_now(),
            200..2000 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
        !self.is_aborted()
    }

    /// A broken collective never ends by itself.
    pub(super) fn wait_for_abort(&self) -> bool {
        while !self.is_aborted() {
            thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

fn is_dead(region: &Region, rank: usize) -> bool {
    let word = |word| region.word(rank, word).load(Ordering::Acquire);
    word(Word::Pid) != 0 && books::start_of(word(Word::Pid) as u32) != Some(word(Word::Start))
}

impl Call {
    /// Takes part in the collective.
    pub(super) fn run(&self) {
        let comm = &self.comm;
        let Some(place) = comm.place() else { return };
        let mut phase = comm.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if comm.is_aborted() {
            return;
        }
        match &place.region {
            Some(region) => {
                // Without the others' data there is no result.
                let _ = self.agree(place, region, &mut phase) && self.move_data(place, region, &mut phase);
            }
            None if self.send != self.receive => self.part(self.receive).copy_from(self.part(self.send)),
            None => {}
        }
    }

    /// Returns a view of this rank's elements at an address that `start` checked.
    fn part(&self, at: usize) -> View {
        // SAFETY: device memory keeps its addresses.
        unsafe { View::trusted(at, self.count * self.unit()) }
    }

    /// All ranks must do the same: compares this rank's collective with those of the others.
    fn agree(&self, place: &Place, region: &Region, phase: &mut u64) -> bool {
        let text = |bytes: [u8; TEXT]| String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        let mine = format!(
            "{:?} of {} elements, type {}, operation {}, root {}",
            self.kind, self.count, self.element, self.operation, self.root
        );
        let mut bytes = [0; TEXT];
        bytes.iter_mut().zip(mine.bytes()).for_each(|(to, from)| *to = from);
        region.text(place.rank).write(0, bytes);
        if !self.comm.meet(place, region, phase) {
            return false;
        }
        let texts = (0..place.size).map(|rank| (rank, text(region.text(rank).read(0))));
        if let Some((rank, other)) = { texts }.find(|(_, other)| *other != mine) {
            let why = format!(
                "ranks do different collectives: rank {} does {mine}, rank {rank} does {other}",
                place.rank
            );
            self.comm.break_down(INVALID_USAGE, &why);
            counts::note("[different collectives]");
            return self.comm.wait_for_abort();
        }
        self.comm.meet(place, region, phase)
    }

    fn move_data(&self, place: &Place, region: &Region, phase: &mut u64) -> bool {
        let unit = self.unit();
        let most = SLOT / unit;
        let is_hollow = MACHINE.hollow.is_some_and(|limit| (self.count * unit) as u64 > limit.0);
        let root = self.root.max(0) as usize;
        let blocks = if self.kind == Collective::ReduceScatter { place.size } else { 1 };
        // SAFETY: in the buffers that `start` checked; device memory keeps its addresses.
        let view = |at: usize, size: usize| unsafe { View::trusted(at, size) };
        for block in 0..if is_hollow { 0 } else { blocks } {
            for at in (0..self.count).step_by(most) {
                let n = most.min(self.count - at);
                if self.kind != Collective::Broadcast || place.rank == root {
                    let from = view(self.send + (block * self.count + at) * unit, n * unit);
                    region.slot(place.size, place.rank).copy_from(from);
                }
                if !self.comm.meet(place, region, phase) {
                    return false;
                }
                let to = view(self.receive + at * unit, n * unit);
                let slots = || (0..place.size).map(|rank| region.slot(place.size, rank)).collect::<Vec<_>>();
                let is_mine = match self.kind {
                    Collective::Reduce => place.rank == root,
                    Collective::ReduceScatter => place.rank == block,
                    _ => true,
                };
                match self.kind {
                    Collective::Broadcast => to.copy_from(region.slot(place.size, root)),
                    Collective::AllGather => {
                        for (rank, slot) in slots().into_iter().enumerate() {
                            view(self.receive + (rank * self.count + at) * unit, n * unit).copy_from(slot);
                        }
                    }
                    _ if is_mine => reduce::reduce(&slots(), to, n, self.element, self.operation),
                    _ => {}
                }
                if !self.comm.meet(place, region, phase) {
                    return false;
                }
            }
        }
        true
    }
}
