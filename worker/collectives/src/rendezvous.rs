//! The rendezvous of a run's ranks: the store of torchrun's environment variables, then a group.

use std::time::Duration;

use dtrain_common::env::{WorkerEnv, collective_timeout, of_process};
use dtrain_torch_shim::store::TcpStore;
use dtrain_torch_shim::{ShimError, gloo};
use tch::Device;

use super::address;
use super::error::RendezvousError;
use super::gpus::{self, Gpu};
use super::outside::connect_mpi;
use super::shared::{Decision, Facts, decide, gather_facts};
use super::transport::Transport;
use super::{GlooGroup, LoneGroup, NodesGroup, ProcessGroup, Ranks, SharedGroup};

/// How long the ranks wait for each other to start. Rank 0 may scan a large data folder meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// How long rank 0 waits for its peers to read its refusal.
const FAILURE_LINGER: Duration = Duration::from_secs(2);

/// Bytes of a part of a long message: a store may limit its values to 8 MiB.
const PIECE_BYTES: usize = 4 << 20;

const OPENING: &str = "opening";
const OPENING_READ: &str = "opening-read";
const INTRODUCTION: &str = "introduction";

/// A run's ranks before they have a group. Order: [`Rendezvous::open`]; on rank 0 [`Rendezvous::announce`] or
/// [`Rendezvous::announce_failure`], on the others [`Rendezvous::receive_opening`]; [`Rendezvous::connect`].
#[derive(Debug)]
pub struct Rendezvous {
    env: WorkerEnv,
    /// The transport that the environment selects.
    preference: Transport,
    /// The time-out of its groups' operations.
    timeout: Duration,
    /// None for a single process.
    store: Option<TcpStore>,
}

impl Rendezvous {
    /// Serves (rank 0) or connects to the store at `MASTER_ADDR:MASTER_PORT`; a single process needs none. If
    /// the launcher's agent serves the store (`TORCHELASTIC_USE_AGENT_STORE`), every rank connects.
    pub fn open(env: WorkerEnv) -> Result<Self, RendezvousError> {
        let preference = Transport::from_lookup(of_process)?;
        let timeout = collective_timeout(of_process)?.unwrap_or(super::DEFAULT_TIMEOUT);
        let store = (env.world_size > 1).then(|| open_store(&env)).transpose()?;
        Ok(Self { env, preference, timeout, store })
    }

    /// Sends rank 0 an opaque message about this rank. The other ranks call it before
    /// [`Rendezvous::receive_opening`], if rank 0 calls [`Rendezvous::introductions`].
    pub fn introduce(&self, message: &[u8]) -> Result<(), RendezvousError> {
        self.publish_of_rank(INTRODUCTION, message)
    }

    /// Waits for the messages of all other ranks. Rank 0 calls it before [`Rendezvous::announce`].
    pub fn introductions(&self) -> Result<Vec<Vec<u8>>, RendezvousError> {
        self.fetch_of_others(INTRODUCTION)
    }

    /// Writes a short message of this rank for [`Rendezvous::fetch_of_others`].
    pub fn publish_of_rank(&self, name: &str, message: &[u8]) -> Result<(), RendezvousError> {
        self.publish_whole(&of_rank(name, self.env.rank), message)
    }

