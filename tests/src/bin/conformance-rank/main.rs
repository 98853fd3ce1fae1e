//! One rank of the conformance suite: `conformance-rank BACKEND SCENARIO`.
//!
//! Backends: `single`, `gloo`, `shared`, and `auto`, which leaves the choice to the environment. Scenarios: see [`main`].

mod allocated;
mod bench;
mod faults;
mod suite;

use std::time::Duration;

use dtrain_common::env::{Transport, WorkerEnv};
use dtrain_torch_shim::gloo::Transport as Address;
use dtrain_torch_shim::store::TcpStore;
use dtrain_worker::collectives::{GlooGroup, ProcessGroup, Rendezvous, SharedGroup, Sharing, SingleGroup};

type Group = Box<dyn ProcessGroup>;
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    dtrain_torch_shim::quiet_logs()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [backend, scenario] = args.as_slice() else {
        return Err("two arguments are needed".into());
    };
    let env = WorkerEnv::from_process()?;
    // Those that make their group themselves.
    match scenario.as_str() {
        "refused" => return faults::refused(&env),
        "fallback" => return faults::fallback(env, wish(backend)?),
        "disagreement" => return faults::disagreement(env),
        _ => {}
    }
    let meeting = Meeting::open(backend, env)?;
    let group = meeting.connect(backend)?;
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
        other => Err(format!("no scenario {other}").into()),
    }
}

fn wish(backend: &str) -> Result<Transport, Failure> {
    match backend {
        "gloo" => Ok(Transport::Gloo),
        "shared" => Ok(Transport::Shared),
        "auto" => Ok(Transport::Auto),
        other => Err(format!("no backend {other}").into()),
    }
}

/// Where the ranks meet; kept as long as the group. A single rank, to which the rendezvous would give the group of a single
/// process, makes the others too.
enum Meeting {
    None,
    One(TcpStore),
    Many(Rendezvous),
}

impl Meeting {
    fn open(backend: &str, env: WorkerEnv) -> Result<Self, Failure> {
        Ok(match (backend, env.world_size) {
            ("single", _) => Self::None,
            (_, 1) => Self::One(TcpStore::serve("127.0.0.1", 0, Duration::from_secs(30))?),
            _ => Self::Many(Rendezvous::open(env)?),
        })
    }

    fn connect(&self, backend: &str) -> Result<Group, Failure> {
        match self {
            Self::None => Ok(Box::new(SingleGroup)),
            Self::One(store) => {
                let gloo = gloo(store, 0, 1)?;
                if backend == "gloo" {
                    return Ok(Box::new(gloo));
                }
                match SharedGroup::over(gloo)? {
                    Sharing::Shared(group) => Ok(Box::new(group)),
                    Sharing::Refused { reason, .. } => Err(reason.into()),
                }
            }
            Self::Many(rendezvous) if backend == "auto" => Ok(rendezvous.connect()?),
            Self::Many(rendezvous) => Ok(rendezvous.connect_by(wish(backend)?)?),
        }
    }
}

fn gloo(store: &TcpStore, rank: usize, size: usize) -> Result<GlooGroup, Failure> {
    let limit = Duration::from_secs(30);
    Ok(GlooGroup::connect(
        store,
        rank,
        size,
        limit,
        Address::Host("127.0.0.1"),
    )?)
}
