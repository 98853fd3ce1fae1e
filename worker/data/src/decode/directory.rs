//! The first directory of a TIFF file, without its pixels. EXIF data has the same form.

/// Bytes of an entry, and of its count and of its value or the value's offset.
const ENTRY: usize = 12;
const WORD: usize = 4;

/// A directory of tags and values.
pub(super) struct Directory<'a> {
    bytes: &'a [u8],
    little: bool,
    /// The place of the first entry, and the number of entries.
    first: usize,
    entries: usize,
}

impl<'a> Directory<'a> {
    /// Opens the first directory; None if the bytes end before it.
    pub(super) fn open(bytes: &'a [u8]) -> Option<Self> {
        let little = match bytes.get(..2)? {
            b"II" => true,
            b"MM" => false,
            _ => return None,
        };
        let mut found = Self { bytes, little, first: 0, entries: 0 };
        if found.number(2, 2)? != 42 {
            return None;
        }
        let directory = usize::try_from(found.number(4, WORD)?).ok()?;
        found.entries = usize::try_from(found.number(directory, 2)?).ok()?;
        found.first = directory.checked_add(2)?;
        Some(found)
    }

    /// Returns the place of a tag's value, or of the value's offset if it is longer than a word.
    pub(super) fn place(&self, tag: u16) -> Option<usize> {
        Some(self.entry_of(tag)? + 4 + WORD)
    }

    /// Returns the first value of a tag of whole numbers.
    pub(super) fn number_of(&self, tag: u16) -> Option<u64> {
        let entry = self.entry_of(tag)?;
        let bytes = match self.number(entry + 2, 2)? {
            1 => 1,
            3 => 2,
            4 => 4,
            _ => return None,
        };
        let all = self.number(entry + 4, WORD)?.checked_mul(bytes as u64)?;
        let place = entry + 4 + WORD;
        match all <= WORD as u64 {
            true => self.number(place, bytes),
            false => self.number(usize::try_from(self.number(place, WORD)?).ok()?, bytes),
        }
    }

    /// Returns a number of two bytes in the file's byte order.
    pub(super) fn short_bytes(&self, number: u16) -> [u8; 2] {
        if self.little { number.to_le_bytes() } else { number.to_be_bytes() }
    }

    fn entry_of(&self, tag: u16) -> Option<usize> {
        for index in 0..self.entries {
            let at = index.checked_mul(ENTRY)?.checked_add(self.first)?;
            if self.number(at, 2)? == u64::from(tag) {
                return Some(at);
            }
        }
        None
    }

    fn number(&self, at: usize, length: usize) -> Option<u64> {
        let field = self.bytes.get(at..at.checked_add(length)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.little { field.iter().rev().fold(0, add) } else { field.iter().fold(0, add) })
    }
}
