//! Events: moments in the order of a stream.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::check::{self, Clock};
use crate::counts::{self, Kind};
use crate::ffi::{Outcome, give};
use crate::frame::api;
use crate::op::{Moment, new_handle};
use crate::{capture, codes, device, stream};

const DISABLE_TIMING: u32 = 2;

/// The last record of an event.
#[derive(Clone)]
enum Recorded {
    Never,
    /// A moment, and what is done then.
    Moment(Arc<Moment>, Clock),
    /// Nodes of a capture.
    Captured {
        capture: usize,
        nodes: Vec<usize>,
    },
}

struct Event {
    flags: c_uint,
    device: usize,
    recorded: Mutex<Recorded>,
}

impl Event {
    fn recorded(&self) -> Recorded {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the moment to wait for on the host, which a capture forbids.
    fn moment(&self, what: &str) -> Outcome<Option<(Arc<Moment>, Clock)>> {
        let recorded = self.recorded();
        if let Recorded::Captured { capture, .. } = recorded {
            capture::invalidate(capture);
            return Err(codes::CAPTURED_EVENT);
        }
        capture::allow_unsafe()?;
        match recorded {
            Recorded::Moment(moment, clock) => Ok(Some((moment, clock))),
            _ => {
                check::unrecorded(what);
                Ok(None)
            }
        }
    }
}

static EVENTS: Mutex<BTreeMap<usize, Arc<Event>>> = Mutex::new(BTreeMap::new());

fn of(handle: *mut c_void) -> Outcome<Arc<Event>> {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    events.get(&handle.addr()).cloned().ok_or(codes::INVALID_HANDLE)
}

fn create(to: *mut *mut c_void, flags: c_uint) -> Outcome {
    let device = device::current()?;
    device.open()?;
    let handle = new_handle();
    let event = Arc::new(Event { flags, device: device.ordinal, recorded: Mutex::new(Recorded::Never) });
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, event);
    // SAFETY: the caller of the exported function vouches for `to`.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

fn record(event: *mut c_void, stream: *mut c_void) -> Outcome {
    let (event, stream) = (of(event)?, stream::of(stream)?);
    if event.device != stream.device {
        return Err(codes::INVALID_HANDLE);
    }
    let set = |recorded| *event.recorded.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
    if let Some((capture, nodes)) = capture::position(&stream)? {
        set(Recorded::Captured { capture, nodes });
        return Ok(());
    }
    let moment = Arc::new(Moment::default());
    stream.put(moment.clone().into_op())?;
    set(Recorded::Moment(moment, check::now(stream.id)));
    Ok(())
}

fn wait(stream: *mut c_void, event: *mut c_void) -> Outcome {
    let (stream, event) = (stream::of(stream)?, of(event)?);
    match event.recorded() {
        Recorded::Captured { capture, nodes } => capture::join(&stream, capture, &nodes),
        Recorded::Moment(moment, clock) => {
            capture::isolate(&stream)?;
            check::waited(stream.id, &clock);
            stream.wait_for(moment);
            Ok(())
        }
        Recorded::Never => {
            check::unrecorded("cudaStreamWaitEvent");
            Ok(())
        }
    }
}

api! { runtime:
    fn cudaEventCreate(to: *mut *mut c_void) { create(to, 0) }
    fn cudaEventCreateWithFlags(to: *mut *mut c_void, flags: c_uint) { create(to, flags) }
    fn cudaEventDestroy(handle: *mut c_void) {
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
        Ok(())
    }
    fn cudaEventRecord(event: *mut c_void, stream: *mut c_void) { record(event, stream) }
    fn cudaEventRecordWithFlags(event: *mut c_void, stream: *mut c_void, _flags: c_uint) { record(event, stream) }
    fn cudaStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) { wait(stream, event) }
    fn cudaEventQuery(handle: *mut c_void) {
        match of(handle)?.moment("cudaEventQuery")? {
            Some((moment, _)) if !moment.is_over() => Err(codes::NOT_READY),
            Some((_, clock)) => {
                check::host_waited_for(&clock);
                Ok(())
            }
            None => Ok(()),
        }
    }
    fn cudaEventSynchronize(handle: *mut c_void) {
        let event = of(handle)?;
        let moment = event.moment("cudaEventSynchronize")?;
        counts::count(Kind::HostWait, 1);
        if let Some((moment, clock)) = moment {
            moment.wait();
            check::host_waited_for(&clock);
        }
        device::of(event.device as c_int)?.healthy()
    }
    fn cudaEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) {
        let (start, end) = (of(start)?, of(end)?);
        let (Recorded::Moment(first, _), Recorded::Moment(second, _)) = (start.recorded(), end.recorded()) else {
            return Err(codes::INVALID_HANDLE);
        };
        if (start.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(codes::INVALID_HANDLE);
        }
        let (Some(first), Some(second)) = (first.time(), second.time()) else { return Err(codes::NOT_READY) };
        let signed = second.saturating_duration_since(first).as_secs_f32()
            - first.saturating_duration_since(second).as_secs_f32();
        give(milliseconds, signed * 1e3)
    }
}
