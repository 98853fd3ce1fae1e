//! The batch systems.

use std::fmt;

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Flux,
    Kubernetes,
    Lsf,
    Pbs,
    Slurm,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flux => "Flux",
            Self::Kubernetes => "Kubernetes",
            Self::Lsf => "LSF",
            Self::Pbs => "PBS",
            Self::Slurm => "Slurm",
        })
    }
}

impl System {
    /// Returns the command that starts one task on each node of a job.
    pub fn starter(self) -> &'static str {
        match self {
            Self::Flux => "flux run --tasks-per-node=1",
            Self::Kubernetes => "an Indexed Job",
            Self::Lsf => "mpirun or jsrun, one task per node",
            Self::Pbs => "mpiexec or pbsdsh, one task per node",
            Self::Slurm => "srun --ntasks-per-node=1",
        }
    }
}
