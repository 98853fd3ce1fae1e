//! The Huffman codes of sequential JPEG files.
//!
//! Most of the time of a JPEG file goes into them. A first pass removes stuffed bytes, and the way from a code to the
//! next has no branch. Whatever is not as it should be ends the decoding: the general decoder then judges the file.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use libjpeg_turbo_rs::common::huffman_table::HuffmanTable;
use libjpeg_turbo_rs::common::quant_table::ZIGZAG_ORDER;
use libjpeg_turbo_rs::decode::marker::JpegMetadata;

use super::EOI;

/// Bits by which a table is read.
const BITS: u32 = 11;
/// Bits of a value of 8-bit files, at most.
const LONGEST_VALUE: u32 = 11;
/// An entry whose code is with its value longer than [`BITS`], or has no meaning.
const LONG: u64 = 0;
/// The run of the code for the end of a block.
const END: u32 = 128;
/// Bytes that may be read after the end: a filled buffer, and the next one.
const AHEAD: usize = 16;
/// The coefficients of a block, then room for what is beyond its end.
pub(super) type Block = [i16; 256];

/// The places of the coefficients in a block, row by row; outside of it beyond the last.
const PLACES: [u8; 256] = {
    let mut places = [64; 256];
    let mut at = 0;
    while at < 64 {
        places[at] = ZIGZAG_ORDER[at] as u8;
        at += 1;
    }
    places
};

/// A code with its value.
#[derive(Clone, Copy)]
struct Coded {
    /// All bits.
    bits: u32,
    /// The zeros before the value.
    run: u32,
    value: i16,
}

/// The codes of one table, one or two for the bits that begin the buffer: the next ones wait for their length alone, and two wait
/// once. An entry has, from the lowest bit on, the length of all in 8 bits, the run before the first value in 8, where the place
/// goes in 8, that of the second value in 8, and both values.
pub(super) struct Codes {
    fast: Box<Fast>,
    table: Arc<HuffmanTable>,
    has_runs: bool,
}

/// The entries, and [`PLACES`] beside them: one address is enough for both.
struct Fast {
    entries: [u64; 1 << BITS],
    places: [u8; 256],
}

impl Codes {
    /// Prepares a table of first coefficients, or of the others, whose symbols have runs.
    fn new(table: Arc<HuffmanTable>, has_runs: bool) -> Self {
        let mut codes =
            Self { fast: Box::new(Fast { entries: [LONG; 1 << BITS], places: PLACES }), table, has_runs };
        let (mut all, mut bits) = (vec![None; 1 << BITS], 0);
        while bits < all.len() {
            let coded = codes.coded((bits as u64) << (64 - BITS)).filter(|coded| coded.bits <= BITS);
            // Whatever follows it, an entry begins with the same code.
            let equal = coded.map_or(1, |coded| 1 << (BITS - coded.bits));
            all[bits..bits + equal].fill(coded);
            bits += equal;
        }
        for (bits, first) in all.iter().enumerate() {
            let Some(first) = first else { continue };
            // Nothing follows the end of a block.
            let goes_on = has_runs && first.run < END;
            let second = goes_on.then(|| all[bits << first.bits & ((1 << BITS) - 1)]).flatten();
            let second = second.filter(|second| first.bits + second.bits <= BITS);
            codes.fast.entries[bits] = entry(*first, second);
        }
        codes
    }

    /// Returns the code and the value that these bits begin with; `None` for symbols that sequential files do not have.
    fn coded(&self, bits: u64) -> Option<Coded> {
        let (symbol, length) = self.table.lookup((bits >> 48) as u16).ok()?;
        let (run, size) = self.meaning(symbol)?;
        let length = u32::from(length);
        Some(Coded { bits: length + size, run, value: value(bits << length, size) })
    }

    /// As [`Codes::coded`], as an entry; [`LONG`] for none.
    #[cold]
    #[inline(never)]
    fn long(&self, bits: u64) -> u64 {
        self.coded(bits).map_or(LONG, |coded| entry(coded, None))
    }

