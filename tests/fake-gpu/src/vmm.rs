//! The driver's virtual memory: reserved addresses that memory is mapped to, for expandable segments.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUmemAccessDesc, CUmemAllocationProp};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

use crate::driver::missing;
use crate::ffi::give;
use crate::frame::api;
use crate::memory::{self, CHUNK};
use crate::op::new_handle;
use crate::{books, codes, device, stream};

/// Memory of a GPU, with or without addresses.
struct Piece {
    size: usize,
    device: usize,
    mapped: usize,
    is_released: bool,
}

struct State {
    pieces: BTreeMap<usize, Piece>,
    /// By address: the size and the piece.
    maps: BTreeMap<usize, (usize, usize)>,
}

static STATE: Mutex<State> = Mutex::new(State { pieces: BTreeMap::new(), maps: BTreeMap::new() });

fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    act(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl State {
    /// Returns the memory of a piece that nothing uses any more.
    fn drop_unused(&mut self, handle: usize) {
        if let Some(piece) = self.pieces.get(&handle).filter(|piece| piece.is_released && piece.mapped == 0) {
            books::give(device::all()[piece.device].unit, piece.size as u64);
            self.pieces.remove(&handle);
        }
    }
}

/// Returns whether a range of the caller is one of whole chunks.
fn is_whole(at: usize, size: usize) -> bool {
    size > 0 && at.is_multiple_of(CHUNK) && size.is_multiple_of(CHUNK)
}

api! { library:
    fn cuMemGetAllocationGranularity(to: *mut usize, _properties: *const CUmemAllocationProp, _option: c_int) {
        give(to, CHUNK)
    }
    fn cuMemAddressReserve(to: *mut usize, size: usize, _alignment: usize, _at: usize, _flags: u64) {
        give(to, memory::reserve(size, ProtFlags::empty())?)
    }
    fn cuMemAddressFree(at: usize, size: usize) {
        memory::unmap(at, size);
        Ok(())
    }
    fn cuMemCreate(to: *mut usize, size: usize, properties: *const CUmemAllocationProp, _flags: u64) {
        let device = device::of((*properties).location.id)?;
        if !size.is_multiple_of(CHUNK) {
            return Err(codes::INVALID_VALUE);
        }
        if !books::take(device.unit, size as u64) {
            return Err(codes::OUT_OF_MEMORY);
        }
        let handle = new_handle();
        let piece = Piece { size, device: device.ordinal, mapped: 0, is_released: false };
        with(|state| state.pieces.insert(handle, piece));
        give(to, handle)
    }
    fn cuMemRelease(handle: usize) {
        with(|state| {
            state.pieces.get_mut(&handle).ok_or(codes::INVALID_VALUE)?.is_released = true;
            state.drop_unused(handle);
            Ok(())
        })
    }
    fn cuMemMap(at: usize, size: usize, _offset: usize, handle: usize, _flags: u64) {
        if !is_whole(at, size) {
            return Err(codes::INVALID_VALUE);
        }
        with(|state| {
            state.pieces.get_mut(&handle).ok_or(codes::INVALID_VALUE)?.mapped += 1;
            state.maps.insert(at, (size, handle));
            Ok(())
        })
    }
    fn cuMemSetAccess(at: usize, size: usize, access: *const CUmemAccessDesc, count: usize) {
        let owner = with(|state| {
            let (_, handle) = state.maps.get(&at)?;
            state.pieces.get(handle).map(|piece| piece.device)
        });
        let owner = owner.ok_or(codes::INVALID_VALUE)?;
        if !is_whole(at, size) {
            return Err(codes::INVALID_VALUE);
        }
        for index in 0..count {
            let reader = device::of((*access.add(index)).location.id)?;
            if reader.ordinal != owner {
                reader.reach(owner);
            }
        }
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(at);
        mm::mprotect(start, size, MprotectFlags::READ | MprotectFlags::WRITE).map_err(|_| codes::INVALID_VALUE)?;
        memory::map_virtual(at, size, owner);
        Ok(())
    }
    fn cuMemUnmap(at: usize, size: usize) {
        device::all().iter().filter(|device| device.has_context()).for_each(stream::wait_all);
        memory::unmap_virtual(at, size);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(at);
        // The addresses stay reserved; their pages go.
        mm::mmap_anonymous(start, size, ProtFlags::empty(), flags).map_err(|_| codes::INVALID_VALUE)?;
        with(|state| {
            let inside: Vec<usize> = state.maps.range(at..at + size).map(|(at, _)| *at).collect();
            for at in inside {
                if let Some((_, handle)) = state.maps.remove(&at) {
                    if let Some(piece) = state.pieces.get_mut(&handle) {
                        piece.mapped -= 1;
                    }
                    state.drop_unused(handle);
                }
            }
        });
        Ok(())
    }
    fn cuMemExportToShareableHandle(_to: *mut c_void, _handle: usize, _type: c_int, _flags: u64) {
        missing("cuMemExportToShareableHandle")
    }
    fn cuMemImportFromShareableHandle(_to: *mut usize, _from: *mut c_void, _type: c_int) {
        missing("cuMemImportFromShareableHandle")
    }
    fn cuMemRetainAllocationHandle(_to: *mut usize, _at: *mut c_void) { missing("cuMemRetainAllocationHandle") }
    fn cuMemGetAllocationPropertiesFromHandle(_to: *mut c_void, _handle: usize) {
        missing("cuMemGetAllocationPropertiesFromHandle")
    }
    fn cuMulticastCreate(_to: *mut usize, _properties: *const c_void) { missing("cuMulticastCreate") }
    fn cuMulticastAddDevice(_handle: usize, _device: c_uint) { missing("cuMulticastAddDevice") }
}
