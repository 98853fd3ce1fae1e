//! What a rank must know to open the memory that another rank made.

/// Names a segment to the other processes of the machine: the process that made it, its file there, and a random number
/// that the file begins with, so that no other file is taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) pid: i32,
    pub(crate) fd: i32,
    pub(crate) nonce: [u64; 2],
    pub(crate) regions: usize,
    pub(crate) region_bytes: usize,
}

impl Ticket {
    /// How many words a ticket takes on its way.
    pub const WORDS: usize = 6;

    /// The ticket as whole numbers, to be sent to the other ranks.
    pub fn to_words(&self) -> [i64; Self::WORDS] {
        [
            i64::from(self.pid),
            i64::from(self.fd),
            self.nonce[0].cast_signed(),
            self.nonce[1].cast_signed(),
            self.regions as i64,
            self.region_bytes as i64,
        ]
    }

    /// The ticket that became `words`, or `None` for words that no ticket becomes.
    pub fn from_words(words: &[i64]) -> Option<Self> {
        let &[pid, fd, high, low, regions, region_bytes] = words else {
            return None;
        };
        Some(Self {
            pid: i32::try_from(pid).ok().filter(|pid| *pid > 0)?,
            fd: i32::try_from(fd).ok().filter(|fd| *fd >= 0)?,
            nonce: [high.cast_unsigned(), low.cast_unsigned()],
            regions: usize::try_from(regions).ok().filter(|regions| *regions > 0)?,
            region_bytes: usize::try_from(region_bytes).ok().filter(|bytes| *bytes > 0)?,
        })
    }

    /// The bytes of each rank's region.
    pub fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    /// Where the file is, seen from another process of the same user.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", self.pid, self.fd)
    }

    /// What the file begins with.
    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let words = [MAGIC, self.nonce[0], self.nonce[1], self.regions as u64, self.region_bytes as u64];
        for (place, word) in header.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        header
    }
}

/// Five words.
pub(crate) const HEADER_BYTES: usize = 40;
/// `dtrainS` and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"dtrainS\x01");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_ticket_survives_its_journey() {
        let ticket =
            Ticket { pid: 4_194_304, fd: 7, nonce: [u64::MAX, 1 << 63], regions: 3, region_bytes: 1 << 40 };
        assert_eq!(Ticket::from_words(&ticket.to_words()).unwrap(), ticket);
    }

    #[test]
    fn words_that_no_ticket_becomes_are_refused() {
        let good = [1, 3, 0, 0, 2, 4096];
        assert!(Ticket::from_words(&good).is_some());
        for (place, bad) in [(0, 0), (0, 1 << 40), (1, -1), (4, 0), (5, -5), (5, 0)] {
            let mut words = good;
            words[place] = bad;
            assert_eq!(Ticket::from_words(&words), None, "{words:?}");
        }
        assert_eq!(Ticket::from_words(&good[..5]), None);
    }
}
