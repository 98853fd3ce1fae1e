//! The environment that a launched worker sees: torchrun's contract, so that any program written for torchrun
//! runs under `dtrain launch` and dtrain's worker runs under torchrun.
//!
//! Every variable is one documented constant; no other module spells a name.

mod worker;

use std::time::Duration;

pub use worker::{EnvError, WorkerEnv};

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
/// `terminal`: carriage-return progress frames are shown on a terminal. Unset or `lines`: plain lines.
pub const DTRAIN_PROGRESS: &str = "DTRAIN_PROGRESS";
/// Path of the worker binary, for the launcher; without it the launcher looks beside itself.
pub const DTRAIN_WORKER: &str = "DTRAIN_WORKER";
/// A file that a worker touches at every step, as a sign of life. A worker that has done so a few times and
/// stops is taken for hanging; one that never does is not judged. The launcher names the file.
pub const DTRAIN_HEARTBEAT_FILE: &str = "DTRAIN_HEARTBEAT_FILE";
/// Begins that file's content while the worker writes a checkpoint or waits for one: the launcher then waits
/// before it kills the worker after a request to stop.
pub const HEARTBEAT_WRITING: &str = "writing";
/// Seconds that an operation between the ranks waits for a rank that does not come, such as `600` or `1.5`; unset: ten minutes.
pub const DTRAIN_COLLECTIVE_TIMEOUT: &str = "DTRAIN_COLLECTIVE_TIMEOUT";
/// The folder that the launcher makes for `checkpoint.in_memory`; see [`crate::memory_copies`].
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
/// By which way the ranks of one machine exchange data: `shared` (memory), `gloo` (TCP), or unset or `auto`.
pub const DTRAIN_TRANSPORT: &str = "DTRAIN_TRANSPORT";
/// For tests: a refusal of memory in a worker, such as `oom:rank=1,step=3,phase=backward`. `rank` and `step` (counted from 1) say
/// where; `phase` is `forward`, `backward`, `reduce`, `prepare`, `update` or `evaluate` (there `step` is the one before it);
/// `micro_step=2` is the second one of a rank, `after=5` grants five allocations of the phase first, `times=2` refuses in the first
/// try of the step and in the second. Unset in a run that is meant.
pub const DTRAIN_FAULT: &str = "DTRAIN_FAULT";
/// Which GPUs a CUDA program sees, and in which order; [`crate::gpu::Visible`] reads it.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// How CUDA counts GPUs: `PCI_BUS_ID` as NVML does, `FASTEST_FIRST` or unset the fastest first.
pub const CUDA_DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";
/// The version of CUDA of a libtorch of the user's own, such as `12.6`, for the check of the driver.
pub const DTRAIN_CUDA: &str = "DTRAIN_CUDA";
/// The Python that runs scripts and modules, before all others; torchrun's variable.
pub const PYTHON_EXEC: &str = "PYTHON_EXEC";
/// Folder of the Python environment in use.
pub const VIRTUAL_ENV: &str = "VIRTUAL_ENV";
/// Folder of the conda environment in use.
pub const CONDA_PREFIX: &str = "CONDA_PREFIX";
/// Begins the names of the variables that stand for flags of the launcher, as PET_NPROC_PER_NODE does.
pub const TWIN_PREFIX: &str = "PET_";

/// A variable of this process. What is not UTF-8 in it is replaced, and so refused where the value has a form.
pub fn of_process(name: &str) -> Option<String> {
    Some(std::env::var_os(name)?.to_string_lossy().into_owned())
}

/// How long operations between the ranks wait, by [`DTRAIN_COLLECTIVE_TIMEOUT`] looked up through `get`; none where it is not set.
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

/// Threads for each worker's CPU kernels: the cores shared evenly, at least one each.
pub fn omp_threads(cores: usize, local_world_size: usize) -> usize {
    (cores / local_world_size.max(1)).max(1)
}
