//! NCCL between processes: communicators, groups and collectives that compute.

mod comm;
mod pairs;
mod reduce;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::nccl::sys::{ncclConfig_t, ncclResult_t as R, ncclUniqueId};

use self::comm::Comm;
use self::pairs::Transfer;
use crate::check::Use;
use crate::counts::Kind;
use crate::faults::{self, Fate};
use crate::ffi::{Code, Outcome, give};
use crate::frame::api;
use crate::memory::{self, Place, View};
use crate::op::{Op, new_handle};
use crate::stream;
use crate::{books, capture, counts, device};

const SUCCESS: Code = R::ncclSuccess as Code;
const CUDA_ERROR: Code = R::ncclUnhandledCudaError as Code;
const SYSTEM_ERROR: Code = R::ncclSystemError as Code;
const INVALID_ARGUMENT: Code = R::ncclInvalidArgument as Code;
const INVALID_USAGE: Code = R::ncclInvalidUsage as Code;
const REMOTE_ERROR: Code = R::ncclRemoteError as Code;
const IN_PROGRESS: Code = R::ncclInProgress as Code;

/// The version of the pinned libtorch's NCCL.
const VERSION: c_int = 22809;

/// A collective's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collective {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
}

/// A collective of one rank.
#[derive(Clone)]
struct Call {
    comm: Arc<Comm>,
    kind: Collective,
    send: usize,
    receive: usize,
    count: usize,
    element: c_int,
    operation: c_int,
    root: c_int,
}

impl Call {
    fn unit(&self) -> usize {
        reduce::size_of(self.element)
    }

    /// Returns the bytes that this rank sends and receives.
    fn sizes(&self) -> (usize, usize) {
        let (own, ranks) = (self.count * self.unit(), self.comm.place().map_or(1, |place| place.size));
        match self.kind {
            Collective::AllGather => (own, own * ranks),
            Collective::ReduceScatter => (own * ranks, own),
            _ => (own, own),
        }
    }

    /// Checks the call and puts it on the stream.
    fn start(self, stream: usize) -> Outcome {
        let comm = &self.comm;
        if comm.state.load(Ordering::Acquire) == IN_PROGRESS {
            return Err(fail("the communicator is not ready", INVALID_USAGE));
        }
        let (sent, received) = self.sizes();
        let is_outside = |at, size| size > 0 && View::of_device(at, size).is_none();
        if is_outside(self.send, sent) || is_outside(self.receive, received) {
            return Err(fail("a buffer is not in device memory", INVALID_ARGUMENT));
        }
        if device::current().map_err(|_| CUDA_ERROR)?.ordinal != comm.device {
            return Err(fail("the current device is not the communicator's", INVALID_USAGE));
        }
        let uses = vec![Use::read(self.send, sent), Use::write(self.receive, received)];
        let (comm, name) = (comm.clone(), format!("nccl{:?}", self.kind));
        put(&comm, stream, name, uses, move || self.run())
    }
}

/// Puts work of a communicator on a stream. Calls of one communicator run in the order of the program, also on
/// several streams.
fn put(
    comm: &Arc<Comm>,
    stream: usize,
    name: String,
    uses: Vec<Use>,
    work: impl Fn() + Send + Sync + 'static,
) -> Outcome {
    let stream = stream::of(std::ptr::without_provenance_mut(stream)).map_err(|_| INVALID_ARGUMENT)?;
    let fate = faults::fate("nccl", comm.number.fetch_add(1, Ordering::Relaxed) + 1);
    if let Fate::Fails(code) = fate {
        comm.break_down(code, "a fault of the machine's description");
        return Err(code);
    }
    // A graph's work runs at each launch, whose place in the order is unknown.
    let ticket = (!capture::is_capturing(&stream)).then(|| comm.ticket());
    let own = comm.clone();
    let work = move || {
        ticket.inspect(|ticket| own.wait_for_turn(*ticket));
        if fate == Fate::NeverEnds {
            own.wait_for_abort();
        }
        work();
        ticket.inspect(|ticket| own.end_turn(*ticket));
    };
    let op = Op { name: name.into(), kind: Some(Kind::Collective), work: Arc::new(work), uses, blocks: true };
    stream.put(op).map_err(|_| {
        ticket.inspect(|ticket| comm.end_turn(*ticket));
        fail("the stream failed", CUDA_ERROR)
    })
}

/// A call in a group.
enum Pending {
    Collective(Call, usize),
    Transfer(Transfer, usize),
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
    static LAST: RefCell<CString> = RefCell::default();
}

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());

/// Keeps the text of the thread's last error, and returns the code.
fn fail(why: &str, code: Code) -> Code {
    counts::report_once(&format!("NCCL: {why}"));
    LAST.set(CString::new(why).unwrap_or_default());
    code
}

fn of(handle: *mut c_void) -> Outcome<Arc<Comm>> {
    let comms = COMMS.lock().unwrap_or_else(PoisonError::into_inner);
    comms.get(&handle.addr()).cloned().ok_or(INVALID_ARGUMENT)
}

