//! Copies and fills.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::check::{self, Use};
use crate::counts::{self, Kind};
use crate::ffi::Outcome;
use crate::frame::api;
use crate::machine::MACHINE;
use crate::memory::{self, Allocation, View};
use crate::messages;
use crate::op::Op;
use crate::stream::{self, Stream};
use crate::{capture, codes, device};

const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;

/// The two sides of a copy of `size` bytes.
struct Copy {
    to: usize,
    from: usize,
    size: usize,
}

/// Returns whether bytes of this size are moved.
fn moves(size: usize) -> bool {
    MACHINE.hollow.is_none_or(|limit| size as u64 <= limit.0)
}

/// Fails if a range begins in an allocation that it leaves, or in freed memory.
fn within(at: usize, size: usize) -> Outcome<Option<Allocation>> {
    let found = memory::find(at);
    let fits = if found.is_some() { memory::covers(at, size) } else { !memory::is_freed(at) };
    if fits { Ok(found) } else { Err(codes::INVALID_VALUE) }
}

impl Copy {
    /// Puts the copy on a stream. Pageable memory of the host is read before this returns.
    ///
    /// # Safety
    /// Memory of the host is valid until the copy is done.
    unsafe fn put(self, kind: c_int, stream: &Arc<Stream>, waits: bool) -> Outcome {
        let Self { to, from, size } = self;
        if size == 0 {
            return Ok(());
        }
        stream.device().open()?;
        let (target, source) = (within(to, size)?, within(from, size)?);
        let is_device = |side: Option<Allocation>| side.is_some_and(|found| found.is_on_device());
        let is_right = match kind {
            HOST_TO_DEVICE => is_device(target),
            DEVICE_TO_HOST => is_device(source),
            DEVICE_TO_DEVICE => is_device(target) && is_device(source),
            _ => true,
        };
        if !is_right {
            return Err(codes::INVALID_VALUE);
        }
        if waits {
            capture::allow_unsafe()?;
        }
        if target.is_none() || source.is_none() {
            capture::forbid(stream)?;
        }
        if messages::is_tracing() {
            messages::trace(&format!("  copy {to:#x} <- {from:#x}, {size} bytes, stream {:#x}", stream.id));
        }
        // SAFETY: allocations keep their addresses, and the caller vouches for other memory.
        let (target_view, source_view) = unsafe { (View::trusted(to, size), View::trusted(from, size)) };
        let mut uses = Vec::new();
        uses.extend(target.map(|_| Use::write(to, size)));
        uses.extend(source.map(|_| Use::read(from, size)));
        let op = match (source, target) {
            _ if !moves(size) => Op::new("copy", Kind::Copy, || ()),
            (None, Some(_)) if !waits => {
                let staged = source_view.to_vec();
                Op::new("copy", Kind::Copy, move || {
                    // SAFETY: the closure owns the bytes.
                    target_view
                        .copy_from(unsafe { View::trusted(staged.as_ptr().expose_provenance(), size) });
                })
            }
            _ => {
                let is_host = |side: Option<Allocation>| side.is_some_and(|found| !found.is_on_device());
                let may_check = MACHINE.check && !waits && !capture::is_capturing(stream);
                let before = (may_check && is_host(source)).then(|| source_view.checksum());
                if may_check && is_host(target) && is_device(source) && !stream.is_idle() {
                    target_view.fill(0xee); // read too early, it has nonsense
                }
                Op::new("copy", Kind::Copy, move || {
                    if before.is_some_and(|before| before != source_view.checksum()) {
                        counts::count(Kind::Race, 1);
                        messages::report(&format!(
                            "race: {size} bytes of pinned memory at {from:#x} changed before they were copied: \
                             wait for the copy before you change them"
                        ));
                    }
                    target_view.copy_from(source_view);
                })
            }
        };
        stream.put(op.using(uses))?;
        if waits || target.is_none() {
            counts::count(Kind::HostWait, 1);
            stream.wait();
            check::host_waited(stream.id);
        }
        Ok(())
    }
}

fn fill(at: usize, byte: c_int, size: usize, stream: &Arc<Stream>) -> Outcome {
    stream.device().open()?;
    if size == 0 {
        return Ok(());
    }
    let view = View::of_device(at, size).ok_or(codes::INVALID_VALUE)?;
    let uses = vec![Use::write(at, size)];
    let work = move || {
        if moves(size) {
            view.fill(byte as u8);
        }
    };
    stream.put(Op::new("fill", Kind::Fill, work).using(uses))
}

api! { runtime:
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) {
        let copy = Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
        copy.put(kind, &stream::legacy(device::current()?), true)
    }
    fn cudaMemcpyAsync(to: *mut c_void, from: *const c_void, size: usize, kind: c_int, stream: *mut c_void) {
        let copy = Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
        copy.put(kind, &stream::of(stream)?, false)
    }
    fn cudaMemcpyPeerAsync(
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, size: usize,
        stream: *mut c_void,
    ) {
        let copy = Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
        for (at, device) in [(copy.to, to_device), (copy.from, from_device)] {
            let owner = memory::find(at).ok_or(codes::INVALID_VALUE)?.device;
            if owner != device::of(device)?.ordinal {
                counts::report_once(&format!("cudaMemcpyPeerAsync: {at:#x} is memory of GPU {owner}, not {device}"));
                return Err(codes::INVALID_VALUE);
            }
        }
        copy.put(DEVICE_TO_DEVICE, &stream::of(stream)?, false)
    }
    fn cudaMemcpy2DAsync(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize,
        height: usize, _kind: c_int, stream: *mut c_void,
    ) {
        if width == 0 || height == 0 {
            return Ok(());
        }
        let (to, from) = (to.expose_provenance(), from.expose_provenance());
        let (to_size, from_size) = (to_pitch * (height - 1) + width, from_pitch * (height - 1) + width);
        within(to, to_size)?;
        within(from, from_size)?;
        let work = move || {
            for row in (0..height).filter(|_| moves(width * height)) {
                // SAFETY: both ranges were checked or are the caller's, until the copy is done.
                let side = |at: usize| unsafe { View::trusted(at, width) };
                side(to + row * to_pitch).copy_from(side(from + row * from_pitch));
            }
        };
        let uses = vec![Use::write(to, to_size), Use::read(from, from_size)];
        stream::of(stream)?.put(Op::new("copy 2D", Kind::Copy, work).using(uses))
    }
    fn cudaMemset(to: *mut c_void, byte: c_int, size: usize) {
        fill(to.expose_provenance(), byte, size, &stream::legacy(device::current()?))
    }
    fn cudaMemsetAsync(to: *mut c_void, byte: c_int, size: usize, stream: *mut c_void) {
        fill(to.expose_provenance(), byte, size, &stream::of(stream)?)
    }
}
