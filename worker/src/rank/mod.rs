//! How this process learns its rank: from its launcher, or from the batch system or MPI starter that started it
//! as one task for each rank.

mod place;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, ToSocketAddrs, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use dtrain_common::env::{
    CUDA_VISIBLE_DEVICES, EnvError, MASTER_ADDR, MASTER_PORT, OMP_NUM_THREADS, RANK, WORLD_SIZE, WorkerEnv,
    job::SLURM_CPUS_PER_TASK, of_process, omp_threads,
};
use dtrain_common::host;
use dtrain_job::{Allocation, Job, JobError, Starter, Surroundings, Tasks};
use dtrain_pmi::{Pmi, PmiError};
use rustix::process::{Signal, getpid, kill_process};

use crate::collectives::Transport;
use place::{Introduction, Place, sharing};

/// An error that keeps this process from learning its rank.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RankError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error("cannot read the environment of this job: {0}")]
    Job(#[from] JobError),
    #[error(transparent)]
    Pmi(#[from] PmiError),
    #[error(
        "{starter} started this task as rank {rank}, but does not tell {missing}; start `dtrain launch` once on each node, or set \
         {remedy}"
    )]
    Untold { starter: String, rank: usize, missing: &'static str, remedy: &'static str },
    #[error(
        "{starter} told this task rank {told}, and rank {other} by PMI; start all tasks with one mpirun or srun"
    )]
    Contradiction { starter: String, told: usize, other: usize },
    #[error(
        "cannot resolve {host}, the host of rank 0: {source}; correct the name server or /etc/hosts, or set MASTER_ADDR"
    )]
    Unresolved { host: String, source: io::Error },
    #[error("cannot open a port for the other ranks: {0}; set MASTER_ADDR and MASTER_PORT")]
    Port(#[source] io::Error),
    #[error("rank {rank} introduced itself by {text:?}; run the same version of dtrain on all ranks")]
    Introduction { rank: usize, text: String },
}

/// A rank, and its connection to what started it.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) env: WorkerEnv,
    /// Open until the end: the MPI library of the same process speaks to the same starter.
    pmi: Option<Pmi>,
    /// The time after which the job wants the run to stop, if no launcher watches it.
    stop_after: Option<Duration>,
    /// The threads of this rank, if no launcher sets them.
    threads: Option<usize>,
}

impl Start {
    /// Reads the environment. With RANK or WORLD_SIZE a launcher has started this process, whatever job it is in;
    /// so it is if `alone`, for a job of the launcher's own, which has one process.
    pub(crate) fn of_process(alone: bool) -> Result<Self, RankError> {
        let of_launcher = alone || [RANK, WORLD_SIZE].iter().any(|name| of_process(name).is_some());
        let from = Surroundings {
            variable: &of_process,
            file: &|path| fs::read_to_string(path).ok(),
            command: &|words| output(words),
        };
        match if of_launcher { None } else { Job::detect(from)?.several_tasks() } {
            Some((job, tasks)) => Self::of_task(&job, &tasks, from),
            None => Ok(Self { env: WorkerEnv::from_process()?, pmi: None, stop_after: None, threads: None }),
        }
    }