    /// Waits for the messages of all other ranks with this name. Rank 0 calls it.
    pub fn fetch_of_others(&self, name: &str) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let get =
            |rank| store.get(&of_rank(name, rank)).map_err(|source| RendezvousError::Absent(rank, source));
        (1..self.env.world_size).map(get).collect()
    }

    /// Sends every other rank the opening, an opaque message of any length. Rank 0 calls it.
    pub fn announce(&self, message: &[u8]) -> Result<(), RendezvousError> {
        self.publish(OPENING, message)?;
        let bytes = (message.len() as u64).to_le_bytes();
        self.publish_whole(OPENING, &[b"+".as_slice(), &bytes].concat())
    }

    /// Writes a message of any length for [`Rendezvous::fetch`].
    pub fn publish(&self, name: &str, message: &[u8]) -> Result<(), RendezvousError> {
        message
            .chunks(PIECE_BYTES)
            .enumerate()
            .try_for_each(|(number, piece)| self.publish_whole(&piece_of(name, number), piece))
    }

    /// Waits for a message of `bytes` bytes.
    pub fn fetch(&self, name: &str, bytes: u64) -> Result<Vec<u8>, RendezvousError> {
        let mut message = Vec::with_capacity(bytes as usize);
        for number in 0..bytes.div_ceil(PIECE_BYTES as u64) as usize {
            message.extend(self.fetch_whole(&piece_of(name, number))?);
        }
        Ok(message)
    }

    /// Removes a published message of `bytes` bytes, which nobody reads any more.
    pub fn withdraw(&self, name: &str, bytes: u64) -> Result<(), RendezvousError> {
        let Some(store) = &self.store else { return Ok(()) };
        let mut pieces = 0..bytes.div_ceil(PIECE_BYTES as u64) as usize;
        let removed = pieces.try_for_each(|number| store.delete(&piece_of(name, number)));
        removed.map_err(|source| RendezvousError::NoOpening(self.env.rank, source))
    }

    /// Writes a short message for [`Rendezvous::fetch_whole`].
    pub fn publish_whole(&self, name: &str, message: &[u8]) -> Result<(), RendezvousError> {
        let Some(store) = &self.store else { return Ok(()) };
        store.set(name, message).map_err(|source| RendezvousError::NoOpening(self.env.rank, source))
    }

    /// Waits for a short message.
    pub fn fetch_whole(&self, name: &str) -> Result<Vec<u8>, RendezvousError> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        store.get(name).map_err(|source| RendezvousError::NoOpening(self.env.rank, source))
    }

    /// Tells the other ranks that the run does not start and that rank 0 ends with `code`, and waits until they have read it (at
    /// most two seconds), so that they do not report a lost connection. Rank 0 calls it.
    pub fn announce_failure(&self, reason: &str, code: u8) {
        let Some(store) = &self.store else { return };
        if self.publish_whole(OPENING, &[b"-".as_slice(), &[code], reason.as_bytes()].concat()).is_err() {
            return;
        }
        let started = std::time::Instant::now();
        let peers = self.env.world_size as i64 - 1;
        while store.add(OPENING_READ, 0).is_ok_and(|read| read < peers) && started.elapsed() < FAILURE_LINGER
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for rank 0's opening. `NotStarted` carries its reason. The other ranks call it.
    pub fn receive_opening(&self) -> Result<Vec<u8>, RendezvousError> {
        let rank = self.env.rank;
        let lost = |source| RendezvousError::NoOpening(rank, source);
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let value = store.get(OPENING).map_err(lost)?;
        store.add(OPENING_READ, 1).map_err(lost)?;
        match *value {
            [b'+', a, b, c, d, e, f, g, h] => {
                self.fetch(OPENING, u64::from_le_bytes([a, b, c, d, e, f, g, h]))
            }
            _ => {
                let reason = String::from_utf8_lossy(value.get(2..).unwrap_or_default());
                Err(RendezvousError::NotStarted(reason.into_owned(), value.get(1).copied().unwrap_or(2)))
            }
        }
    }

    /// Connects all ranks by the environment's transport: see [`Rendezvous::connect_by`]. This rank trains on
    /// `device`; a GPU must be the current device of the calling thread.
    pub fn connect(&self, device: Device) -> Result<Box<dyn ProcessGroup>, RendezvousError> {
        self.connect_by(self.preference, device)
    }

    /// Connects all ranks; every rank passes the same `preference`. Keep the rendezvous as long as the group:
    /// rank 0's store serves it. GPUs use NCCL, unless `preference` selects a transport through host memory, or an
    /// MPI library that takes tensors of GPUs.
    /// `Disagreement`, `Gpus` and `NoSharedMemory` are errors on all ranks together.
    pub fn connect_by(
        &self,
        preference: Transport,
        device: Device,
    ) -> Result<Box<dyn ProcessGroup>, RendezvousError> {
        let Some(gloo) = self.connect_gloo(None)? else {
            return Ok(Box::new(LoneGroup(1)));
        };
        let gpu = Gpu::of(device, preference);
        let nccl = gpu.as_ref().map_or(0, Gpu::version);
        let own = Facts::new(preference, &self.env, device != Device::Cpu, nccl);
        let all = gather_facts(&gloo, own)?;
        let gpu = gpus::check(gpu, gloo.rank(), &all)?;
        let (mut group, takes_gpus) = self.share_memory(gloo, own, &all)?;
        if let Some(gpu) = gpu.filter(|_| !takes_gpus) {
            let gpus = gpus::connect(gpu, &*group, self.timeout)?;
            group = Box::new(super::DeviceGroup::new(group, gpus));
        }
        group.set_timeout(self.timeout);
        Ok(group)
    }

    /// Connects all ranks in a second group beside `ranks`, by TCP and, if `ranks` has it, NCCL. Its order of
    /// operations is independent. Every rank calls it with the same name, and uses a name once.
    pub fn connect_second_group(&self, name: &str, ranks: &Ranks) -> Result<Ranks, RendezvousError> {
        Ok(match self.connect_gloo(Some(name))? {
            Some(mut gloo) => {
                gloo.set_timeout(self.timeout);
                ranks.create_second_group(Box::new(gloo))?
            }
            None => Ranks::single(),
        })
    }

    /// Connects all ranks by TCP for messages between two ranks. Every rank calls it with the same name, and
    /// uses a name once.
    pub fn connect_messages(&self, name: &str) -> Result<Option<GlooGroup>, RendezvousError> {
        self.connect_gloo(Some(name))
    }

    /// Connects all ranks by TCP under a prefix of the store. Returns None for a single process.
    fn connect_gloo(&self, name: Option<&str>) -> Result<Option<GlooGroup>, RendezvousError> {
        let Some(store) = &self.store else {
            return Ok(None);
        };
        let (all, is_local) = ((self.env.rank, self.env.world_size), self.env.is_one_node());
        self.connect_some(store, name, all, is_local).map(Some)
    }

    /// Connects `size` ranks by TCP, in which this rank has the number `rank`. `is_local` if all are on one
    /// node.
    fn connect_some(
        &self,
        store: &TcpStore,
        name: Option<&str>,
        (rank, size): (usize, usize),
        is_local: bool,
    ) -> Result<GlooGroup, RendezvousError> {
        let named = name.map(|name| store.prefixed(name)).transpose();
        let named = named.map_err(unreachable_store(&self.env))?;
        let interface = std::env::var("GLOO_SOCKET_IFNAME").unwrap_or_default();
        let own = (!is_local).then(|| address::own(&self.env).map(|address| address.to_string())).flatten();
        let address = match (interface.as_str(), &own) {
            // On one machine the loopback address works however the host name resolves.
            ("", _) if is_local => gloo::Transport::Host("127.0.0.1"),
            ("", Some(own)) => gloo::Transport::Host(own),
            ("", None) => gloo::Transport::Default,
            (name, _) => gloo::Transport::Interface(name),
        };
        Ok(GlooGroup::connect(named.as_ref().unwrap_or(store), rank, size, CONNECT_TIMEOUT, address)?)
    }

    /// Chooses the group for the ranks of `gloo`: shared memory if they want it and all can use it. Also returns
    /// whether the group exchanges tensors of GPUs without NCCL.
    fn share_memory(
        &self,
        gloo: GlooGroup,
        own: Facts,
        all: &[Facts],
    ) -> Result<(Box<dyn ProcessGroup>, bool), RendezvousError> {
        let (gloo, reason) = match decide(all) {
            Decision::Disagree(preferences) => return Err(RendezvousError::Disagreement(preferences)),
            Decision::Mpi => return connect_mpi(&gloo),
            Decision::Gloo(reason) => (gloo, reason),
            Decision::Share(nodes) => match self.connect_nodes(gloo, &nodes)? {
                Ok(group) => return Ok((group, false)),
                Err((gloo, reason)) => {
                    if gloo.rank() == 0 && own.preference == Transport::Auto {
                        tracing::warn!(
                            "the ranks communicate by TCP, which is slower, because they cannot share memory: {reason}"
                        );
                    }
                    (gloo, reason)
                }
            },
        };
        if own.preference == Transport::Shared {
            return Err(RendezvousError::NoSharedMemory(reason));
        }
        tracing::debug!("the ranks communicate by TCP: {reason}");
        Ok((Box::new(gloo), false))
    }

    /// Shares memory within each of `nodes`, which have these ranks.
    fn connect_nodes(&self, world: GlooGroup, nodes: &[Vec<usize>]) -> Result<Shared, RendezvousError> {
        let rank = world.rank();
        let place = |ranks: &Vec<usize>| ranks.iter().position(|one| *one == rank);
        let own = nodes.iter().enumerate().find_map(|(node, ranks)| Some((node, place(ranks)?)));
        let (Some((node, place)), Some(store), 2..) = (own, &self.store, nodes.len()) else {
            return Ok(SharedGroup::create(world)?.map(|group| Box::new(group) as Box<dyn ProcessGroup>));
        };
        let name = format!("node-{node}");
        let node_group = self.connect_some(store, Some(&name), (place, nodes[node].len()), true)?;
        let between = (place == 0)
            .then(|| self.connect_some(store, Some("nodes"), (node, nodes.len()), false))
            .transpose()?;
        let group = NodesGroup::create(world, node_group, &nodes[node], between)?;
        Ok(group.map(|group| Box::new(group) as Box<dyn ProcessGroup>))
    }
}

