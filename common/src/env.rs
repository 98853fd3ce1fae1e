//! The environment that a launched worker sees: torchrun's contract, so that any program written for torchrun
//! runs under `dtrain launch` and dtrain's worker runs under torchrun.
//!
//! Every variable is one documented constant; no other module spells a name.

mod devices;
mod transport;

use std::env::VarError;
use std::path::PathBuf;
use std::time::Duration;

pub use devices::{CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, DTRAIN_CUDA};
pub use transport::Transport;

/// Rank of this worker among all workers, from 0.
pub const RANK: &str = "RANK";
/// Rank of this worker among those of its node, from 0; selects the GPU.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Rank of this node's launcher among the launchers.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Rank of this worker among those of its role.
pub const ROLE_RANK: &str = "ROLE_RANK";
/// Name of this worker's role.
pub const ROLE_NAME: &str = "ROLE_NAME";
/// Number of workers on all nodes.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Number of workers on this node.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Number of nodes.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// Number of workers with this worker's role.
pub const ROLE_WORLD_SIZE: &str = "ROLE_WORLD_SIZE";
/// Host of the store where the workers meet.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// Port of the store where the workers meet.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// How often the worker group has been restarted.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// How often the worker group may be restarted.
pub const TORCHELASTIC_MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Name of the run, the same on all nodes.
pub const TORCHELASTIC_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// `True` when the launcher itself serves the store at MASTER_ADDR:MASTER_PORT, so that rank 0 must not.
pub const TORCHELASTIC_USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Names of the signals that the launcher handles and passes on, with commas between them.
pub const TORCHELASTIC_SIGNALS_TO_HANDLE: &str = "TORCHELASTIC_SIGNALS_TO_HANDLE";
/// File into which a failing worker writes its error as JSON.
pub const TORCHELASTIC_ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// `1`: a failed NCCL operation takes its process down instead of hanging it.
pub const TORCH_NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
/// Threads that one worker's CPU kernels use; see [`omp_threads`].
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";
/// When the launch command started, in nanoseconds since the Unix epoch; for start-up measurements.
pub const DTRAIN_START_UNIX_NS: &str = "DTRAIN_START_UNIX_NS";
/// `terminal`: the launcher shows this worker's carriage-return progress frames on a terminal. Unset or `lines`:
/// plain lines.
pub const DTRAIN_PROGRESS: &str = "DTRAIN_PROGRESS";
/// Path of the worker binary, for the launcher; without it the launcher looks beside itself.
pub const DTRAIN_WORKER: &str = "DTRAIN_WORKER";
/// A file whose time of modification a worker sets to now at every step, as a sign of life: whoever does this even a few
/// times is taken for hanging when the signs stop. The launcher names it; a program that never touches it is not judged.
pub const DTRAIN_HEARTBEAT_FILE: &str = "DTRAIN_HEARTBEAT_FILE";
/// What that file's content begins with while the worker writes a checkpoint, or waits for one: the launcher then waits for it
/// before it kills the worker after a request to stop. Empty at other times.
pub const HEARTBEAT_WRITING: &str = "writing";
/// Seconds that an operation between the ranks waits for a rank that does not come, such as `600` or `1.5`; unset: ten minutes.
pub const DTRAIN_COLLECTIVE_TIMEOUT: &str = "DTRAIN_COLLECTIVE_TIMEOUT";
/// A folder with room in memory for copies of a training's state, which the launcher makes for `checkpoint.in_memory`; see
/// [`crate::memory_copies`].
pub const DTRAIN_MEMORY_COPIES: &str = "DTRAIN_MEMORY_COPIES";
/// Slurm's: the number of the job that a process belongs to.
pub const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
/// Slurm's: when the job ends, in seconds since the Unix epoch. Versions before 23 do not set it.
pub const SLURM_JOB_END_TIME: &str = "SLURM_JOB_END_TIME";
/// Process id of the process that stands behind a launcher, for the launcher alone; see the launcher's `guardian` module.
pub const DTRAIN_GUARDIAN: &str = "DTRAIN_GUARDIAN";
/// Process id of the process that the shell has started, for the guardian and the launcher alone, where that is not the guardian.
pub const DTRAIN_FRONT: &str = "DTRAIN_FRONT";
/// The folder that the guardian has made for what is only needed during the run, for the launcher alone.
pub const DTRAIN_TEMPORARY: &str = "DTRAIN_TEMPORARY";
/// By which way the ranks of one machine exchange data: `shared` (memory), `gloo` (TCP), or unset or `auto`; see [`Transport`].
pub const DTRAIN_TRANSPORT: &str = "DTRAIN_TRANSPORT";
/// For tests: a refusal of memory in a worker, such as `oom:rank=1,step=3,phase=backward`. `rank` and `step` (counted from 1) say
/// where; `phase` is `forward`, `backward`, `reduce`, `prepare`, `update` or `evaluate` (there `step` is the one before it);
/// `micro_step=2` is the second one of a rank, `after=5` grants five allocations of the phase first, `times=2` refuses in the first
/// try of the step and in the second. Unset in a run that is meant.
pub const DTRAIN_FAULT: &str = "DTRAIN_FAULT";
/// The Python that runs scripts and modules, before all others; torchrun's variable.
pub const PYTHON_EXEC: &str = "PYTHON_EXEC";
/// Folder of the Python environment in use.
pub const VIRTUAL_ENV: &str = "VIRTUAL_ENV";
/// Folder of the conda environment in use.
pub const CONDA_PREFIX: &str = "CONDA_PREFIX";
/// Begins the names of the variables that stand for flags of the launcher, as PET_NPROC_PER_NODE does.
pub const TWIN_PREFIX: &str = "PET_";

