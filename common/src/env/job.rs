//! What batch systems and MPI starters tell their tasks.

/// Set by Slurm: number of the job; each element of an array has its own.
pub const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
/// Set by Slurm: hosts of the job, such as `n[01-03],m1`.
pub const SLURM_JOB_NODELIST: &str = "SLURM_JOB_NODELIST";
/// Set by Slurm in clouds: `name:address:hostname` of each node, with commas.
pub const SLURM_NODE_ALIASES: &str = "SLURM_NODE_ALIASES";
/// Set by Slurm: number of nodes of the job.
pub const SLURM_JOB_NUM_NODES: &str = "SLURM_JOB_NUM_NODES";
/// Set by Slurm: end of the job in seconds since the Unix epoch, from version 23 on.
pub const SLURM_JOB_END_TIME: &str = "SLURM_JOB_END_TIME";
/// Set by Slurm: number of requeues of the job; not set before the first.
pub const SLURM_RESTART_COUNT: &str = "SLURM_RESTART_COUNT";
/// Set by Slurm: number of the job's GPUs on this node.
pub const SLURM_GPUS_ON_NODE: &str = "SLURM_GPUS_ON_NODE";
/// Set by Slurm: number of the step; not set in the batch script.
pub const SLURM_STEP_ID: &str = "SLURM_STEP_ID";
/// Set by Slurm: hosts of the step.
pub const SLURM_STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
/// Set by Slurm: number of nodes of the step.
pub const SLURM_STEP_NUM_NODES: &str = "SLURM_STEP_NUM_NODES";
/// Set by Slurm: number of tasks of the step.
pub const SLURM_STEP_NUM_TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// Set by Slurm: number of tasks on each node of the step, such as `8(x4),2`.
pub const SLURM_STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
/// Set by Slurm: rank of this task in the step.
pub const SLURM_PROCID: &str = "SLURM_PROCID";
/// Set by Slurm: rank of this task on its node.
pub const SLURM_LOCALID: &str = "SLURM_LOCALID";
/// Set by Slurm: index of this node in the step.
pub const SLURM_NODEID: &str = "SLURM_NODEID";
/// Set by Slurm: cores of each task, if `--cpus-per-task` was given.
pub const SLURM_CPUS_PER_TASK: &str = "SLURM_CPUS_PER_TASK";
/// Set by PBS: name of the job, such as `123.server`.
pub const PBS_JOBID: &str = "PBS_JOBID";
/// Set by PBS: file with a line for each slot; on the first host only.
pub const PBS_NODEFILE: &str = "PBS_NODEFILE";
/// Set by PBS: number of nodes of the job, in Torque.
pub const PBS_NUM_NODES: &str = "PBS_NUM_NODES";
/// Set by PBS: index of this node in the job.
pub const PBS_NODENUM: &str = "PBS_NODENUM";
/// Set by PBS: number of this task on its node; the batch script is 1.
pub const PBS_TASKNUM: &str = "PBS_TASKNUM";
/// Set by LSF: number of the job.
pub const LSB_JOBID: &str = "LSB_JOBID";
/// Set by LSF: file with a line for each slot of the job.
pub const LSB_DJOB_HOSTFILE: &str = "LSB_DJOB_HOSTFILE";
/// Set by LSF: hosts of the job with their slots, such as `a 4 b 4`.
pub const LSB_MCPU_HOSTS: &str = "LSB_MCPU_HOSTS";
/// Set by jsrun: rank of this task.
pub const JSM_NAMESPACE_RANK: &str = "JSM_NAMESPACE_RANK";
/// Set by jsrun: number of tasks.
pub const JSM_NAMESPACE_SIZE: &str = "JSM_NAMESPACE_SIZE";
/// Set by jsrun: rank of this task on its node.
pub const JSM_NAMESPACE_LOCAL_RANK: &str = "JSM_NAMESPACE_LOCAL_RANK";
/// Set by jsrun: number of tasks on this node.
pub const JSM_NAMESPACE_LOCAL_SIZE: &str = "JSM_NAMESPACE_LOCAL_SIZE";
/// Set by Flux: name of the job.
pub const FLUX_JOB_ID: &str = "FLUX_JOB_ID";
/// Set by Flux: number of nodes of the job.
pub const FLUX_JOB_NNODES: &str = "FLUX_JOB_NNODES";
/// Set by Flux: number of tasks.
pub const FLUX_JOB_SIZE: &str = "FLUX_JOB_SIZE";
/// Set by Flux: rank of this task.
pub const FLUX_TASK_RANK: &str = "FLUX_TASK_RANK";
/// Set by Flux: rank of this task on its node.
pub const FLUX_TASK_LOCAL_ID: &str = "FLUX_TASK_LOCAL_ID";
/// Set by Kubernetes: index of this pod in an Indexed Job.
pub const JOB_COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";
/// Set by Kubernetes: name of the pod; in an Indexed Job `JOB-INDEX`.
pub const HOSTNAME: &str = "HOSTNAME";
/// Set by Open MPI: rank of this task.
pub const OMPI_COMM_WORLD_RANK: &str = "OMPI_COMM_WORLD_RANK";
/// Set by Open MPI: number of tasks.
pub const OMPI_COMM_WORLD_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
/// Set by Open MPI: rank of this task on its node.
pub const OMPI_COMM_WORLD_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
/// Set by Open MPI: number of tasks on this node.
pub const OMPI_COMM_WORLD_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// Set by PMIx: rank of this task.
pub const PMIX_RANK: &str = "PMIX_RANK";
/// Set by PMIx: name of the job.
pub const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
/// Set by MPICH: rank of this task; also set by PALS and Slurm.
pub const PMI_RANK: &str = "PMI_RANK";
/// Set by MPICH: number of tasks.
pub const PMI_SIZE: &str = "PMI_SIZE";
/// Set by MPICH: number of tasks on this node, by PALS.
pub const PMI_LOCAL_SIZE: &str = "PMI_LOCAL_SIZE";
/// Set by MPICH: rank of this task on its node.
pub const MPI_LOCALRANKID: &str = "MPI_LOCALRANKID";
/// Set by MPICH: number of tasks on this node.
pub const MPI_LOCALNRANKS: &str = "MPI_LOCALNRANKS";
/// Set by PALS: rank of this task.
pub const PALS_RANKID: &str = "PALS_RANKID";
/// Set by PALS: rank of this task on its node.
pub const PALS_LOCAL_RANKID: &str = "PALS_LOCAL_RANKID";
/// Set by PALS: index of this node.
pub const PALS_NODEID: &str = "PALS_NODEID";
