//! The batch system's job.

use crate::hosts;
use crate::surroundings::Surroundings;
use crate::system::System;
use dtrain_common::env::batch::{
    FLUX_JOB_ID, FLUX_JOB_NNODES, HOSTNAME, JOB_COMPLETION_INDEX, LSB_JOBID, PBS_JOBID, PBS_NUM_NODES,
    SLURM_GPUS_ON_NODE, SLURM_JOB_END_TIME, SLURM_JOB_ID, SLURM_JOB_NUM_NODES, SLURM_RESTART_COUNT,
};
use std::str::FromStr;
use std::time::Duration;

/// A job. Values that cannot be read are `None`: they limit no run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub system: System,
    /// Its name or number, without the step.
    pub id: String,
    /// Number of nodes of the whole job.
    pub nodes: Option<usize>,
    /// Its end, since the Unix epoch.
    pub end: Option<Duration>,
    /// How often it was requeued.
    pub requeues: Option<u32>,
    /// Number of its GPUs on this node.
    pub gpus: Option<usize>,
}

impl Batch {
    /// Returns the innermost job, or `None` outside of a job. A Flux instance may run inside a job of another
    /// system.
    pub fn detect(from: Surroundings<'_>) -> Option<Self> {
        if let Some(id) = from.text(FLUX_JOB_ID) {
            return Some(Self { nodes: read(from, FLUX_JOB_NNODES), ..Self::new(System::Flux, id) });
        }
        if let Some(slurm) = Self::slurm(from) {
            return Some(slurm);
        }
        if let Some(id) = from.text(PBS_JOBID) {
            let nodes = || Some(hosts::pbs(from)?.len());
            return Some(Self {
                nodes: read(from, PBS_NUM_NODES).or_else(nodes),
                ..Self::new(System::Pbs, id)
            });
        }
        if let Some(id) = from.text(LSB_JOBID) {
            return Some(Self {
                nodes: hosts::lsf(from).map(|hosts| hosts.len()),
                ..Self::new(System::Lsf, id)
            });
        }
        let index = from.text(JOB_COMPLETION_INDEX)?;
        let pod = from.text(HOSTNAME)?;
        let name = pod.strip_suffix(&format!("-{index}"))?.to_owned();
        Some(Self::new(System::Kubernetes, name))
    }

    /// Returns Slurm's job.
    pub fn slurm(from: Surroundings<'_>) -> Option<Self> {
        Some(Self {
            nodes: read(from, SLURM_JOB_NUM_NODES),
            end: read(from, SLURM_JOB_END_TIME).map(Duration::from_secs),
            requeues: read(from, SLURM_RESTART_COUNT),
            gpus: read(from, SLURM_GPUS_ON_NODE),
            ..Self::new(System::Slurm, from.text(SLURM_JOB_ID)?)
        })
    }

    fn new(system: System, id: String) -> Self {
        Self { system, id, nodes: None, end: None, requeues: None, gpus: None }
    }
}

fn read<T: FromStr>(from: Surroundings<'_>, name: &str) -> Option<T> {
    from.text(name)?.parse().ok()
}