/// The variables without which a worker cannot join the others.
const ESSENTIAL: [&str; 4] = [RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT];

/// What is wrong with the environment of a worker.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvError {
    /// Some of the variables of a distributed start are set and this one is not.
    #[error(
        "the environment variable {missing} is not set although {present} is; set RANK, WORLD_SIZE, MASTER_ADDR \
         and MASTER_PORT for a distributed start, or neither RANK nor WORLD_SIZE for a single process"
    )]
    Missing {
        /// The variable that is missing.
        missing: &'static str,
        /// One that is set.
        present: &'static str,
    },
    /// A variable has a value that cannot be read.
    #[error("the environment variable {name} is {value:?}; expected {expected}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be, in words.
        expected: &'static str,
    },
    /// A rank does not lie below the number of ranks.
    #[error("the environment variable {rank_name} is {rank}, which must be below {size_name} = {size}")]
    RankOutOfRange {
        /// The rank's variable.
        rank_name: &'static str,
        /// Its value.
        rank: usize,
        /// The variable of the matching size.
        size_name: &'static str,
        /// Its value.
        size: usize,
    },
    /// A variable's value is not UTF-8.
    #[error("the environment variable {name} is not valid UTF-8")]
    NotUnicode {
        /// The variable.
        name: &'static str,
    },
}

/// The place of one worker among the others, as its environment tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnv {
    /// Rank among all workers.
    pub rank: usize,
    /// Rank on this node.
    pub local_rank: usize,
    /// This node's rank among the nodes.
    pub group_rank: usize,
    /// Rank among the workers of the same role.
    pub role_rank: usize,
    /// Name of the role.
    pub role_name: String,
    /// Number of workers.
    pub world_size: usize,
    /// Number of workers on this node.
    pub local_world_size: usize,
    /// Number of nodes.
    pub group_world_size: usize,
    /// Number of workers of the same role.
    pub role_world_size: usize,
    /// Host of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// Restarts so far.
    pub restart_count: u32,
    /// Restarts allowed.
    pub max_restarts: u32,
    /// Name of the run.
    pub run_id: String,
    /// The launcher serves the store; rank 0 connects to it like every other rank.
    pub use_agent_store: bool,
    /// Where to write the error on failure.
    pub error_file: Option<PathBuf>,
}

impl WorkerEnv {
    /// Rank 0 of 1 on this machine: what a worker is that nobody launched.
    pub fn single() -> Self {
        Self {
            rank: 0,
            local_rank: 0,
            group_rank: 0,
            role_rank: 0,
            role_name: "default".into(),
            world_size: 1,
            local_world_size: 1,
            group_world_size: 1,
            role_world_size: 1,
            master_addr: "127.0.0.1".into(),
            master_port: 29500,
            restart_count: 0,
            max_restarts: 0,
            run_id: "none".into(),
            use_agent_store: false,
            error_file: None,
        }
    }