fn keep(to: *mut *mut c_void, comm: &Arc<Comm>) -> Outcome {
    let handle = new_handle();
    COMMS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, comm.clone());
    // SAFETY: the caller of the exported function vouches for `to`.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

/// Returns whether a configuration asks for calls that block; `otherwise` if it does not tell.
///
/// # Safety
/// `config` is null or valid.
unsafe fn blocks(config: *const ncclConfig_t, otherwise: bool) -> bool {
    // SAFETY: see above.
    let config = unsafe { config.as_ref() };
    match config.map(|config| config.blocking) {
        Some(0) => false,
        Some(1) => true,
        _ => otherwise,
    }
}

/// Connects a communicator, in the background if it must not block.
fn begin(comm: Arc<Comm>, blocking: bool, act: impl FnOnce(&Comm) -> Outcome + Send + 'static) -> Outcome {
    let connect = |comm: &Comm| match act(comm) {
        Ok(()) => comm.state.store(SUCCESS, Ordering::Release),
        Err(code) => comm.break_down(code, "the communicator could not connect"),
    };
    if !blocking {
        std::thread::spawn(move || connect(&comm));
        return Err(IN_PROGRESS);
    }
    connect(&comm);
    let state = comm.state.load(Ordering::Acquire);
    if state == SUCCESS { Ok(()) } else { Err(state) }
}

fn create(to: *mut *mut c_void, size: c_int, id: &ncclUniqueId, rank: c_int, blocking: bool) -> Outcome {
    let (size, rank) = (size.max(0) as usize, usize::try_from(rank).map_err(|_| INVALID_ARGUMENT)?);
    if rank >= size || size > comm::MOST {
        return Err(fail("the rank or the number of ranks is wrong", INVALID_ARGUMENT));
    }
    let device = device::current().map_err(|_| CUDA_ERROR)?;
    device.healthy().and_then(|()| device.open()).map_err(|_| CUDA_ERROR)?;
    let bytes = id.internal.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8(bytes).map_err(|_| INVALID_ARGUMENT)?;
    let comm = Arc::new(Comm::new(device.ordinal, blocking));
    keep(to, &comm)?;
    begin(comm, blocking, move |comm| comm.connect(&name, size, rank))
}

fn add(
    kind: Collective,
    buffers: (*const c_void, *mut c_void),
    (count, element): (usize, c_int),
    (operation, root): (c_int, c_int),
    comm: *mut c_void,
    stream: *mut c_void,
) -> Outcome {
    let (send, receive) = (buffers.0.expose_provenance(), buffers.1.expose_provenance());
    let call = Call { comm: of(comm)?, kind, send, receive, count, element, operation, root };
    if DEPTH.get() > 0 {
        PENDING.with_borrow_mut(|pending| pending.push(Pending::Collective(call, stream.addr())));
        return Ok(());
    }
    call.start(stream.addr())
}

/// Starts transfers, or leaves them to the end of the group.
fn exchange(transfers: Vec<Transfer>, stream: *mut c_void) -> Outcome {
    let transfers = transfers.into_iter();
    if DEPTH.get() > 0 {
        let pending = transfers.map(|transfer| Pending::Transfer(transfer, stream.addr()));
        PENDING.with_borrow_mut(|all| all.extend(pending));
        return Ok(());
    }
    pairs::start(transfers.map(|transfer| (transfer, stream.addr())).collect())
}

const SUM: c_int = 0;