/// A group with shared memory, or the group without it and the reason.
type Shared = Result<Box<dyn ProcessGroup>, (GlooGroup, String)>;

fn piece_of(name: &str, number: usize) -> String {
    format!("{name}/{number}")
}

fn of_rank(name: &str, rank: usize) -> String {
    format!("{name}-{rank}")
}

/// Opens the store of this attempt.
fn open_store(env: &WorkerEnv) -> Result<TcpStore, RendezvousError> {
    let (host, port) = (env.master_addr.as_str(), env.master_port);
    let store = if env.rank == 0 && !env.use_agent_store {
        let failed = |source| RendezvousError::Serve(port, source);
        let listener = address::listener(env).map_err(|error| failed(error.into()))?;
        TcpStore::serve((host, port), listener, CONNECT_TIMEOUT).map_err(|error| failed(error.into()))?
    } else {
        TcpStore::connect(host, port, CONNECT_TIMEOUT).map_err(unreachable_store(env))?
    };
    // Attempts share an agent's store: the prefix separates the keys of earlier attempts.
    let attempt = format!("dtrain/{}/{}", env.run_id, env.restart_count);
    store.prefixed(&attempt).map_err(unreachable_store(env))
}

fn unreachable_store(env: &WorkerEnv) -> impl FnOnce(ShimError) -> RendezvousError {
    |source| {
        let address = format!("{}:{}", env.master_addr, env.master_port);
        RendezvousError::Connect(env.rank, address, source)
    }
}