    /// Reads the contract through `get`. With neither RANK nor WORLD_SIZE the worker is [`WorkerEnv::single`].
    ///
    /// Otherwise RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must all be there. What is missing of the rest
    /// follows from them: the workers lie on GROUP_WORLD_SIZE nodes (1 if unset) in order of rank.
    ///
    /// # Errors
    /// [`EnvError`] naming the variable that is missing or wrong.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvError> {
        if get(RANK).is_none() && get(WORLD_SIZE).is_none() {
            return Ok(Self::single());
        }
        let present = if get(RANK).is_some() { RANK } else { WORLD_SIZE };
        if let Some(missing) = ESSENTIAL.into_iter().find(|name| get(name).is_none()) {
            return Err(EnvError::Missing { missing, present });
        }
        let read = Reader { get: &get };
        let world_size = read.size(WORLD_SIZE, 1)?;
        let rank = read.rank(RANK, 0, WORLD_SIZE, world_size)?;
        let group_world_size = read.size(GROUP_WORLD_SIZE, 1)?;
        let local_world_size = read.size(LOCAL_WORLD_SIZE, world_size.div_ceil(group_world_size))?;
        let local_rank = read.rank(
            LOCAL_RANK,
            rank % local_world_size,
            LOCAL_WORLD_SIZE,
            local_world_size,
        )?;
        let default_group = (rank / local_world_size).min(group_world_size - 1);
        let group_rank = read.rank(GROUP_RANK, default_group, GROUP_WORLD_SIZE, group_world_size)?;
        let role_world_size = read.size(ROLE_WORLD_SIZE, world_size)?;
        let role_rank = read.rank(
            ROLE_RANK,
            rank.min(role_world_size - 1),
            ROLE_WORLD_SIZE,
            role_world_size,
        )?;
        let single = Self::single();
        Ok(Self {
            rank,
            local_rank,
            group_rank,
            role_rank,
            role_name: get(ROLE_NAME).unwrap_or(single.role_name),
            world_size,
            local_world_size,
            group_world_size,
            role_world_size,
            master_addr: read.host(MASTER_ADDR)?,
            master_port: read.number(MASTER_PORT, single.master_port, "a port from 0 to 65535")?,
            restart_count: read.number(TORCHELASTIC_RESTART_COUNT, 0, "a whole number of at least 0")?,
            max_restarts: read.number(TORCHELASTIC_MAX_RESTARTS, 0, "a whole number of at least 0")?,
            run_id: get(TORCHELASTIC_RUN_ID).unwrap_or(single.run_id),
            use_agent_store: read.flag(TORCHELASTIC_USE_AGENT_STORE, false)?,
            error_file: get(TORCHELASTIC_ERROR_FILE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
        })
    }

