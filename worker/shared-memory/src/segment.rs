//! Anonymous memory that every rank maps with a ticket: a header page, then one region per rank.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::anonymous;
use crate::error::{MemoryError, failed};

/// A mapping of the regions of all ranks: page-aligned, of equal lengths and initially zero.
///
/// Rust references to a region's bytes are never made, because other processes write to them. The bytes are
/// accessed through pointers, at times that the protocol of [`crate::Member`] reserves for one rank.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    layout: Layout,
    ticket: Ticket,
    file: File,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives as long as the value.
unsafe impl Send for Segment {}
// SAFETY: a shared Segment returns only addresses; the protocol of Member governs all access to the bytes.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a segment of `regions` regions with at least `region_bytes` bytes each, and its ticket. Other
    /// ranks can open the segment while this value lives. [`Segment::reserve`] allocates the memory.
    pub fn create(regions: usize, region_bytes: usize) -> Result<(Self, Ticket), MemoryError> {
        let layout = Layout::new(regions, region_bytes)?;
        let file = anonymous::create("dtrain")?;
        let mut nonce = [0u8; 16];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
            .map_err(failed("read random bytes (getrandom)"))?;
        let nonce = u128::from_ne_bytes(nonce);
        let ticket = Ticket {
            pid: std::process::id().into(),
            fd: file.as_raw_fd().into(),
            nonce: [(nonce >> 64) as i64, nonce as i64],
            regions: regions as i64,
            region_bytes: region_bytes as i64,
        };
        file.set_len(layout.mapped_bytes as u64).map_err(failed("set the size of shared memory"))?;
        file.write_all_at(&ticket.header(), 0).map_err(failed("write to shared memory"))?;
        // Without the seals a process could truncate the file, and SIGBUS would kill those that map it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(failed("seal shared memory"))?;
        Ok((Self::map(file, ticket, layout)?, ticket))
    }

    /// Opens the segment of a ticket.
    pub fn open(ticket: &Ticket) -> Result<Self, MemoryError> {
        let layout = Layout::new(ticket.regions as usize, ticket.region_bytes())?;
        let path = ticket.path();
        let wrong = |found| MemoryError::WrongFile(path.clone(), found);
        // In another container the path can be any file: opening a pipe must not block.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(failed(format!("open the shared memory of rank 0 at {path}")))?;
        let meta = file.metadata().map_err(failed(format!("read the metadata of {path}")))?;
        if !meta.is_file() || meta.len() != layout.mapped_bytes as u64 {
            return Err(wrong("a file of another kind or size"));
        }
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(wrong("a file that is not sealed"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(failed(format!("read {path}")))?;
        if header != ticket.header() {
            return Err(wrong("another run's memory"));
        }
        Self::map(file, *ticket, layout)
    }

    fn map(file: File, ticket: Ticket, layout: Layout) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                layout.mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(failed("map shared memory"))?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM).map_err(failed("map shared memory"))?;
        Ok(Self { base, layout, ticket, file })
    }

    /// Allocates the memory of one region, so that a lack of memory is an error here instead of a signal
    /// later. Each rank reserves its own region, which places it near that rank's processor.
    pub fn reserve(&self, region: usize) -> Result<(), MemoryError> {
        if region >= self.regions() {
            return Err(MemoryError::Size(region, self.layout.stride));
        }
        let (offset, stride) = (self.offset_in_file(region), self.layout.stride);
        let reserve = || rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, stride as u64);
        rustix::io::retry_on_intr(reserve).map_err(|error| MemoryError::NoMemory(stride, error.into()))
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.ticket.regions as usize
    }

    /// Returns the usable bytes of each region.
    pub fn region_bytes(&self) -> usize {
        self.ticket.region_bytes()
    }

    /// Returns the offset of `bytes` bytes at `address` in a region, or `None` if they are not inside it.
    pub fn offset_of(&self, region: usize, address: *const u8, bytes: usize) -> Option<usize> {
        if region >= self.regions() {
            return None;
        }
        let offset = (address as usize).checked_sub(self.region(region).as_ptr() as usize)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region_bytes()).then_some(offset)
    }

    /// Returns a number that is equal on all ranks and different for every segment.
    pub(crate) fn identity(&self) -> u64 {
        self.ticket.nonce[0].cast_unsigned()
    }

    /// Returns where a region begins in the file.
    pub(crate) fn offset_in_file(&self, region: usize) -> u64 {
        (self.layout.page_bytes + region * self.layout.stride) as u64
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the first byte of a region. `region` must be below [`Segment::regions`].
    pub(crate) fn region(&self, region: usize) -> NonNull<u8> {
        debug_assert!(region < self.regions());
        // SAFETY: the mapping holds the header page and `regions` strides.
        unsafe { self.base.add(self.layout.page_bytes + region * self.layout.stride) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping, and only this line unmaps it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.layout.mapped_bytes) };
    }
}

