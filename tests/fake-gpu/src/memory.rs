//! Allocations: device memory is host memory that the books charge to a GPU.
//!
//! Freed memory stays reserved, without pages: a stale pointer is found instead of crashing the process.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::runtime::sys::{cudaMemoryType as T, cudaPointerAttributes};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::counts::{self, Kind};
use crate::ffi::{Outcome, give};
use crate::frame::api;
use crate::{books, capture, check, codes, device, stream};

pub(crate) const MIB: usize = 1 << 20;
/// The unit of addresses and of virtual memory.
pub(crate) const CHUNK: usize = 2 * MIB;
/// The most address space that freed memory keeps.
const MOST_FREED: usize = 4 << 40;

/// The kind of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    Host,
    /// Host memory of the program, registered for copies.
    Registered,
    /// A mapped chunk of reserved addresses.
    Virtual,
}

/// An allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) base: usize,
    pub(crate) size: usize,
    pub(crate) device: usize,
    pub(crate) place: Place,
}

impl Allocation {
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.place, Place::Device | Place::Virtual)
    }
}

struct Memory {
    live: BTreeMap<usize, Allocation>,
    freed: BTreeMap<usize, usize>,
    freed_bytes: usize,
}

static MEMORY: Mutex<Memory> =
    Mutex::new(Memory { live: BTreeMap::new(), freed: BTreeMap::new(), freed_bytes: 0 });

fn with<R>(act: impl FnOnce(&mut Memory) -> R) -> R {
    act(&mut MEMORY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the allocation that has an address.
pub(crate) fn find(at: usize) -> Option<Allocation> {
    with(|memory| memory.find(at))
}

/// Returns whether all bytes are in one allocation; chunks of virtual memory that touch count as one.
pub(crate) fn covers(at: usize, size: usize) -> bool {
    with(|memory| memory.covers(at, size))
}

/// Returns whether an address is in freed memory.
pub(crate) fn is_freed(at: usize) -> bool {
    with(|memory| memory.freed.range(..=at).next_back().is_some_and(|(base, size)| at < base + size))
}

impl Memory {
    fn find(&self, at: usize) -> Option<Allocation> {
        self.live
            .range(..=at)
            .next_back()
            .map(|(_, found)| *found)
            .filter(|found| at < found.base + found.size)
    }

    fn covers(&self, at: usize, size: usize) -> bool {
        let Some(end) = at.checked_add(size) else { return false };
        let mut next = at;
        while let Some(found) = self.find(next) {
            next = found.base + found.size;
            if end <= next {
                return true;
            }
            if found.place != Place::Virtual {
                return false;
            }
        }
        false
    }
}

/// A range of memory that operations read and write, as a device does: without locks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) at: usize,
    pub(crate) size: usize,
}

impl View {
    /// Returns the view of live memory of a device.
    pub(crate) fn of_device(at: usize, size: usize) -> Option<Self> {
        let is_on_device = find(at).is_some_and(|found| found.is_on_device());
        (is_on_device && covers(at, size)).then_some(Self { at, size })
    }

    /// Returns the view of memory that the caller vouches for.
    ///
    /// # Safety
    /// The range stays valid for reads, and for writes where the caller of CUDA asked for them, until the view's
    /// last use. Concurrent accesses are races of the program, as on a device.
    pub(crate) unsafe fn trusted(at: usize, size: usize) -> Self {
        Self { at, size }
    }

    pub(crate) fn read<const N: usize>(self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.size);
        // SAFETY: in the range, which stays mapped: freed memory keeps its addresses.
        unsafe { std::ptr::with_exposed_provenance::<[u8; N]>(self.at + offset).read_unaligned() }
    }

    pub(crate) fn write<const N: usize>(self, offset: usize, bytes: [u8; N]) {
        assert!(offset + N <= self.size);
        // SAFETY: as in `read`.
        unsafe { std::ptr::with_exposed_provenance_mut::<[u8; N]>(self.at + offset).write_unaligned(bytes) };
    }

    /// Returns elements of `N` bytes that nothing changes meanwhile.
    pub(crate) fn elements<'a, const N: usize>(self, first: usize, count: usize) -> &'a [[u8; N]] {
        assert!(N * (first + count) <= self.size);
        // SAFETY: as in `read`; the caller has arranged that nothing writes there.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.at + N * first), count) }
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.at), self.size) }.to_vec()
    }

    /// Copies as many bytes as the smaller view has.
    pub(crate) fn copy_from(self, from: Self) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.at);
        // SAFETY: both ranges are valid, see `trusted`; they may overlap.
        unsafe { std::ptr::copy(std::ptr::with_exposed_provenance(from.at), to, self.size.min(from.size)) };
    }

    /// Fills with a byte. Zeroes of whole pages take no memory.
    pub(crate) fn fill(self, byte: u8) {
        let (first, last) = (self.at.next_multiple_of(4096), (self.at + self.size) & !4095);
        let is_sparse = byte == 0 && self.size >= 4 * MIB;
        let parts = if is_sparse {
            [(self.at, first), (last, self.at + self.size)]
        } else {
            [(self.at, self.at + self.size), (0, 0)]
        };
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            // SAFETY: as in `read`.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(from).write_bytes(byte, to - from) };
        }
        if is_sparse {
            drop_pages(first, last - first);
        }
    }

    /// Returns a sum that differs if a byte changed.
    pub(crate) fn checksum(self) -> u64 {
        let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x100_0000_01b3);
        let words = (0..self.size / 8).map(|i| u64::from_le_bytes(self.read(8 * i)));
        let rest = (self.size & !7..self.size).map(|i| u64::from(self.read::<1>(i)[0]));
        words.chain(rest).fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// Gives the pages of private anonymous memory back; it then reads as zero.
