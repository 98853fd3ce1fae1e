//! The environment of a launched worker: torchrun's contract. Any program written for torchrun runs under
//! `dtrain launch`, and dtrain's worker runs under torchrun.
//!
//! Every variable is one documented constant; no other module writes a name.

pub mod job;
mod worker;

use std::time::Duration;

pub use worker::{EnvError, WorkerEnv};

/// Rank of this worker among all workers, from 0.
pub const RANK: &str = "RANK";
/// Rank of this worker among those of its node, from 0; selects the GPU.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// The secret of a rendezvous of several nodes, for the launcher.
pub const DTRAIN_RDZV_SECRET: &str = "DTRAIN_RDZV_SECRET";
/// Number of a run of an array that a batch script submits again alone.
pub const DTRAIN_BATCH_INDEX: &str = "DTRAIN_BATCH_INDEX";
/// Name of a batch script's submission, which its later starts as new jobs have too.
pub const DTRAIN_BATCH_SUBMISSION: &str = "DTRAIN_BATCH_SUBMISSION";
/// Set by a shell's script while it completes words: dtrain then prints the words that fit.
pub const DTRAIN_COMPLETE: &str = "DTRAIN_COMPLETE";
/// Rank of this node's launcher among all launchers.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Rank of this worker among the workers of its role.
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
/// Host of the store through which the workers connect.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// Port of the store through which the workers connect.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// Restarts of the worker group so far.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Largest number of restarts of the worker group.
pub const TORCHELASTIC_MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Name of the run, the same on all nodes.
pub const TORCHELASTIC_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// `True` if the launcher serves the store at MASTER_ADDR:MASTER_PORT; rank 0 must not serve it then.
pub const TORCHELASTIC_USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Names of the signals that the launcher handles and forwards, separated by commas.
pub const TORCHELASTIC_SIGNALS_TO_HANDLE: &str = "TORCHELASTIC_SIGNALS_TO_HANDLE";
/// File into which a failing worker writes its error as JSON.
pub const TORCHELASTIC_ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// `1`: a failed NCCL operation ends its process instead of hanging it.
pub const TORCH_NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
/// Threads of one worker's CPU kernels; see [`omp_threads`].
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";
/// Start of the launch command in nanoseconds since the Unix epoch; for start-up measurements.
pub const DTRAIN_START_UNIX_NS: &str = "DTRAIN_START_UNIX_NS";
/// `terminal`: progress is redrawn in place with carriage returns. Unset or `lines`: plain lines.
pub const DTRAIN_PROGRESS: &str = "DTRAIN_PROGRESS";
/// `json`: a worker writes each line of standard error as a JSON object. Unset or `text`: plain text.
pub const DTRAIN_LOG_FORMAT: &str = "DTRAIN_LOG_FORMAT";
/// Set for a launch that `dtrain launch --try` has started: it ends with that process.
pub const DTRAIN_OF_TRY: &str = "DTRAIN_OF_TRY";
/// Path of the worker binary, for the launcher; by default the one in the launcher's folder.
pub const DTRAIN_WORKER: &str = "DTRAIN_WORKER";
/// Path of a heartbeat file that a worker touches at every step; the launcher sets it. If a worker has
/// touched it a few times and then stops, the launcher assumes a hang. A worker that never touches it is not
/// checked.
pub const DTRAIN_HEARTBEAT_FILE: &str = "DTRAIN_HEARTBEAT_FILE";
/// Prefix of the heartbeat file's content while the worker writes a checkpoint or waits for one: after a stop
/// request, the launcher then waits before it kills the worker.
pub const HEARTBEAT_WRITING: &str = "writing";
/// Timeout of a collective in seconds, such as `600` or `1.5`; the default is ten minutes.
pub const DTRAIN_COLLECTIVE_TIMEOUT: &str = "DTRAIN_COLLECTIVE_TIMEOUT";
/// Folder that the launcher makes for `checkpoint.in_memory`; see [`crate::memory_copies`].
pub const DTRAIN_MEMORY_COPIES: &str = "DTRAIN_MEMORY_COPIES";
/// File with the end of the lease of this node's agent, for the launcher and its workers; see [`crate::agent_lease`].
pub const DTRAIN_LEASE: &str = "DTRAIN_LEASE";
/// Process id of the guardian, for the launcher; see the launcher's `guardian` module.
pub const DTRAIN_GUARDIAN: &str = "DTRAIN_GUARDIAN";
/// Process id of the front, the process that the shell started, if it is not the guardian.
pub const DTRAIN_FRONT: &str = "DTRAIN_FRONT";
/// Folder that the guardian makes for temporary files of the run, for the launcher.
pub const DTRAIN_TEMPORARY: &str = "DTRAIN_TEMPORARY";
/// Transport between the ranks: `shared` (memory within each node), `gloo` (TCP), or unset or `auto`.
pub const DTRAIN_TRANSPORT: &str = "DTRAIN_TRANSPORT";
/// The run directory, for the commands of `log.command` and `log.on_end`.
pub const DTRAIN_RUN_DIR: &str = "DTRAIN_RUN_DIR";
/// For tests: makes allocations fail in a worker, such as `oom:rank=1,step=3,phase=backward`. `step` counts
/// from 1. `phase` is `outputs`, `forward`, `backward`, `reduce`, `prepare`, `update` or `evaluate` (after `step`).
/// `micro_step=2` selects a rank's second micro-step, `after=5` lets five allocations of the phase succeed
/// first, `times=2` also fails the first retry of the step.
pub const DTRAIN_FAULT: &str = "DTRAIN_FAULT";
/// GPUs that a CUDA program sees, and their order; [`crate::gpu::Visible`] reads it.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Order of GPUs in CUDA: `PCI_BUS_ID` as in NVML; `FASTEST_FIRST` or unset: the fastest first.
pub const CUDA_DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";
/// CUDA version of the user's libtorch, such as `12.6`, for the check of the driver.
pub const DTRAIN_CUDA: &str = "DTRAIN_CUDA";
/// Python for scripts and modules, preferred to all others; torchrun's variable.
pub const PYTHON_EXEC: &str = "PYTHON_EXEC";
/// Folder of the Python environment in use.
pub const VIRTUAL_ENV: &str = "VIRTUAL_ENV";
/// Folder of the conda environment in use.
pub const CONDA_PREFIX: &str = "CONDA_PREFIX";
/// Prefix of variables that stand for flags of the launcher, such as PET_NPROC_PER_NODE.
pub const FLAG_PREFIX: &str = "PET_";

/// Returns a variable of this process. Bytes that are not UTF-8 are replaced; checks of the value then fail.
pub fn of_process(name: &str) -> Option<String> {
    Some(std::env::var_os(name)?.to_string_lossy().into_owned())
}

/// Returns whether this is a worker of a launcher, or a process that a worker started.
pub fn is_of_a_worker(get: impl Fn(&str) -> Option<String>) -> bool {
    get(RANK).is_some() && get(TORCHELASTIC_RUN_ID).is_some()
}

/// Returns the timeout from [`DTRAIN_COLLECTIVE_TIMEOUT`], read through `get`; `None` if it is not set.
pub fn collective_timeout(get: impl Fn(&str) -> Option<String>) -> Result<Option<Duration>, EnvError> {
    let Some(value) = get(DTRAIN_COLLECTIVE_TIMEOUT) else { return Ok(None) };
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

/// Returns the threads for each worker's CPU kernels: an even share of the cores, at least one.
pub fn omp_threads(cores: usize, local_world_size: usize) -> usize {
    (cores / local_world_size.max(1)).max(1)
}
