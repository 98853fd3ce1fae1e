//! A stand-in for NCCL, to test the code around NCCL. Its ranks are threads of one process, and its streams
//! are queues with a thread each. It behaves as NCCL 2.28 without blocking: a background thread passes an
//! operation, or a group, to the stream, and the communicator is in progress until then; a split returns
//! success and stores its result later.
//!
//! The NCCL of tests/fake-gpu needs libtorch's CUDA set, a process for each rank, and kernels that compute nothing fill
//! its tensors. This one checks values on the CPU's libtorch, and decides when the background thread passes an operation.

mod background;
mod stream;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use self::background::Background;
pub(super) use self::background::{launch_immediately, launches, sleeps};
pub(super) use self::stream::{FakeStream, FakeTimeline};
use super::super::api::{Api, Code, CudaStream, Functions, IN_PROGRESS, REMOTE_ERROR, SUCCESS};

pub(super) const VERSION: i32 = 22_809;
const INVALID: Code = 4;

/// The functions of the stand-in.
pub(super) fn api() -> Api {
    let functions = Functions {
        get_version,
        get_unique_id,
        comm_init,
        comm_split,
        comm_finalize: succeed,
        comm_destroy: succeed,
        comm_abort,
        comm_async_error,
        error_string,
        last_error,
        group_start,
        group_end,
        all_reduce,
        broadcast,
        all_gather,
        reduce_scatter,
    };
    let mut api = Api::new(functions).expect("a version");
    api.sleep = background::sleep;
    api
}

/// The ranks with one unique id.
#[derive(Default)]
struct World {
    state: Mutex<WorldState>,
    changed: Condvar,
    lost: AtomicBool,
}

#[derive(Default)]
struct WorldState {
    arrived: usize,
    /// By operation: the inputs of the ranks, and how many ranks have read the result.
    rounds: HashMap<u64, (HashMap<usize, Vec<u8>>, usize)>,
}

struct Comm {
    id: [u8; 8],
    world: Arc<World>,
    rank: usize,
    size: usize,
    started: AtomicU64,
    aborted: Arc<AtomicBool>,
    splits: AtomicU64,
    background: Background,
}

static WORLDS: LazyLock<Mutex<HashMap<[u8; 8], Arc<World>>>> = LazyLock::new(Mutex::default);
static IDS: AtomicU64 = AtomicU64::new(1);

fn comm_of(raw: ncclComm_t) -> &'static Comm {
    assert!(!raw.is_null());
    // SAFETY: `join` created every communicator and leaked it.
    unsafe { &*raw.cast::<Comm>() }
}

fn world_id(unique_id: &[u8]) -> [u8; 8] {
    unique_id[..8].try_into().expect("eight bytes")
}

/// Simulates the death of a process of the group.
pub(super) fn kill_peer(unique_id: &[u8]) {
    let worlds = WORLDS.lock().expect("no panic");
    worlds[&world_id(unique_id)].lost.store(true, Ordering::SeqCst);
}

extern "C" fn get_version(out: *mut c_int) -> Code {
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { *out = VERSION };
    SUCCESS
}

extern "C" fn get_unique_id(out: *mut ncclUniqueId) -> Code {
    let mut id = ncclUniqueId { internal: [0; 128] };
    for (to, byte) in id.internal.iter_mut().zip(IDS.fetch_add(1, Ordering::SeqCst).to_le_bytes()) {
        *to = byte as c_char;
    }
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { *out = id };
    SUCCESS
}

fn join(id: [u8; 8], rank: usize, size: usize) -> &'static Comm {
    let world = Arc::clone(WORLDS.lock().expect("no panic").entry(id).or_default());
    world.state.lock().expect("no panic").arrived += 1;
    world.changed.notify_all();
    Box::leak(Box::new(Comm {
        id,
        world,
        rank,
        size,
        started: AtomicU64::new(0),
        aborted: Arc::default(),
        splits: AtomicU64::new(0),
        background: Background::default(),
    }))
}

impl Comm {
    fn wait_for_all(&self) {
        let mut state = self.world.state.lock().expect("no panic");
        while state.arrived < self.size {
            state = self.world.changed.wait(state).expect("no panic");
        }
    }

