//! The resources that a batch system has allocated to a job.

use crate::hosts;
use crate::surroundings::Surroundings;
use crate::system::System;
use dtrain_common::env::job::{
    FLUX_JOB_ID, FLUX_JOB_NNODES, HOSTNAME, JOB_COMPLETION_INDEX, LSB_JOBID, PBS_JOBID, PBS_NUM_NODES,
    SLURM_GPUS_ON_NODE, SLURM_JOB_END_TIME, SLURM_JOB_ID, SLURM_JOB_NUM_NODES, SLURM_RESTART_COUNT,
};
use dtrain_common::time::parse_clock;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest margin before a time limit, and otherwise its part of the limit.
const LONGEST_MARGIN: Duration = Duration::from_secs(120);
const MARGIN_PART: u32 = 10;

/// The allocation of a job. Values that cannot be read are `None`: they limit no run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
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

impl Allocation {
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

    /// Returns the rest of a Slurm job's time at `now`; `None` if it has no end, or another system.
    pub fn time_left(&self, from: Surroundings<'_>, now: SystemTime) -> Option<Duration> {
        if self.system != System::Slurm {
            return None;
        }
        let left = match self.end {
            Some(end) => UNIX_EPOCH.checked_add(end)?.duration_since(now).ok(),
            // Older versions do not tell the end. Words such as UNLIMITED are no time.
            None => {
                let text = (from.command)(&["squeue", "--noheader", "--jobs", &self.id, "--format=%L"])?;
                parse_clock(text.trim())
            }
        };
        left.filter(|left| !left.is_zero())
    }

    /// Returns how long before the end of a time limit the workers are asked to stop.
    pub fn margin(limit: Duration) -> Duration {
        (limit / MARGIN_PART).min(LONGEST_MARGIN)
    }

    fn new(system: System, id: String) -> Self {
        Self { system, id, nodes: None, end: None, requeues: None, gpus: None }
    }
}

fn read<T: FromStr>(from: Surroundings<'_>, name: &str) -> Option<T> {
    from.text(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn squeues_words_for_what_is_left_are_understood() {
        for (text, seconds) in [
            ("0:37\n", Some(37)),
            ("59", Some(59)),
            ("10:00", Some(600)),
            ("2:03:04", Some(7384)),
            ("1-02:03:04", Some(93_784)),
            ("UNLIMITED", None),
            ("NOT_SET", None),
            ("INVALID", None),
            ("0:00", None),
            ("1:2:3:4", None),
            ("", None),
        ] {
            let from = Surroundings {
                variable: &|name| (name == SLURM_JOB_ID).then(|| "71".to_owned()),
                file: &|_| None,
                command: &|words| {
                    assert_eq!(words, ["squeue", "--noheader", "--jobs", "71", "--format=%L"]);
                    Some(text.to_owned())
                },
            };
            let left = Allocation::slurm(from).unwrap().time_left(from, SystemTime::now());
            assert_eq!(left, seconds.map(Duration::from_secs), "{text}");
        }
    }
}