/// Identifies a segment for other processes of the machine: the process that created it, the file descriptor
/// there, and a random number that the file's header repeats, so that no other file is mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pid: i64,
    fd: i64,
    nonce: [i64; 2],
    regions: i64,
    region_bytes: i64,
}

/// `dtrainS` and the version of the layout.
const MAGIC: i64 = i64::from_be_bytes(*b"dtrainS\x01");
const HEADER_BYTES: usize = 5 * size_of::<i64>();

impl Ticket {
    /// The number of words of a ticket.
    pub const WORDS: usize = 6;

    /// Converts the ticket to words for sending. They are never all zero.
    pub fn to_words(&self) -> [i64; Self::WORDS] {
        let [high, low] = self.nonce;
        [self.pid, self.fd, high, low, self.regions, self.region_bytes]
    }

    /// Restores a ticket from its words.
    pub fn from_words([pid, fd, high, low, regions, region_bytes]: [i64; Self::WORDS]) -> Self {
        Self { pid, fd, nonce: [high, low], regions, region_bytes }
    }

    /// Returns the bytes of each rank's region.
    pub fn region_bytes(&self) -> usize {
        self.region_bytes as usize
    }

    /// Returns the path of the file for other processes of the same user.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", self.pid, self.fd)
    }

    /// Returns the header of the file.
    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let words = [MAGIC, self.nonce[0], self.nonce[1], self.regions, self.region_bytes];
        for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        header
    }
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    page_bytes: usize,
    /// The region's bytes, rounded up to whole pages.
    stride: usize,
    /// The header page and all regions.
    mapped_bytes: usize,
}

impl Layout {
    fn new(regions: usize, region_bytes: usize) -> Result<Self, MemoryError> {
        let page_bytes = rustix::param::page_size();
        let fit = || {
            let stride = region_bytes.checked_next_multiple_of(page_bytes)?;
            let mapped_bytes = stride.checked_mul(regions)?.checked_add(page_bytes)?;
            let usable = regions > 0 && region_bytes > 0 && isize::try_from(mapped_bytes).is_ok();
            usable.then_some(Self { page_bytes, stride, mapped_bytes })
        };
        fit().ok_or(MemoryError::Size(regions, region_bytes))
    }
}

/// One rank's region. It keeps the mapping alive for a tensor that is built over it.
#[derive(Debug)]
pub struct Region {
    segment: Arc<Segment>,
    index: usize,
}

impl Region {
    /// Returns region `index` of a segment, or `None` if the segment has fewer regions.
    pub fn new(segment: &Arc<Segment>, index: usize) -> Option<Self> {
        (index < segment.regions()).then(|| Self { segment: Arc::clone(segment), index })
    }

    /// Returns the first byte, page-aligned: valid for [`Region::bytes`] bytes while this value lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.segment.region(self.index).as_ptr()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.segment.region_bytes()
    }
}

#[cfg(test)]
mod tests;