    fn of_task(job: &Job, tasks: &Tasks, from: Surroundings<'_>) -> Result<Self, RankError> {
        let untold = |missing, remedy| RankError::Untold {
            starter: tasks.starter.to_string(),
            rank: tasks.rank.value,
            missing,
            remedy,
        };
        let is_srun = tasks.starter == Starter::Srun;
        // Slurm tells enough without PMI.
        let connected = if is_srun { Pmi::connect_if_there(&of_process) } else { Pmi::connect(&of_process) };
        let (rank, mut pmi) = (tasks.rank.value, connected?);
        let mut introductions = None;
        if let Some(pmi) = &mut pmi {
            if pmi.rank() != rank {
                let starter = tasks.starter.to_string();
                return Err(RankError::Contradiction { starter, told: rank, other: pmi.rank() });
            }
            introductions = Some(introduce(pmi, tasks)?);
        }
        let of_pmi = introductions.as_ref().map(Vec::len);
        let size = of_pmi.or(tasks.size.map(|size| size.value));
        let size = size
            .ok_or_else(|| untold("the number of ranks", "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"))?;
        // Other starters tell only a part, and the rest follows only if ranks are dealt evenly and in order.
        let told = Place::told(tasks, size);
        let among = introductions.as_deref().and_then(|all| Place::among(all, rank));
        let place = if is_srun { told.or(among) } else { among.or(told) };
        let place = place.ok_or_else(|| {
            untold(
                "the ranks of each node",
                "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, \
                                   GROUP_WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            )
        })?;
        let first = introductions.as_ref().and_then(|all| all.first()?.listens_at.clone());
        let loopback = || (place.nodes == 1).then(|| Ipv4Addr::LOCALHOST.to_string());
        let (address, port) = match first {
            Some((address, port)) => (Some(address), Some(port)),
            None => (loopback().or_else(|| tasks.first_host.clone()), job.port()),
        };
        let address = of_process(MASTER_ADDR).or(address);
        let address =
            address.ok_or_else(|| untold("the address of rank 0", "MASTER_ADDR and MASTER_PORT"))?;
        let port = match of_process(MASTER_PORT) {
            Some(value) => value.trim().parse().ok().ok_or(EnvError::Invalid {
                name: MASTER_PORT,
                value,
                expected: "a port from 0 to 65535",
            })?,
            None => port.ok_or_else(|| untold("the name of the job", MASTER_PORT))?,
        };
        // Otherwise the ranks would wait for each other in silence.
        if let Err(source) = (address.as_str(), port).to_socket_addrs() {
            return Err(RankError::Unresolved { host: address, source });
        }
        let env = WorkerEnv {
            rank,
            local_rank: place.local_rank,
            gpu: if sees_own_gpu(tasks.starter) { 0 } else { place.local_rank },
            group_rank: place.node,
            world_size: size,
            local_world_size: place.local_size,
            group_world_size: place.nodes,
            master_addr: address,
            master_port: port,
            run_id: job.id().unwrap_or_else(|| "none".to_owned()),
            ..WorkerEnv::single()
        };
        if rank == 0 {
            // The user of a shell in a job may not expect other ranks.
            tracing::info!("rank 0 of {size}: the number of ranks is from {}", job.described());
        }
        let left = job.allocation.as_ref().filter(|_| rank == 0);
        let left = left.and_then(|allocation| allocation.time_left(from, SystemTime::now()));
        let sharing = introductions.as_deref().and_then(|all| sharing(all, rank)).unwrap_or(place.local_size);
        let threads = of_process(OMP_NUM_THREADS).is_none().then(|| threads(tasks.starter, sharing));
        Ok(Self { env, pmi, stop_after: left.map(|left| left - Allocation::margin(left)), threads })
    }

    /// Does for this process what a launcher would do: sets its threads, and asks it to stop before the job's end.
    /// Called once, before libtorch computes.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if let Some(threads) = self.threads {
            tch::set_num_threads(threads.try_into().unwrap_or(1));
        }
        let Some(time) = self.stop_after else { return Ok(()) };
        let ask = move || {
            thread::sleep(time);
            // The process exists: it is this one.
            let _ = kill_process(getpid(), Signal::USR1);
        };
        thread::Builder::new().name("deadline".to_owned()).spawn(ask).map(drop)
    }

    /// Ends the connection to the starter; the last use of it. An error of it changes nothing: the training has
    /// ended.
    pub(crate) fn end(self, how: End) {
        let ended = match (self.pmi, how) {
            (Some(pmi), End::AsPlanned) => finish(pmi),
            // Other ranks may wait in MPI for this one: the starter ends them.
            (Some(_), End::Failed) if is_mpi() => Ok(()),
            (Some(pmi), End::Failed) => pmi.leave(),
            (None, _) => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!("{error}");
        }
    }
}

/// How long a rank that has ended waits for the others to end: one of them may have failed at the very end.
const LAST_WAIT: Duration = Duration::from_secs(60);