    /// Returns the run and the bits of the value.
    fn meaning(&self, symbol: u8) -> Option<(u32, u32)> {
        let (run, size) = match self.has_runs {
            true => (u32::from(symbol >> 4), u32::from(symbol & 15)),
            false => (0, symbol.into()),
        };
        match (run, size) {
            (0, 0) if self.has_runs => Some((END, 0)),
            (1..15, 0) => None,
            _ => (size <= LONGEST_VALUE).then_some((run, size)),
        }
    }
}

/// The codes of a component: of its first coefficients, and of the others.
pub(super) type Pair = [Rc<Codes>; 2];

/// The codes of a thread's last file.
struct Known {
    /// The segments of its tables; None if they are not known, and equal no others.
    stated: Option<Vec<u8>>,
    /// By the number of the table, and whether it is one of other coefficients than the first.
    codes: Vec<(u8, bool, Rc<Codes>)>,
}

thread_local! {
    static LAST: RefCell<Known> = const { RefCell::new(Known { stated: None, codes: Vec::new() }) };
}

/// Returns the codes of the three components of a file, whose segments with tables are `stated`. Most files have the same tables.
pub(super) fn codes_of(stated: Option<Vec<u8>>, file: &JpegMetadata) -> Option<[Pair; 3]> {
    LAST.with_borrow_mut(|known| {
        if stated.is_none() || known.stated != stated {
            *known = Known { stated, codes: Vec::new() };
        }
        let mut codes = |number: u8, has_runs: bool| {
            let same = known.codes.iter().find(|(of, runs, _)| (*of, *runs) == (number, has_runs));
            if let Some((_, _, codes)) = same {
                return Some(Rc::clone(codes));
            }
            let tables = if has_runs { &file.ac_huffman_tables } else { &file.dc_huffman_tables };
            let table = tables.get(usize::from(number))?.as_ref()?;
            let codes = Rc::new(Codes::new(Arc::clone(table), has_runs));
            known.codes.push((number, has_runs, Rc::clone(&codes)));
            Some(codes)
        };
        let mut pair = |at: usize| {
            let of = &file.scan.components[at];
            Some([codes(of.dc_table_index, false)?, codes(of.ac_table_index, true)?])
        };
        Some([pair(0)?, pair(1)?, pair(2)?])
    })
}

/// Returns the value of the first `size` bits.
fn value(bits: u64, size: u32) -> i16 {
    // In two steps, since a shift by 64 bits is none. A value that begins with 0 is negative.
    let value = (bits >> 1 >> (63 - size)) as i32;
    let is_negative = bits.cast_signed() >= 0;
    (value + if is_negative { 1 - (1 << size) } else { 0 }) as i16
}

/// Returns the entry of one or two codes. A place without a value has a zero.
fn entry(first: Coded, second: Option<Coded>) -> u64 {
    let run = if first.run < END { first.run } else { 0 };
    let (mut bits, mut step, mut place, mut values) =
        (first.bits, first.run + 1, run + 1, u64::from(first.value.cast_unsigned()) << 32);
    if let Some(second) = second {
        bits += second.bits;
        step += second.run + 1;
        place += if second.run < END { second.run } else { 0 };
        values |= u64::from(second.value.cast_unsigned()) << 48;
    }
    u64::from(bits | run << 8 | step << 16 | place << 24) | values
}

/// The coded bits of a file, without stuffed bytes and markers.
pub(super) struct Bits {
    bytes: Vec<u8>,
    /// Where the intervals between restarts end.
    ends: Vec<usize>,
    interval: usize,
    /// The next byte, and the bits before it that are not taken yet, from the highest on.
    next: usize,
    buffer: u64,
    left: u32,
}

