//! One rank of the conformance suite: `conformance-rank BACKEND SCENARIO`.
//!
//! Backends: `single`, `gloo`, `shared`, `nodes` (shared memory within several nodes), `auto` (chosen by the
//! environment), `mpi` (in `conformance-rank-mpi`), and `nccl`. `nccl` uses the GPU
//! of the rank's local number. With fewer GPUs, ranks share them; NCCL then requires different NCCL_HOSTIDs.
//! Scenarios: see [`main`].

mod allocated;
mod bench;
mod faults;
mod suite;
mod values;

use std::sync::OnceLock;
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_torch_shim::cuda;
use dtrain_torch_shim::gloo::Transport as Address;
use dtrain_torch_shim::store::TcpStore;
use dtrain_worker::collectives::{
    GlooGroup, LoneGroup, Nccl, NcclGroup, ProcessGroup, RankConfig, Rendezvous, SharedGroup, Transport,
};
use tch::Device;

type Group = Box<dyn ProcessGroup>;
type Failure = Box<dyn std::error::Error>;

/// Runs the scenario that the command line names.
pub fn main() -> Result<(), Failure> {
    dtrain_torch_shim::quiet_logs();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [backend, scenario] = args.as_slice() else {
        return Err("usage: conformance-rank BACKEND SCENARIO".into());
    };
    let env = WorkerEnv::from_process()?;
    // These scenarios create their group themselves.
    match scenario.as_str() {
        "no-descriptors" => return faults::no_descriptors(&env),
        "fallback" => return faults::fallback(env, preference(backend)?),
        "disagreement" => return faults::disagreement(env),
        _ => {}
    }
    if backend == "nccl" {
        choose_gpu(env.local_rank)?;
    }
    let connection = Connection::open(backend, env)?;
    let group = connection.connect(backend)?;
    match scenario.as_str() {
        "suite" => suite::run(group),
        "peer-dies" => faults::peer_dies(group, false),
        "shared-peer-dies" => faults::peer_dies(group, true),
        "shared-peer-dies-amid" => faults::peer_dies_amid(group, true),
        "shared-peer-leaves-amid" => faults::peer_dies_amid(group, false),
        "time-out" => faults::time_out(group, false),
        "shared-time-out" => faults::time_out(group, true),
        "no-memory" => faults::no_memory(group),
        "bench" => bench::run(group),
        other => Err(format!("unknown scenario {other}").into()),
    }
}

/// Returns whether the ranks must use shared memory for everything that they can.
fn uses_shared_memory() -> bool {
    std::env::args().nth(1).is_some_and(|backend| backend == "shared")
}

/// Returns whether the group must allocate shared memory.
fn allocates() -> bool {
    uses_shared_memory() || std::env::args().nth(1).is_some_and(|backend| backend == "nodes")
}

static DEVICE: OnceLock<Device> = OnceLock::new();

/// Returns the device of the suite's tensors.
fn device() -> Device {
    *DEVICE.get().unwrap_or(&Device::Cpu)
}

fn choose_gpu(local_rank: usize) -> Result<(), Failure> {
    cuda::load()?;
    let gpus = cuda::device_count()?;
    let gpu = local_rank.checked_rem(gpus).ok_or("CUDA finds no GPU")?;
    cuda::set_device(gpu)?;
    DEVICE.get_or_init(|| Device::Cuda(gpu));
    Ok(())
}

fn preference(backend: &str) -> Result<Transport, Failure> {
    match backend {
        "gloo" => Ok(Transport::Gloo),
        "shared" | "nodes" => Ok(Transport::Shared),
        "auto" | "nccl" => Ok(Transport::Auto),
        "mpi" => Ok(Transport::Mpi),
        other => Err(format!("unknown backend {other}").into()),
    }
}

/// How the ranks meet; lives as long as the group. For one rank, the rendezvous would always create a
/// single-process group; this type can create other groups too.
enum Connection {
    None,
    One(TcpStore),
    Many(Rendezvous),
}

impl Connection {
    fn open(backend: &str, env: WorkerEnv) -> Result<Self, Failure> {
        Ok(match (backend, env.world_size) {
            ("single", _) => Self::None,
            (_, 1) => Self::One(TcpStore::serve(("127.0.0.1", 0), None, Duration::from_secs(30))?),
            _ => {
                let rank = env.rank;
                let rendezvous = Rendezvous::open(env)?;
                exchange_opening(&rendezvous, rank)?;
                Self::Many(rendezvous)
            }
        })
    }

    fn connect(&self, backend: &str) -> Result<Group, Failure> {
        match self {
            Self::None => Ok(Box::new(LoneGroup(1))),
            Self::One(store) => {
                if let Device::Cuda(gpu) = device() {
                    return connect_lone_nccl(gpu);
                }
                let gloo = connect_gloo(store, 0, 1)?;
                if backend == "gloo" {
                    return Ok(Box::new(gloo));
                }
                match SharedGroup::create(gloo)? {
                    Ok(group) => Ok(Box::new(group)),
                    Err((_, reason)) => Err(reason.into()),
                }
            }
            Self::Many(rendezvous) if backend == "auto" => Ok(rendezvous.connect(Device::Cpu)?),
            Self::Many(rendezvous) => Ok(rendezvous.connect_by(preference(backend)?, device())?),
        }
    }
}

/// Sends the ranks an opening that is longer than the largest value of a store.
fn exchange_opening(rendezvous: &Rendezvous, rank: usize) -> Result<(), Failure> {
    let message = Vec::from_iter(0..251).repeat((9 << 20) / 251);
    if rank == 0 {
        return Ok(rendezvous.announce(&message)?);
    }
    match rendezvous.receive_opening()? == message {
        true => Ok(()),
        false => Err(format!("rank {rank} received another opening than rank 0 sent").into()),
    }
}

/// Creates NCCL's group of one rank, which the rendezvous does not offer.
fn connect_lone_nccl(gpu: usize) -> Result<Group, Failure> {
    let nccl = Nccl::load()?;
    let config = RankConfig { rank: 0, size: 1, timeout: Duration::from_secs(60) };
    Ok(Box::new(NcclGroup::connect(&nccl, &nccl.create_unique_id()?, config, gpu, None)?))
}

fn connect_gloo(store: &TcpStore, rank: usize, size: usize) -> Result<GlooGroup, Failure> {
    let limit = Duration::from_secs(30);
    Ok(GlooGroup::connect(store, rank, size, limit, Address::Host("127.0.0.1"))?)
}