api! { library:
    fn ncclGetVersion(to: *mut c_int) { give(to, VERSION) }
    fn ncclGetUniqueId(to: *mut ncclUniqueId) {
        let mut random = [0_u8; 12];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|_| SYSTEM_ERROR)?;
        // Ranks on other machines of this host meet here too.
        let path = books::folder().join(format!("nccl-{}", random.map(|byte| format!("{byte:02x}")).concat()));
        let text = path.to_str().filter(|path| path.len() < (*to).internal.len()).ok_or(SYSTEM_ERROR)?;
        to.write_bytes(0, 1);
        for (to, from) in (*to).internal.iter_mut().zip(text.bytes()) {
            *to = from as c_char;
        }
        Ok(())
    }
    fn ncclCommInitRank(to: *mut *mut c_void, size: c_int, id: ncclUniqueId, rank: c_int) {
        create(to, size, &id, rank, true)
    }
    fn ncclCommInitRankConfig(
        to: *mut *mut c_void, size: c_int, id: ncclUniqueId, rank: c_int, config: *const ncclConfig_t,
    ) {
        create(to, size, &id, rank, blocks(config, true))
    }
    fn ncclCommSplit(
        parent: *mut c_void, color: c_int, key: c_int, to: *mut *mut c_void, config: *const ncclConfig_t,
    ) {
        let parent = of(parent)?;
        let blocking = blocks(config, parent.blocking);
        let comm = Arc::new(Comm::new(parent.device, blocking));
        if color < 0 {
            give(to, std::ptr::null_mut())?;
        } else {
            keep(to, &comm)?;
        }
        begin(comm, blocking, move |comm| parent.split(color, key, comm))
    }
    fn ncclCommFinalize(comm: *mut c_void) { of(comm).map(|_| ()) }
    fn ncclCommDestroy(comm: *mut c_void) {
        COMMS.lock().unwrap_or_else(PoisonError::into_inner).remove(&comm.addr());
        Ok(())
    }
    fn ncclCommAbort(comm: *mut c_void) {
        of(comm)?.is_aborted.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn ncclCommGetAsyncError(comm: *mut c_void, to: *mut Code) { give(to, of(comm)?.state.load(Ordering::Acquire)) }
    fn ncclCommCount(comm: *mut c_void, to: *mut c_int) {
        give(to, of(comm)?.place().ok_or(INVALID_USAGE)?.size as c_int)
    }
    fn ncclCommUserRank(comm: *mut c_void, to: *mut c_int) {
        give(to, of(comm)?.place().ok_or(INVALID_USAGE)?.rank as c_int)
    }
    fn ncclCommCuDevice(comm: *mut c_void, to: *mut c_int) { give(to, of(comm)?.device as c_int) }
    fn ncclGroupStart() {
        DEPTH.set(DEPTH.get() + 1);
        Ok(())
    }
    fn ncclGroupEnd() {
        DEPTH.set(DEPTH.get().checked_sub(1).ok_or(INVALID_USAGE)?);
        if DEPTH.get() > 0 {
            return Ok(());
        }
        let mut transfers = Vec::new();
        for pending in PENDING.take() {
            match pending {
                Pending::Collective(call, stream) => call.start(stream)?,
                Pending::Transfer(transfer, stream) => transfers.push((transfer, stream)),
            }
        }
        pairs::start(transfers)
    }
    fn ncclAllReduce(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, operation: c_int,
        comm: *mut c_void, stream: *mut c_void,
    ) {
        add(Collective::AllReduce, (send, receive), (count, element), (operation, 0), comm, stream)
    }
    fn ncclBroadcast(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, root: c_int,
        comm: *mut c_void, stream: *mut c_void,
    ) {
        add(Collective::Broadcast, (send, receive), (count, element), (SUM, root), comm, stream)
    }
    fn ncclBcast(
        buffer: *mut c_void, count: usize, element: c_int, root: c_int, comm: *mut c_void,
        stream: *mut c_void,
    ) {
        add(Collective::Broadcast, (buffer, buffer), (count, element), (SUM, root), comm, stream)
    }
    fn ncclReduce(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, operation: c_int,
        root: c_int, comm: *mut c_void, stream: *mut c_void,
    ) {
        add(Collective::Reduce, (send, receive), (count, element), (operation, root), comm, stream)
    }
    fn ncclAllGather(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, comm: *mut c_void,
        stream: *mut c_void,
    ) {
        add(Collective::AllGather, (send, receive), (count, element), (SUM, 0), comm, stream)
    }
    fn ncclReduceScatter(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, operation: c_int,
        comm: *mut c_void, stream: *mut c_void,
    ) {
        add(Collective::ReduceScatter, (send, receive), (count, element), (operation, 0), comm, stream)
    }
    fn ncclSend(
        from: *const c_void, count: usize, element: c_int, peer: c_int, comm: *mut c_void,
        stream: *mut c_void,
    ) {
        exchange(vec![Transfer::new(true, from.expose_provenance(), (count, element), peer, of(comm)?)?], stream)
    }
    fn ncclRecv(
        to: *mut c_void, count: usize, element: c_int, peer: c_int, comm: *mut c_void, stream: *mut c_void,
    ) {
        exchange(vec![Transfer::new(false, to.expose_provenance(), (count, element), peer, of(comm)?)?], stream)
    }
    fn ncclAlltoAll(
        from: *const c_void, to: *mut c_void, count: usize, element: c_int, comm: *mut c_void,
        stream: *mut c_void,
    ) {
        let comm = of(comm)?;
        let (from, to, step) = (from.expose_provenance(), to.expose_provenance(), count * reduce::size_of(element));
        let peers = 0..comm.place().ok_or(INVALID_USAGE)?.size;
        let both = peers.flat_map(|peer| {
            let part = |sends, at: usize| {
                Transfer::new(sends, at + peer * step, (count, element), peer as c_int, comm.clone())
            };
            [part(true, from), part(false, to)]
        });
        exchange(both.collect::<Outcome<_>>()?, stream)
    }
    fn ncclMemAlloc(to: *mut *mut c_void, size: usize) {
        let at = memory::allocate(size, Place::Device).map_err(|_| CUDA_ERROR)?;
        give(to, std::ptr::with_exposed_provenance_mut(at))
    }
    fn ncclMemFree(at: *mut c_void) { memory::release(at.addr(), Place::Device).map_err(|_| CUDA_ERROR) }
    fn ncclCommRegister(_comm: *mut c_void, _at: *mut c_void, _size: usize, to: *mut *mut c_void) {
        give(to, std::ptr::null_mut())
    }
    fn ncclCommDeregister(_comm: *mut c_void, _handle: *mut c_void) { Ok(()) }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(comm: *mut c_void) -> *const c_char {
    let of_comm = of(comm).ok().and_then(|comm| comm.message());
    of_comm.unwrap_or_else(|| LAST.with_borrow(|last| last.as_ptr()))
}
