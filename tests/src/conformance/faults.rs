//! Checks of every backend when something fails.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use dtrain_common::env::WorkerEnv;
use dtrain_torch_shim::store::TcpStore;
use dtrain_worker::collectives::{
    CollectiveError, ProcessGroup, ReduceOp, Rendezvous, RendezvousError, SharedGroup, Transport, Work,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tch::{Device, Kind, Tensor};

use super::suite::all_reduce;
use super::values::{expected, same, values};
use super::{Failure, Group, device, uses_shared_memory};

/// The signal for writing beyond the file-size limit; 25 on all Linux architectures except MIPS.
const SIGXFSZ: i32 = 25;

/// The limit for survivors to notice: much longer than needed, much shorter than the groups' time-out.
const NOTICED: Duration = Duration::from_secs(30);

/// Returns a tensor of this rank's values, in shared memory if `shared` (the same on all ranks).
fn filled(g: &dyn ProcessGroup, shared: bool, size: i64) -> Result<Tensor, Failure> {
    let own = values(g.rank(), size, Kind::Float);
    if !shared {
        return Ok(own);
    }
    let mut tensor = g.allocate(size as usize, Kind::Float)?.ok_or("nothing was allocated")?;
    tensor.copy_(&own);
    Ok(tensor)
}

fn is_last(g: &dyn ProcessGroup) -> bool {
    g.rank() + 1 == g.size()
}

/// The last rank dies suddenly while the others wait for it.
pub(super) fn peer_dies(group: Group, shared: bool) -> Result<(), Failure> {
    let g = group.as_ref();
    all_reduce(g, Kind::Float, 1000)?;
    let tensor = filled(g, shared, 1_000_000)?;
    if is_last(g) {
        std::process::abort();
    }
    let begun = Instant::now();
    // With three ranks, the first survivor to notice leaves too; the other may report that one as lost.
    let lost = match outcome(g, &tensor) {
        Err(CollectiveError::PeerLost(operation, _)) if operation.op == "all_reduce" => {
            operation.sequence > 0
        }
        // The watcher of a GPU group does not know the operation.
        Err(CollectiveError::PeerLost { .. }) => device() != Device::Cpu,
        other => return Err(format!("expected PeerLost, got {other:?}").into()),
    };
    println!("ok peer lost after {} ms", begun.elapsed().as_millis());
    match lost {
        true => Ok(()),
        false => Err("the lost peer has no operation number".into()),
    }
}

/// Returns the result of a sum. A sum on GPUs is only enqueued: checks the group's health for as long as
/// survivors may take to notice.
fn outcome(g: &dyn ProcessGroup, tensor: &Tensor) -> Result<(), CollectiveError> {
    g.all_reduce(tensor, ReduceOp::Sum).and_then(Work::wait)?;
    let begun = Instant::now();
    while device() != Device::Cpu && begun.elapsed() < NOTICED {
        g.health()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The last rank dies or leaves during many operations. Ended operations have succeeded; the others fail, and
/// later ones fail too.
pub(super) fn peer_dies_amid(group: Group, abort: bool) -> Result<(), Failure> {
    let g = group.as_ref();
    let tensor = filled(g, true, 4_000_000)?;
    all_reduce(g, Kind::Float, 1000)?;
    let parts = tensor.chunk(40, 0);
    let mut works = Vec::new();
    for part in parts.iter().take(if is_last(g) { 30 } else { 40 }) {
        works.push(g.all_reduce(part, ReduceOp::Sum)?);
    }
    if is_last(g) {
        works.remove(0).wait()?;
        if abort {
            std::process::abort();
        }
        // Drops the group during operations.
        return Ok(());
    }
    let begun = Instant::now();
    let sum = expected(4_000_000, Kind::Float, g.size(), ReduceOp::Sum).chunk(40, 0);
    let mut ended = 0;
    for (index, work) in works.into_iter().enumerate() {
        match work.wait() {
            Ok(()) if index == ended => {
                same("ended operations", &parts[index], &sum[index])?;
                ended += 1;
            }
            Err(CollectiveError::PeerLost { .. }) => {}
            other => return Err(format!("operation {index} after {ended} good ones: {other:?}").into()),
        }
    }
    if !(1..40).contains(&ended) || begun.elapsed() > NOTICED {
        return Err(format!("{ended} operations ended; noticed after {:?}", begun.elapsed()).into());
    }
    match g.all_reduce(&tensor, ReduceOp::Sum).and_then(Work::wait) {
        Err(CollectiveError::PeerLost { .. }) => {}
        other => return Err(format!("an operation after the loss: {other:?}").into()),
    }
    println!("ok {ended} of 40 ended");
    Ok(())
}

/// The last rank comes too late.
pub(super) fn time_out(mut group: Group, shared: bool) -> Result<(), Failure> {
    all_reduce(group.as_ref(), Kind::Float, 1000)?;
    let tensor = filled(group.as_ref(), shared, 1000)?;
    let limit = Duration::from_millis(500);
    if is_last(group.as_ref()) {
        std::thread::sleep(Duration::from_secs(4));
        return Ok(());
    }
    group.set_timeout(limit);
    let begun = Instant::now();
    let outcome = outcome(group.as_ref(), &tensor);
    let waited = begun.elapsed();
    // If a neighbour timed out first, this survivor sees the neighbour leave. A late rank of another node is
    // unknown.
    match outcome {
        Err(CollectiveError::TimedOut(operation, late))
            if (operation.op, operation.bytes, operation.timeout) == ("all_reduce", 4000, limit)
                && (!shared || late == Some(group.size() - 1) || late.is_none() && !uses_shared_memory()) => {
        }
        Err(CollectiveError::PeerLost { .. }) if group.size() > 2 => {}
        other => return Err(format!("expected TimedOut, got {other:?}").into()),
    }
    if waited < limit.mul_f32(0.8) || waited > Duration::from_secs(3) {
        return Err(format!("a time-out of {limit:?} took {waited:?}").into());
    }
    println!("ok time-out");
    Ok(())
}

/// The last rank's address space has no room for a tensor: no rank gets one, and the group stays usable.
pub(super) fn no_memory(group: Group) -> Result<(), Failure> {
    let g = group.as_ref();
    // Starts the group's threads now: a new thread takes address space too, 64 MiB for its heap.
    g.all_reduce(&filled(g, true, 1000)?, ReduceOp::Sum)?.wait()?;
    let numel = 1 << 25;
    let before = getrlimit(Resource::As);
    if is_last(g) {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find(|line| line.starts_with("VmSize:"));
        let kib: u64 = line.and_then(|line| line.split_whitespace().nth(1)).ok_or("no VmSize")?.parse()?;
        // A tensor takes its bytes once for every rank of the node; the limit allows half of one.
        let limit = Some((kib << 10) + (numel * 4 / 2) as u64);
        setrlimit(Resource::As, Rlimit { current: limit, ..before })?;
    }
    let allocated = g.allocate(numel, Kind::Float)?;
    if is_last(g) {
        setrlimit(Resource::As, before)?;
    }
    if let Some(tensor) = allocated {
        return Err(format!("{tensor:?} was allocated although a rank lacks address space").into());
    }
    let tensor = filled(g, true, 1000)?;
    g.all_reduce(&tensor, ReduceOp::Sum)?.wait()?;
    same("after a failed allocation", &tensor, &expected(1000, Kind::Float, g.size(), ReduceOp::Sum))?;
    group.shutdown()?;
    println!("ok no memory");
    Ok(())
}

/// One rank after another cannot open or create the memory: every time all ranks fail with the same reason.
pub(super) fn no_descriptors(env: &WorkerEnv) -> Result<(), Failure> {
    let (rank, size) = (env.rank, env.world_size);
    let limit = Duration::from_secs(30);
    let store = if rank == 0 {
        TcpStore::serve(("127.0.0.1", env.master_port), None, limit)?
    } else {
        TcpStore::connect("127.0.0.1", env.master_port, limit)?
    };
    for failing in 0..size {
        let gloo = super::connect_gloo(&store.prefixed(&failing.to_string())?, rank, size)?;
        let before = getrlimit(Resource::Nofile);
        if rank == failing {
            // No descriptor beyond those of standard input, output and error.
            setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before })?;
        }
        let outcome = SharedGroup::create(gloo)?;
        setrlimit(Resource::Nofile, before)?;
        match outcome {
            Err((gloo, reason)) if reason.starts_with(&format!("rank {failing}: ")) => {
                all_reduce(&gloo, Kind::Float, 1000)?;
                println!("ok no descriptors: {reason}");
                Box::new(gloo).shutdown()?;
            }
            other => {
                return Err(format!("rank {failing} cannot open files, but the result is {other:?}").into());
            }
        }
    }
    Ok(())
}

/// Rank 0 cannot create the memory: all ranks fall back to Gloo, or all fail if the user demands sharing.
pub(super) fn fallback(env: WorkerEnv, preference: Transport) -> Result<(), Failure> {
    let first = env.rank == 0;
    let rendezvous = Rendezvous::open(env)?;
    let before = getrlimit(Resource::Fsize);
    if first {
        // Ignores the signal: the write then returns an error instead of ending the process.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        setrlimit(Resource::Fsize, Rlimit { current: Some(0), ..before })?;
    }
    let outcome = rendezvous.connect_by(preference, Device::Cpu);
    setrlimit(Resource::Fsize, before)?;
    match (preference, outcome) {
        (Transport::Auto, Ok(group)) => {
            if group.allocate(100, Kind::Float)?.is_some() {
                return Err("Gloo allocated shared memory".into());
            }
            all_reduce(group.as_ref(), Kind::Float, 1000)?;
            group.shutdown()?;
        }
        (Transport::Shared, Err(RendezvousError::NoSharedMemory(reason)))
            if reason.starts_with("rank 0: cannot set the size of shared memory") => {}
        (_, Ok(_)) => return Err("connected without shared memory".into()),
        (_, Err(error)) => return Err(error.into()),
    }
    println!("ok fallback");
    Ok(())
}

/// The ranks' environments request different transports: all ranks fail and name them.
pub(super) fn disagreement(env: WorkerEnv) -> Result<(), Failure> {
    let last = env.rank + 1 == env.world_size;
    let preference = if last { Transport::Gloo } else { Transport::Auto };
    match Rendezvous::open(env.clone())?.connect_by(preference, Device::Cpu) {
        Err(error @ RendezvousError::Disagreement { .. }) => {
            let text = error.to_string();
            let wanted = format!("Auto on rank 0 and Gloo on rank {}", env.world_size - 1);
            if !text.contains(&wanted) {
                return Err(text.into());
            }
            println!("ok disagreement");
            // Rank 0 serves the store, from which other ranks may still read.
            std::thread::sleep(Duration::from_millis(300));
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("connected although they disagree".into()),
    }
}