/// Finishes, if the other ranks do. PMIx has no time-out that all starters heed.
fn finish(pmi: Pmi) -> Result<(), PmiError> {
    let (sender, finished) = mpsc::channel();
    thread::spawn(move || sender.send(pmi.finish()));
    finished.recv_timeout(LAST_WAIT).unwrap_or(Ok(()))
}

/// How a rank ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Together with the other ranks: it waits for them. Some starters kill the others when the first one ends
    /// with a code such as 75, and rank 0 may still write.
    AsPlanned,
    /// By an error. The others notice it by themselves.
    Failed,
}

/// Returns whether the user chose MPI. A wrong value was refused before.
fn is_mpi() -> bool {
    matches!(Transport::from_lookup(of_process), Ok(Transport::Mpi))
}

/// Exchanges introductions with all tasks, and returns those of all by rank.
fn introduce(pmi: &mut Pmi, tasks: &Tasks) -> Result<Vec<Introduction>, RankError> {
    let listens_at = match pmi.rank() {
        0 => Some((own_address(tasks), free_port().map_err(RankError::Port)?)),
        _ => None,
    };
    let texts = pmi.gather(&Introduction::new(listens_at).to_text())?;
    let read = |(rank, text): (usize, String)| {
        Introduction::from_text(&text).ok_or(RankError::Introduction { rank, text })
    };
    texts.into_iter().enumerate().map(read).collect()
}

/// Returns an address of this node for the other ranks: the loopback address on one node; that towards another
/// node of the job, if the job tells one; else the host's name.
fn own_address(tasks: &Tasks) -> String {
    let is_one_node = tasks.nodes.is_some_and(|nodes| nodes.value == 1)
        || tasks.size.is_some_and(|size| tasks.local_size.is_some_and(|local| local.value == size.value));
    if is_one_node {
        return Ipv4Addr::LOCALHOST.to_string();
    }
    let own = host::name();
    let other = tasks.hosts.iter().flatten().find(|host| **host != own);
    let towards = other.and_then(|host| {
        let to = (host.as_str(), 9).to_socket_addrs().ok()?.next()?;
        let socket = UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).ok()?;
        // Sends nothing: the kernel only chooses the route.
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    match towards {
        Some(address) if !address.is_loopback() => address.to_string(),
        _ => own,
    }
}

/// Returns a port that is free now, below the kernel's ephemeral ports: rank 0 opens it later, for its store.
fn free_port() -> io::Result<u16> {
    let begin = std::process::id();
    let ports = (0..10_000).map(|offset| 20_000 + ((begin + offset) % 10_000) as u16);
    let mut tried = ports.map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(|_| port));
    tried.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::AddrInUse.into()))
}

/// Returns whether the starter shows this task its own GPU, such as `srun --gpus-per-task=1`: number 0. Those of MPI
/// show all tasks the same GPUs.
fn sees_own_gpu(starter: Starter) -> bool {
    let can_bind = matches!(starter, Starter::Srun | Starter::Flux | Starter::Jsrun);
    let list = of_process(CUDA_VISIBLE_DEVICES).filter(|_| can_bind);
    list.is_some_and(|list| !list.trim().is_empty() && !list.contains(','))
}

/// Returns the threads of this rank: those that Slurm gives each task, or a share of the cores on which
/// `sharing` ranks run.
fn threads(starter: Starter, sharing: usize) -> usize {
    let told = of_process(SLURM_CPUS_PER_TASK).filter(|_| starter == Starter::Srun);
    let told = told.and_then(|cores| cores.trim().parse().ok());
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    told.filter(|cores| (1..=allowed).contains(cores)).unwrap_or_else(|| omp_threads(allowed, sharing))
}

/// For programs of the batch system, whose server may not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a program of the batch system and returns its output, or `None` if it fails or takes too long.
fn output(words: &[&str]) -> Option<String> {
    let (program, args) = words.split_first()?;
    let mut command = Command::new(program);
    let mut child =
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // Its few lines have fitted into the pipe.
    let done = child.wait_with_output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}
