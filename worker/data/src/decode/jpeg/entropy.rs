//! The Huffman codes of sequential JPEG files.
//!
//! Most of the time of a JPEG file goes into them. A first pass removes stuffed bytes, and the way from a code to the
//! next has no branch. Whatever is not as it should be ends the decoding: the general decoder then judges the file.

use libjpeg_turbo_rs::common::huffman_table::HuffmanTable;
use libjpeg_turbo_rs::common::quant_table::ZIGZAG_ORDER;

use super::EOI;

/// Bits by which a table is read.
const BITS: u32 = 10;
/// Bits of a value of 8-bit files, at most.
const LONGEST_VALUE: u32 = 11;
/// An entry whose code is longer than [`BITS`], or has no meaning.
const LONG: u32 = 0;
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

/// The codes of one table. An entry is the run of zeros before a value, the bits of the value, and those of the code.
pub(super) struct Codes<'a> {
    entries: Box<[u32; 1 << BITS]>,
    table: &'a HuffmanTable,
    has_runs: bool,
}

impl<'a> Codes<'a> {
    /// Prepares a table of first coefficients, or of the others, whose symbols have runs.
    pub(super) fn new(table: &'a HuffmanTable, has_runs: bool) -> Self {
        let mut codes = Self { entries: Box::new([LONG; 1 << BITS]), table, has_runs };
        for bits in 0..1 << BITS {
            let (symbol, length) = table.lookup_fast((bits << (16 - BITS)) as u16);
            codes.entries[bits] = match codes.meaning(symbol) {
                Some((run, size)) if length > 0 => run << 16 | size << 8 | u32::from(length),
                _ => LONG,
            };
        }
        codes
    }

    /// Returns the run and the bits of the value; `None` for symbols that sequential files do not have.
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

    /// Takes a code and its value, and returns the run and the value.
    #[inline(always)]
    fn code(&mut self, codes: &Codes<'_>) -> Option<(u32, i16)> {
        let mut entry = codes.entries[(self.buffer >> (64 - BITS)) as usize];
        if entry == LONG {
            let (symbol, length) = codes.table.lookup((self.buffer >> 48) as u16).ok()?;
            let (run, size) = codes.meaning(symbol)?;
            entry = run << 16 | size << 8 | u32::from(length);
        }
        let (run, size, length) = (entry >> 16, entry >> 8 & 0xff, entry & 0xff);
        let coded = self.buffer << length;
        self.buffer <<= length + size;
        self.left -= length + size;
        // In two steps, since a shift by 64 bits is none. A value that begins with 0 is negative.
        let bits = (coded >> 1 >> (63 - size)) as i32;
        let is_negative = !(coded.cast_signed() >> 63) as i32;
        Some((run, (bits + (is_negative & (1 - (1 << size)))) as i16))
    }

    /// Decodes the coefficients of a block, without quantisation, after that of the `first` before.
    #[inline(always)]
    pub(super) fn block(&mut self, codes: [&Codes<'_>; 2], first: &mut i16, block: &mut Block) -> Option<()> {
        let [of_first, of_others] = codes;
        block[..64].fill(0);
        self.fill()?;
        *first = first.wrapping_add(self.code(of_first)?.1);
        block[0] = *first;
        let mut at = 1;
        loop {
            let (run, value) = self.code(of_others)?;
            at += run;
            block[usize::from(PLACES[(at & 0xff) as usize])] = value;
            at += 1;
            if at >= 64 {
                break;
            }
            self.fill()?;
            let (run, value) = self.code(of_others)?;
            at += run;
            block[usize::from(PLACES[(at & 0xff) as usize])] = value;
            at += 1;
            if at >= 64 {
                break;
            }
        }
        // A block ends with its last coefficient or with the code for its end.
        (at == 64 || at > END).then_some(())
    }
}
