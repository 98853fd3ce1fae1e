//! Streams: queues of operations. An operation runs at once if its stream is idle and it cannot block; else a thread
//! of the stream runs it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Deref;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use crate::counts::{self, Kind};
use crate::device::{self, Device};
use crate::ffi::{self, Outcome, give};
use crate::frame::api;
use crate::op::{Key, Moment, Op, new_handle};
use crate::{capture, check, codes};

/// The flag of a stream that the legacy stream does not wait for.
const NON_BLOCKING: u32 = 1;

/// A stream.
pub(crate) struct Stream {
    key: Key,
    priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Deref for Stream {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Op>,
    submitted: u64,
    done: u64,
    is_busy: bool,
    has_thread: bool,
}

/// The legacy streams of the devices.
static LEGACY: LazyLock<Vec<Arc<Stream>>> = LazyLock::new(|| {
    let key = |device| Key { id: device, device, is_blocking: true };
    (0..device::all().len()).map(|device| Arc::new(Stream::new(key(device), 0))).collect()
});

/// The streams by their handles. The work of a destroyed stream continues.
static STREAMS: Mutex<BTreeMap<usize, Arc<Stream>>> = Mutex::new(BTreeMap::new());

/// Returns the stream of a handle. Null and the two special handles are the legacy stream of the current device.
pub(crate) fn of(handle: *mut c_void) -> Outcome<Arc<Stream>> {
    if handle.addr() <= 2 {
        return Ok(legacy(device::current()?));
    }
    let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    streams.get(&handle.addr()).cloned().ok_or(codes::INVALID_HANDLE)
}

/// Returns the legacy stream of a device.
pub(crate) fn legacy(device: &Device) -> Arc<Stream> {
    LEGACY[device.ordinal].clone()
}

/// Returns the streams of a device, the legacy stream first.
fn of_device(device: &Device) -> Vec<Arc<Stream>> {
    let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = streams.values().filter(|stream| stream.device == device.ordinal).cloned();
    std::iter::once(legacy(device)).chain(own).collect()
}

/// Waits until the device is idle.
pub(crate) fn wait_all(device: &Device) {
    for stream in of_device(device) {
        stream.wait();
        check::host_waited(stream.id);
    }
}

impl Stream {
    fn new(key: Key, priority: i32) -> Self {
        Self { key, priority, queue: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn device(&self) -> &'static Device {
        &device::all()[self.device]
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.done == queue.submitted
    }

    /// Waits until all operations of now are done.
    pub(crate) fn wait(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let target = queue.submitted;
        drop(
            self.changed
                .wait_while(queue, |queue| queue.done < target)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Runs an operation after those before it.
    fn submit(self: &Arc<Self>, op: Op) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.submitted += 1;
        if !op.blocks && queue.waiting.is_empty() && !queue.is_busy {
            // Below the lock: no other operation of this stream may begin before it is done.
            self.run(&op);
            queue.done += 1;
            return;
        }
        queue.waiting.push_back(op);
        if !queue.has_thread {
            queue.has_thread = true;
            let stream = self.clone();
            std::thread::spawn(move || stream.work());
        }
        self.changed.notify_all();
    }

    /// Runs operations until the process ends.
    fn work(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(op) = queue.waiting.pop_front() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.is_busy = true;
            drop(queue);
            self.run(&op);
            drop(op);
            queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.is_busy = false;
            queue.done += 1;
            self.changed.notify_all();
        }
    }

    fn run(&self, op: &Op) {
        let start = Instant::now();
        ffi::contain(&op.name, || (op.work)());
        if counts::has_timeline() {
            counts::event(&op.name, self.id, start);
        }
    }

    /// Puts an operation on the stream, or into the graph that the stream captures.
    pub(crate) fn put(self: &Arc<Self>, op: Op) -> Outcome {
        if self.is_legacy() {
            capture::forbid_legacy(self.device)?;
        }
        let Some(op) = capture::add(self, op)? else { return Ok(()) };
        self.order_with_legacy();
        check::access(self.id, &op.name, &op.uses);
        if let Some(kind) = op.kind {
            counts::count(kind, 1);
        }
        self.submit(op);
        Ok(())
    }

    /// Makes the stream wait for a moment of another one.
    pub(crate) fn wait_for(self: &Arc<Self>, moment: Arc<Moment>) {
        if !moment.is_over() {
            let work = Arc::new(move || moment.wait());
            self.submit(Op { name: "wait".into(), kind: None, work, uses: Vec::new(), blocks: true });
        }
    }

    /// The legacy stream and blocking streams wait for each other.
    fn order_with_legacy(self: &Arc<Self>) {
        let others = match (self.is_legacy(), self.is_blocking) {
            (true, _) => {
                of_device(self.device()).into_iter().skip(1).filter(|other| other.is_blocking).collect()
            }
            (false, true) => vec![legacy(self.device())],
            (false, false) => return,
        };
        for other in others {
            check::waited(self.id, &check::now(other.id));
            if !other.is_idle() {
                let moment = Arc::new(Moment::default());
                other.submit(moment.clone().into_op());
                self.wait_for(moment);
            }
        }
    }
}

fn create(to: *mut *mut c_void, flags: c_uint, priority: c_int) -> Outcome {
    let device = device::current()?;
    device.open()?;
    let id = new_handle();
    let key = Key { id, device: device.ordinal, is_blocking: flags & NON_BLOCKING == 0 };
    let stream = Arc::new(Stream::new(key, priority));
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner).insert(id, stream);
    // SAFETY: the caller of the exported function vouches for `to`.
    unsafe { give(to, std::ptr::without_provenance_mut(id)) }
}

api! { runtime:
    fn cudaStreamCreate(to: *mut *mut c_void) { create(to, 0, 0) }
    fn cudaStreamCreateWithFlags(to: *mut *mut c_void, flags: c_uint) { create(to, flags, 0) }
    fn cudaStreamCreateWithPriority(to: *mut *mut c_void, flags: c_uint, priority: c_int) {
        create(to, flags, priority)
    }
    fn cudaStreamDestroy(handle: *mut c_void) {
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        streams.remove(&handle.addr()).map(|_| ()).ok_or(codes::INVALID_HANDLE)
    }
    fn cudaStreamGetPriority(handle: *mut c_void, priority: *mut c_int) {
        give(priority, of(handle)?.priority)
    }
    fn cudaStreamSynchronize(handle: *mut c_void) {
        let stream = of(handle)?;
        capture::forbid(&stream)?;
        capture::allow_unsafe()?;
        counts::count(Kind::HostWait, 1);
        stream.wait();
        check::host_waited(stream.id);
        stream.device().healthy()
    }
    fn cudaStreamQuery(handle: *mut c_void) {
        let stream = of(handle)?;
        capture::forbid(&stream)?;
        capture::allow_unsafe()?;
        if !stream.is_idle() {
            return Err(codes::NOT_READY);
        }
        check::host_waited(stream.id);
        Ok(())
    }
    fn cudaLaunchHostFunc(handle: *mut c_void, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
        let argument = argument.expose_provenance();
        let call = move || function(std::ptr::with_exposed_provenance_mut(argument));
        of(handle)?.put(Op::new("host function", Kind::HostFunction, call).blocking())
    }
    fn cudaStreamAddCallback(
        handle: *mut c_void, function: extern "C" fn(*mut c_void, c_int, *mut c_void), argument: *mut c_void,
        _flags: c_uint,
    ) {
        let (stream, argument) = (handle.addr(), argument.expose_provenance());
        let call = move || {
            let argument = std::ptr::with_exposed_provenance_mut(argument);
            function(std::ptr::without_provenance_mut(stream), 0, argument);
        };
        of(handle)?.put(Op::new("callback", Kind::HostFunction, call).blocking())
    }
}