    /// [`WorkerEnv::from_lookup`] on the environment of this process.
    ///
    /// # Errors
    /// As `from_lookup`; also when a variable of the contract is not UTF-8.
    pub fn from_process() -> Result<Self, EnvError> {
        for name in ESSENTIAL.into_iter().chain(OPTIONAL) {
            if let Err(VarError::NotUnicode(_)) = std::env::var(name) {
                return Err(EnvError::NotUnicode { name });
            }
        }
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Every variable of the contract with its value, for the launcher to set. OMP_NUM_THREADS and
    /// TORCH_NCCL_ASYNC_ERROR_HANDLING are not among them: the user's own setting of these stays.
    pub fn vars(&self) -> Vec<(&'static str, String)> {
        let mut vars = vec![
            (RANK, self.rank.to_string()),
            (LOCAL_RANK, self.local_rank.to_string()),
            (GROUP_RANK, self.group_rank.to_string()),
            (ROLE_RANK, self.role_rank.to_string()),
            (ROLE_NAME, self.role_name.clone()),
            (WORLD_SIZE, self.world_size.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (GROUP_WORLD_SIZE, self.group_world_size.to_string()),
            (ROLE_WORLD_SIZE, self.role_world_size.to_string()),
            (MASTER_ADDR, self.master_addr.clone()),
            (MASTER_PORT, self.master_port.to_string()),
            (TORCHELASTIC_RESTART_COUNT, self.restart_count.to_string()),
            (TORCHELASTIC_MAX_RESTARTS, self.max_restarts.to_string()),
            (TORCHELASTIC_RUN_ID, self.run_id.clone()),
            // Python's spelling: PyTorch compares with str(True).
            (
                TORCHELASTIC_USE_AGENT_STORE,
                if self.use_agent_store { "True" } else { "False" }.into(),
            ),
        ];
        if let Some(path) = &self.error_file {
            vars.push((TORCHELASTIC_ERROR_FILE, path.to_string_lossy().into_owned()));
        }
        vars
    }
}

/// The rest of the contract that [`WorkerEnv::from_process`] reads.
const OPTIONAL: [&str; 12] = [
    LOCAL_RANK,
    GROUP_RANK,
    ROLE_RANK,
    ROLE_NAME,
    LOCAL_WORLD_SIZE,
    GROUP_WORLD_SIZE,
    ROLE_WORLD_SIZE,
    TORCHELASTIC_RESTART_COUNT,
    TORCHELASTIC_MAX_RESTARTS,
    TORCHELASTIC_RUN_ID,
    TORCHELASTIC_USE_AGENT_STORE,
    TORCHELASTIC_ERROR_FILE,
];

struct Reader<'a, F> {
    get: &'a F,
}

impl<F: Fn(&str) -> Option<String>> Reader<'_, F> {
    fn number<T: std::str::FromStr>(
        &self,
        name: &'static str,
        default: T,
        expected: &'static str,
    ) -> Result<T, EnvError> {
        match (self.get)(name) {
            None => Ok(default),
            Some(value) => value.trim().parse().map_err(|_| EnvError::Invalid {
                name,
                value,
                expected,
            }),
        }
    }

    fn size(&self, name: &'static str, default: usize) -> Result<usize, EnvError> {
        let expected = "a whole number of at least 1";
        match self.number(name, default, expected)? {
            0 => Err(EnvError::Invalid {
                name,
                value: "0".into(),
                expected,
            }),
            size => Ok(size),
        }
    }

    fn rank(
        &self,
        rank_name: &'static str,
        default: usize,
        size_name: &'static str,
        size: usize,
    ) -> Result<usize, EnvError> {
        let rank = self.number(rank_name, default, "a whole number of at least 0")?;
        if rank < size {
            Ok(rank)
        } else {
            Err(EnvError::RankOutOfRange {
                rank_name,
                rank,
                size_name,
                size,
            })
        }
    }

    fn host(&self, name: &'static str) -> Result<String, EnvError> {
        let value = (self.get)(name).unwrap_or_default();
        let host = value.trim();
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(EnvError::Invalid {
                name,
                value,
                expected: "a host name or an IP address",
            });
        }
        Ok(host.to_string())
    }

    fn flag(&self, name: &'static str, default: bool) -> Result<bool, EnvError> {
        match (self.get)(name) {
            None => Ok(default),
            Some(value) => match value.trim().to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" | "" => Ok(false),
                _ => Err(EnvError::Invalid {
                    name,
                    value,
                    expected: "True or False",
                }),
            },
        }
    }
}

/// How long operations between the ranks wait, by [`DTRAIN_COLLECTIVE_TIMEOUT`] looked up through `get`; none where it is not set.
///
/// # Errors
/// `Invalid` for what is no number of seconds above 0.
pub fn collective_timeout(get: impl Fn(&str) -> Option<String>) -> Result<Option<Duration>, EnvError> {
    let Some(value) = get(DTRAIN_COLLECTIVE_TIMEOUT) else {
        return Ok(None);
    };
    let seconds = value.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(EnvError::Invalid {
            name: DTRAIN_COLLECTIVE_TIMEOUT,
            value,
            expected: "a number of seconds above 0",
        }),
    }
}

/// Threads for each worker's CPU kernels: the cores shared evenly, at least one each.
pub fn omp_threads(cores: usize, local_world_size: usize) -> usize {
    (cores / local_world_size.max(1)).max(1)
}

#[cfg(test)]
mod tests;
