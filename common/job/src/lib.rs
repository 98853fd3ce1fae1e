//! What a batch system or an MPI starter tells its tasks: the job, the ranks, the nodes and their hosts.
//!
//! Pure: variables, files and programs come in through [`Surroundings`], so that tests are recorded
//! environments.
#![deny(unsafe_code)]
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

mod allocation;
mod error;
pub mod hostlist;
mod hosts;
mod starter;
mod surroundings;
mod system;
mod tasks;

pub use allocation::Allocation;
pub use error::JobError;
pub use hosts::slurm_address;
pub use starter::Starter;
pub use surroundings::{Number, Surroundings};
pub use system::System;
pub use tasks::Tasks;

/// The first of the ports that [`Job::port`] returns.
const FIRST_PORT: u16 = 20_000;
/// The number of these ports. All are below the kernel's ephemeral ports, which begin at 32768.
const PORTS: u64 = 10_000;
/// Distance of the ports of two steps of one job.
const STEP_DISTANCE: u64 = 1000;

/// The facts that the job gives this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub allocation: Option<Allocation>,
    /// `None`: no starter, as in a batch script.
    pub tasks: Option<Tasks>,
}

impl Job {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// A value that is not of its form, or two that contradict each other.
    pub fn detect(from: Surroundings<'_>) -> Result<Self, JobError> {
        let allocation = Allocation::detect(from);
        let tasks = Tasks::detect(from, allocation.as_ref())?;
        Ok(Self { allocation, tasks })
    }

    /// Returns the job and its tasks if they are several ranks, or may be. A pod of Kubernetes and a task of pbsdsh are
    /// alone if their number is not told: they are started for a launcher each, or for separate runs.
    pub fn several_tasks(self) -> Option<(Self, Tasks)> {
        let tasks = self.tasks.clone()?;
        let is_alone = match tasks.size {
            Some(size) => size.value == 1,
            None => matches!(tasks.starter, Starter::Kubernetes | Starter::Pbsdsh),
        };
        (!is_alone).then_some((self, tasks))
    }

    /// Returns a name that is the same for all tasks: job and step, such as `71.0`; `None` if the job gives no name.
    pub fn id(&self) -> Option<String> {
        let tasks = self.tasks.as_ref();
        match (&self.allocation, tasks.and_then(|tasks| tasks.step.as_deref())) {
            (Some(allocation), Some(step)) => Some(format!("{}.{step}", allocation.id)),
            (Some(allocation), None) => Some(allocation.id.clone()),
            (None, _) => tasks.and_then(|tasks| tasks.namespace.clone()),
        }
    }

    /// Returns a port from 20000 to 29999 that is the same for all tasks. Jobs with close numbers, and steps of
    /// one job, have different ports. `None` without a name.
    pub fn port(&self) -> Option<u16> {
        let id = self.id()?;
        let (job, step) = id.split_once('.').unwrap_or((&id, ""));
        let number = match job.parse::<u64>() {
            Ok(job) => job % PORTS + step.parse::<u64>().unwrap_or(0) % PORTS * STEP_DISTANCE,
            Err(_) => fnv1a(&id),
        };
        u16::try_from(number % PORTS).ok().map(|offset| FIRST_PORT + offset)
    }

    /// Returns the job's or starter's name for messages, such as `Slurm job 71`.
    pub fn described(&self) -> String {
        match (&self.allocation, &self.tasks) {
            (Some(allocation), Some(tasks)) if !tasks.starter.belongs_to(allocation.system) => {
                format!("{} in {} job {}", tasks.starter, allocation.system, allocation.id)
            }
            (Some(allocation), _) => format!("{} job {}", allocation.system, allocation.id),
            (None, Some(tasks)) => tasks.starter.to_string(),
            (None, None) => "no job".to_owned(),
        }
    }
}

/// The FNV-1a hash of 64 bits: the same in every version of this program, unlike the standard library's.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