    /// Returns the pointer by which NCCL's callers know it.
    fn raw(&'static self) -> ncclComm_t {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

extern "C" fn comm_init(
    out: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> Code {
    // SAFETY: the caller's pointer is valid.
    let config = unsafe { &*config };
    let blocking = c_int::from(size == 1);
    if config.magic != 0xcafe_beef || config.blocking != blocking || config.size != size_of::<ncclConfig_t>()
    {
        return INVALID;
    }
    let unique_id = id.internal.map(|byte| byte as u8);
    let comm = join(world_id(&unique_id), rank as usize, size as usize);
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { *out = comm.raw() };
    match blocking {
        0 => IN_PROGRESS,
        _ => SUCCESS,
    }
}

extern "C" fn comm_split(
    raw: ncclComm_t,
    _color: c_int,
    _key: c_int,
    out: *mut ncclComm_t,
    _config: *mut ncclConfig_t,
) -> Code {
    let parent = comm_of(raw);
    let number = parent.splits.fetch_add(1, Ordering::SeqCst) + 1;
    let name = u64::from_le_bytes(parent.id) + (number << 32);
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { *out = std::ptr::null_mut() };
    let out = out as usize;
    let create = move || {
        let child = join(name.to_le_bytes(), parent.rank, parent.size);
        // It waits for the other ranks even after an abort: the worst case for a caller.
        child.wait_for_all();
        // SAFETY: the caller's pointer must stay valid until this write.
        unsafe { *(out as *mut ncclComm_t) = child.raw() };
    };
    match parent.size {
        1 => create(),
        _ => parent.background.run(create),
    }
    // ncclCommSplit ignores the result of its group.
    SUCCESS
}

extern "C" fn succeed(_comm: ncclComm_t) -> Code {
    SUCCESS
}

extern "C" fn comm_abort(raw: ncclComm_t) -> Code {
    let comm = comm_of(raw);
    comm.aborted.store(true, Ordering::SeqCst);
    comm.world.changed.notify_all();
    SUCCESS
}

extern "C" fn comm_async_error(raw: ncclComm_t, out: *mut Code) -> Code {
    let comm = comm_of(raw);
    let all_here = comm.world.state.lock().expect("no panic").arrived >= comm.size;
    let code = match (all_here, comm.world.lost.load(Ordering::SeqCst)) {
        (_, true) => REMOTE_ERROR,
        (true, _) if !comm.background.is_busy() => SUCCESS,
        _ => IN_PROGRESS,
    };
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { *out = code };
    SUCCESS
}

extern "C" fn error_string(code: Code) -> *const c_char {
    match code {
        REMOTE_ERROR => c"remote process exited or there was a network error".as_ptr(),
        INVALID => c"invalid argument".as_ptr(),
        _ => c"another error".as_ptr(),
    }
}

extern "C" fn last_error(_comm: ncclComm_t) -> *const c_char {
    std::ptr::null()
}

extern "C" fn group_start() -> Code {
    background::group_start();
    SUCCESS
}

extern "C" fn group_end() -> Code {
    background::group_end()
}

/// Queues a kernel that exchanges `from` with the other ranks and writes `result` of all parts to `to`.
fn enqueue(
    raw: ncclComm_t,
    stream: CudaStream,
    (from, from_bytes): (*const c_void, usize),
    (to, to_bytes): (*mut c_void, usize),
    result: impl FnOnce(&[&[u8]], usize) -> Vec<u8> + Send + 'static,
) -> Code {
    let comm = comm_of(raw);
    let (world, aborted) = (Arc::clone(&comm.world), Arc::clone(&comm.aborted));
    let (rank, size) = (comm.rank, comm.size);
    let round = comm.started.fetch_add(1, Ordering::SeqCst);
    let (from, to) = (from as usize, to as usize);
    let kernel = move || {
        // SAFETY: the group keeps the tensors with this memory until the operation has ended.
        let own = unsafe { std::slice::from_raw_parts(from as *const u8, from_bytes) }.to_vec();
        let mut state = world.state.lock().expect("no panic");
        state.rounds.entry(round).or_default().0.insert(rank, own);
        world.changed.notify_all();
        loop {
            if aborted.load(Ordering::SeqCst) {
                return;
            }
            if state.rounds[&round].0.len() == size {
                break;
            }
            let waited = world.changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.expect("no panic").0;
        }
        let (inputs, reads) = state.rounds.get_mut(&round).expect("inserted above");
        let by_rank: Vec<&[u8]> = (0..size).map(|rank| inputs[&rank].as_slice()).collect();
        let bytes = result(&by_rank, rank);
        assert_eq!(bytes.len(), to_bytes);
        *reads += 1;
        if *reads == size {
            state.rounds.remove(&round);
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, to_bytes) };
    };
    // SAFETY: every stream here is a FakeStream, which lives until the process ends.
    let stream: &'static FakeStream = unsafe { &*stream.cast::<FakeStream>() };
    background::enqueue(comm, stream, Box::new(kernel))
}

fn width(kind: c_int) -> usize {
    match kind {
        k if k == ncclDataType_t::ncclFloat32 as c_int || k == ncclDataType_t::ncclInt32 as c_int => 4,
        k if k == ncclDataType_t::ncclFloat64 as c_int || k == ncclDataType_t::ncclInt64 as c_int => 8,
        k if k == ncclDataType_t::ncclFloat16 as c_int || k == ncclDataType_t::ncclBfloat16 as c_int => 2,
        _ => 1,
    }
}

/// Reduces parts of float32 or int64, which is enough for the tests.
fn reduce(parts: &[&[u8]], kind: c_int, op: c_int) -> Vec<u8> {
    fn fold<T: Copy, const N: usize>(
        parts: &[&[u8]],
        read: fn([u8; N]) -> T,
        write: fn(T) -> [u8; N],
        join: impl Fn(T, T) -> T,
    ) -> Vec<u8> {
        let at = |part: &[u8], index: usize| read(part[index * N..][..N].try_into().expect("N bytes"));
        (0..parts[0].len() / N)
            .flat_map(|index| {
                let first = at(parts[0], index);
                write(parts[1..].iter().fold(first, |sum, part| join(sum, at(part, index))))
            })
            .collect()
    }
    let is = |which: ncclRedOp_t| op == which as c_int;
    if kind == ncclDataType_t::ncclFloat32 as c_int {
        return fold(parts, f32::from_le_bytes, f32::to_le_bytes, |a, b| {
            match (is(ncclRedOp_t::ncclMin), is(ncclRedOp_t::ncclMax)) {
                (true, _) => a.min(b),
                (_, true) => a.max(b),
                _ => a + b,
            }
        });
    }
    assert_eq!(kind, ncclDataType_t::ncclInt64 as c_int, "unsupported dtype");
    fold(parts, i64::from_le_bytes, i64::to_le_bytes, |a, b| a + b)
}

extern "C" fn all_reduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: ncclComm_t,
    stream: CudaStream,
) -> Code {
    let bytes = count * width(kind);
    enqueue(comm, stream, (from, bytes), (to, bytes), move |parts, _| reduce(parts, kind, op))
}

extern "C" fn broadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: ncclComm_t,
    stream: CudaStream,
) -> Code {
    let bytes = count * width(kind);
    enqueue(comm, stream, (from, bytes), (to, bytes), move |parts, _| parts[root as usize].to_vec())
}

extern "C" fn all_gather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    comm_: ncclComm_t,
    stream: CudaStream,
) -> Code {
    let bytes = count * width(kind);
    let size = comm_of(comm_).size;
    enqueue(comm_, stream, (from, bytes), (to, bytes * size), |parts, _| parts.concat())
}

extern "C" fn reduce_scatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm_: ncclComm_t,
    stream: CudaStream,
) -> Code {
    let bytes = count * width(kind);
    let size = comm_of(comm_).size;
    enqueue(comm_, stream, (from, bytes * size), (to, bytes), move |parts, rank| {
        reduce(parts, kind, op)[rank * bytes..][..bytes].to_vec()
    })
}