fn drop_pages(at: usize, size: usize) {
    // SAFETY: whole pages of memory that this module mapped; a view vouches for them.
    let _ = unsafe { mm::madvise(std::ptr::with_exposed_provenance_mut(at), size, Advice::LinuxDontNeed) };
}

/// Reserves addresses without memory, at a multiple of [`CHUNK`].
pub(crate) fn reserve(size: usize, access: ProtFlags) -> Outcome<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), size + CHUNK, access, flags) };
    let start = mapped.map_err(|_| codes::OUT_OF_MEMORY)?.expose_provenance();
    let base = start.next_multiple_of(CHUNK);
    unmap(start, base - start);
    unmap(base + size, start + CHUNK - base);
    Ok(base)
}

pub(crate) fn unmap(at: usize, size: usize) {
    if size > 0 {
        // SAFETY: the range belongs to a mapping of `reserve`, and nothing uses it any more.
        let _ = unsafe { mm::munmap(std::ptr::with_exposed_provenance_mut(at), size) };
    }
}

/// Allocates on the current device, or pinned memory of the host.
pub(crate) fn allocate(size: usize, place: Place) -> Outcome<usize> {
    let device = device::current()?;
    device.open()?;
    if size == 0 {
        return Ok(0);
    }
    let size = size.next_multiple_of(if size >= MIB { CHUNK } else { 4096 });
    let is_charged = place == Place::Device;
    if is_charged && !books::take(device.unit, size as u64) {
        return Err(codes::OUT_OF_MEMORY);
    }
    let base = reserve(size, ProtFlags::READ | ProtFlags::WRITE).inspect_err(|_| {
        if is_charged {
            books::give(device.unit, size as u64);
        }
    })?;
    counts::count(Kind::Malloc, 1);
    with(|memory| memory.live.insert(base, Allocation { base, size, device: device.ordinal, place }));
    Ok(base)
}

/// Frees an allocation of the given kind.
pub(crate) fn release(at: usize, place: Place) -> Outcome {
    let found = with(|memory| {
        let found = memory.live.get(&at).copied().filter(|found| found.place == place)?;
        memory.live.remove(&at);
        memory.freed.insert(at, found.size);
        memory.freed_bytes += found.size;
        while memory.freed_bytes > MOST_FREED {
            let Some((old, size)) = memory.freed.pop_first() else { break };
            memory.freed_bytes -= size;
            unmap(old, size);
        }
        Some(found)
    });
    let found = found.ok_or(codes::INVALID_VALUE)?;
    if place == Place::Device {
        books::give(device::all()[found.device].unit, found.size as u64);
    }
    drop_pages(found.base, found.size);
    check::forget(found.base, found.size);
    counts::count(Kind::Free, 1);
    Ok(())
}