impl Bits {
    /// Reads the only scan of a file, which begins `coded`. `None` if the file does not end after it.
    pub(super) fn of(coded: &[u8]) -> Option<Self> {
        let (mut bytes, mut ends, mut at) = (Vec::with_capacity(coded.len() + AHEAD), Vec::new(), 0);
        loop {
            let length = memchr::memchr(0xff, coded.get(at..)?)?;
            bytes.extend_from_slice(&coded[at..at + length]);
            let marker = *coded.get(at + length + 1)?;
            at += length + 2;
            match marker {
                0 => bytes.push(0xff),
                // Restarts are counted from 0 to 7.
                0xd0..=0xd7 if usize::from(marker - 0xd0) == ends.len() % 8 => ends.push(bytes.len()),
                EOI => break,
                _ => return None,
            }
        }
        ends.push(bytes.len());
        bytes.extend_from_slice(&[0; AHEAD]);
        Some(Self { bytes, ends, interval: 0, next: 0, buffer: 0, left: 0 })
    }

    /// Goes to the next interval.
    pub(super) fn restart(&mut self) -> Option<()> {
        self.has_enough()?;
        self.next = *self.ends.get(self.interval)?;
        (self.interval, self.buffer, self.left) = (self.interval + 1, 0, 0);
        Some(())
    }

    /// Checks that no bit was taken after the end of the interval.
    pub(super) fn has_enough(&self) -> Option<()> {
        let end = *self.ends.get(self.interval)?;
        (8 * self.next <= 8 * end + self.left as usize).then_some(())
    }

    /// Checks that this is the last interval.
    pub(super) fn is_last(&self) -> Option<()> {
        (self.interval + 1 == self.ends.len()).then_some(())
    }

    /// Fills the buffer with at least 56 bits; two codes and their values have at most 54.
    #[inline(always)]
    fn fill(&mut self) -> Option<()> {
        let bytes = self.bytes.get(self.next..self.next + 8)?;
        let more = u64::from_be_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]);
        self.buffer |= more >> self.left;
        self.next += (63 - self.left as usize) >> 3;
        self.left |= 56;
        Some(())
    }

    #[inline(always)]
    fn take(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.left -= bits;
    }

    /// Takes the code of a first coefficient, and returns its value.
    #[inline(always)]
    fn first(&mut self, codes: &Codes) -> Option<i16> {
        let mut entry = codes.fast.entries[(self.buffer >> (64 - BITS)) as usize];
        if entry == LONG {
            entry = codes.long(self.buffer);
            if entry == LONG {
                return None;
            }
        }
        self.take(entry as u32 & 63);
        Some((entry >> 32) as i16)
    }

    /// Decodes coefficients from the place `at` on, and returns the place after them.
    #[inline(always)]
    fn some(&mut self, codes: &Codes, fast: &Fast, at: u32, block: &mut Block) -> Option<u32> {
        let mut entry = fast.entries[(self.buffer >> (64 - BITS)) as usize];
        // The code after the last coefficient is that of another block.
        if entry == LONG || at + (entry as u32 >> 8 & 0xff) >= 63 {
            entry = codes.long(self.buffer);
            if entry == LONG {
                return None;
            }
        }
        let (low, values) = (entry as u32, (entry >> 32) as u32);
        self.take(low & 63);
        let place = |after: u32| usize::from(fast.places[((at + after) & 0xff) as usize]);
        block[place(low >> 8)] = values as i16;
        block[place(low >> 24)] = (values >> 16) as i16;
        Some(at + (low >> 16 & 0xff))
    }

    /// Decodes the coefficients of a block, without quantisation, after that of the `first` before.
    #[inline(always)]
    pub(super) fn block(&mut self, codes: [&Codes; 2], first: &mut i16, block: &mut Block) -> Option<()> {
        let [of_first, of_others] = codes;
        block[..64].fill(0);
        self.fill()?;
        *first = first.wrapping_add(self.first(of_first)?);
        block[0] = *first;
        let (fast, mut at) = (&*of_others.fast, 1);
        loop {
            at = self.some(of_others, fast, at, block)?;
            if at >= 64 {
                break;
            }
            self.fill()?;
            at = self.some(of_others, fast, at, block)?;
            if at >= 64 {
                break;
            }
        }
        // A block ends with its last coefficient or with the code for its end.
        (at == 64 || at > END).then_some(())
    }
}
