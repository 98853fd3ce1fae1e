//! The programs that start tasks, and their variables.

use crate::surroundings::Surroundings;
use crate::system::System;
use dtrain_common::env::job::{
    FLUX_JOB_NNODES, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID, FLUX_TASK_RANK, JOB_COMPLETION_INDEX,
    JSM_NAMESPACE_LOCAL_RANK, JSM_NAMESPACE_LOCAL_SIZE, JSM_NAMESPACE_RANK, JSM_NAMESPACE_SIZE,
    MPI_LOCALNRANKS, MPI_LOCALRANKID, OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE,
    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, PALS_LOCAL_RANKID, PALS_NODEID, PALS_RANKID, PBS_NODENUM,
    PBS_NUM_NODES, PBS_TASKNUM, PMI_LOCAL_SIZE, PMI_RANK, PMI_SIZE, PMIX_RANK, SLURM_LOCALID, SLURM_NODEID,
    SLURM_PROCID, SLURM_STEP_ID, SLURM_STEP_NUM_NODES, SLURM_STEP_NUM_TASKS,
};
use std::fmt;

/// Step numbers from here on are Slurm's own: the batch script, the shell of an interactive job, and others.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// A program that starts tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    Flux,
    Jsrun,
    Kubernetes,
    /// MPICH's mpiexec, and those made from it, such as Intel's.
    Hydra,
    OpenMpi,
    Pals,
    Pbsdsh,
    Pmi,
    Pmix,
    Srun,
}

impl fmt::Display for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flux => "Flux",
            Self::Jsrun => "jsrun",
            Self::Kubernetes => "Kubernetes",
            Self::Hydra => "MPICH (Hydra)",
            Self::OpenMpi => "Open MPI",
            Self::Pals => "PALS",
            Self::Pbsdsh => "pbsdsh",
            Self::Pmi => "PMI",
            Self::Pmix => "PMIx",
            Self::Srun => "srun",
        })
    }
}

impl Starter {
    /// Returns whether the starter is the batch system's own.
    pub(crate) fn belongs_to(self, system: System) -> bool {
        matches!(
            (self, system),
            (Self::Flux, System::Flux)
                | (Self::Kubernetes, System::Kubernetes)
                | (Self::Jsrun, System::Lsf)
                | (Self::Pbsdsh, System::Pbs)
                | (Self::Srun, System::Slurm)
        )
    }

    /// Returns the innermost starter. Those of MPI run inside steps of Slurm and Flux, and inherit their
    /// variables.
    pub(crate) fn detect(from: Surroundings<'_>) -> Option<&'static Names> {
        STARTERS.iter().find(|names| names.has_started(from))
    }
}

/// The variables of a starter; `None` for a value that it does not tell.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) starter: Starter,
    /// Only this starter sets it.
    marker: &'static str,
    pub(crate) rank: &'static str,
    pub(crate) size: Option<&'static str>,
    pub(crate) local_rank: Option<&'static str>,
    pub(crate) local_size: Option<&'static str>,
    pub(crate) node: Option<&'static str>,
    pub(crate) nodes: Option<&'static str>,
}

/// The innermost first. jsrun also sets Open MPI's variables, PALS and Slurm also set PMI's.
const STARTERS: [Names; 10] = [
    Names {
        size: Some(JSM_NAMESPACE_SIZE),
        local_rank: Some(JSM_NAMESPACE_LOCAL_RANK),
        local_size: Some(JSM_NAMESPACE_LOCAL_SIZE),
        ..Names::new(Starter::Jsrun, JSM_NAMESPACE_RANK)
    },
    Names {
        size: Some(OMPI_COMM_WORLD_SIZE),
        local_rank: Some(OMPI_COMM_WORLD_LOCAL_RANK),
        local_size: Some(OMPI_COMM_WORLD_LOCAL_SIZE),
        ..Names::new(Starter::OpenMpi, OMPI_COMM_WORLD_RANK)
    },
    Names {
        size: Some(PMI_SIZE),
        local_rank: Some(PALS_LOCAL_RANKID),
        local_size: Some(PMI_LOCAL_SIZE),
        node: Some(PALS_NODEID),
        ..Names::new(Starter::Pals, PALS_RANKID)
    },
    Names {
        marker: MPI_LOCALRANKID,
        size: Some(PMI_SIZE),
        local_rank: Some(MPI_LOCALRANKID),
        local_size: Some(MPI_LOCALNRANKS),
        ..Names::new(Starter::Hydra, PMI_RANK)
    },
    Names {
        size: Some(FLUX_JOB_SIZE),
        local_rank: Some(FLUX_TASK_LOCAL_ID),
        nodes: Some(FLUX_JOB_NNODES),
        ..Names::new(Starter::Flux, FLUX_TASK_RANK)
    },
    Names {
        marker: SLURM_STEP_ID,
        size: Some(SLURM_STEP_NUM_TASKS),
        local_rank: Some(SLURM_LOCALID),
        node: Some(SLURM_NODEID),
        nodes: Some(SLURM_STEP_NUM_NODES),
        ..Names::new(Starter::Srun, SLURM_PROCID)
    },
    Names::new(Starter::Pmix, PMIX_RANK),
    Names { size: Some(PMI_SIZE), ..Names::new(Starter::Pmi, PMI_RANK) },
    Names { node: Some(PBS_NODENUM), nodes: Some(PBS_NUM_NODES), ..Names::new(Starter::Pbsdsh, PBS_NODENUM) },
    Names { node: Some(JOB_COMPLETION_INDEX), ..Names::new(Starter::Kubernetes, JOB_COMPLETION_INDEX) },
];

impl Names {
    const fn new(starter: Starter, rank: &'static str) -> Self {
        Self {
            starter,
            marker: rank,
            rank,
            size: None,
            local_rank: None,
            local_size: None,
            node: None,
            nodes: None,
        }
    }

    fn has_started(&self, from: Surroundings<'_>) -> bool {
        let Some(value) = from.text(self.marker) else { return false };
        match self.starter {
            Starter::Srun => value.parse::<u64>().is_ok_and(|step| step < FIRST_SPECIAL_STEP),
            // The batch script is task 1 of node 0.
            Starter::Pbsdsh => value != "0" || from.text(PBS_TASKNUM).is_some_and(|task| task != "1"),
            _ => true,
        }
    }
}