/// Makes reserved addresses usable as memory of a device.
pub(crate) fn map_virtual(at: usize, size: usize, device: usize) {
    with(|memory| {
        for base in (at..at + size).step_by(CHUNK) {
            memory.live.insert(base, Allocation { base, size: CHUNK, device, place: Place::Virtual });
        }
    });
}

/// Takes addresses back that [`map_virtual`] made usable.
pub(crate) fn unmap_virtual(at: usize, size: usize) {
    with(|memory| memory.live.retain(|base, _| *base < at || *base >= at + size));
    check::forget(at, size);
}

api! { runtime:
    fn cudaMalloc(to: *mut *mut c_void, size: usize) {
        capture::allow_unsafe()?;
        give(to, std::ptr::with_exposed_provenance_mut(allocate(size, Place::Device)?))
    }
    fn cudaFree(at: *mut c_void) {
        let device = device::current()?;
        device.open()?;
        if at.is_null() {
            return Ok(());
        }
        capture::allow_unsafe()?;
        stream::wait_all(device);
        release(at.addr(), Place::Device)
    }
    fn cudaMallocAsync(to: *mut *mut c_void, size: usize, _stream: *mut c_void) {
        give(to, std::ptr::with_exposed_provenance_mut(allocate(size, Place::Device)?))
    }
    fn cudaFreeAsync(at: *mut c_void, handle: *mut c_void) {
        let stream = stream::of(handle)?;
        let found = find(at.addr()).ok_or(codes::INVALID_VALUE)?;
        check::access(stream.id, "cudaFreeAsync", &[check::Use::write(found.base, found.size)]);
        stream.wait();
        release(at.addr(), Place::Device)
    }
    fn cudaHostAlloc(to: *mut *mut c_void, size: usize, _flags: c_uint) {
        capture::allow_unsafe()?;
        give(to, std::ptr::with_exposed_provenance_mut(allocate(size, Place::Host)?))
    }
    fn cudaFreeHost(at: *mut c_void) {
        capture::allow_unsafe()?;
        stream::wait_all(device::current()?);
        if at.is_null() { Ok(()) } else { release(at.addr(), Place::Host) }
    }
    fn cudaHostRegister(at: *mut c_void, size: usize, _flags: c_uint) {
        let device = device::current()?;
        device.open()?;
        capture::allow_unsafe()?;
        let base = at.expose_provenance();
        let registered = Allocation { base, size, device: device.ordinal, place: Place::Registered };
        with(|memory| {
            if memory.find(base).is_some() {
                return Err(codes::REGISTERED);
            }
            memory.live.insert(base, registered);
            Ok(())
        })
    }
    fn cudaHostUnregister(at: *mut c_void) {
        let removed = with(|memory| {
            memory.live.get(&at.addr()).filter(|found| found.place == Place::Registered)?;
            memory.live.remove(&at.addr())
        });
        let removed = removed.ok_or(codes::NOT_REGISTERED)?;
        check::forget(removed.base, removed.size);
        Ok(())
    }
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        let device = device::current()?;
        device.open()?;
        give(free, books::free(device.unit) as usize)?;
        give(total, device.unit().memory as usize)
    }
    fn cudaPointerGetAttributes(to: *mut cudaPointerAttributes, at: *const c_void) {
        to.write_bytes(0, 1);
        let to = &mut *to;
        match find(at.addr()) {
            None => {
                (to.type_, to.device) = (T::cudaMemoryTypeUnregistered, -2);
                to.hostPointer = at.cast_mut();
            }
            Some(found) => {
                let is_host = !found.is_on_device();
                to.type_ = if is_host { T::cudaMemoryTypeHost } else { T::cudaMemoryTypeDevice };
                to.device = found.device as c_int;
                to.devicePointer = at.cast_mut();
                to.hostPointer = if is_host { at.cast_mut() } else { std::ptr::null_mut() };
            }
        }
        Ok(())
    }
    fn cudaMemPoolGetAttribute(_pool: *mut c_void, _attribute: c_int, value: *mut u64) { give(value, 0) }
    fn cudaMemPoolSetAttribute(_pool: *mut c_void, _attribute: c_int, _value: *mut c_void) { Ok(()) }
    fn cudaMemPoolSetAccess(_pool: *mut c_void, _access: *const c_void, _count: usize) { Ok(()) }
    fn cudaMemPoolTrimTo(_pool: *mut c_void, _size: usize) { Ok(()) }
}
