//! PMI-1, PMI-2 and PMIx: what tasks tell each other through the program that started them, such as `mpirun` or
//! `srun --mpi=pmi2`.
//!
//! PMI-1 and PMI-2 are text over a socket that the starter opened, and are spoken here. PMIx has no documented
//! text: its library is loaded when a starter uses it. No MPI library is needed.
//!
//! Sources: MPICH's `src/pmi` (PMI-1 "simple" wire protocol, and PMI-2); the PMIx standard, version 4.
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

mod error;
mod hex;
mod pmix;
mod socket;
mod v1;
mod v2;

use std::fmt;

pub use error::PmiError;

use pmix::Pmix;
use socket::{Socket, Task};
use v1::V1;
use v2::V2;

/// Set by the starter of PMI-1 and PMI-2: the number of an open socket to it.
pub const PMI_FD: &str = "PMI_FD";
/// Set by the starter of PMI-1 and PMI-2: rank of this task.
pub const PMI_RANK: &str = "PMI_RANK";
/// Set by the starter of PMI-1 and PMI-2: number of tasks.
pub const PMI_SIZE: &str = "PMI_SIZE";
/// Set by the user: the protocol with the starter: `auto`, `1`, `2`, `pmix` or `off`.
pub const DTRAIN_PMI: &str = "DTRAIN_PMI";
/// Set by the starter of PMIx: name of the tasks.
pub const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";

/// A key-value space of all tasks of a starter.
///
/// Order: `put`, then `fence` by all tasks, then `get`.
trait KeyValues: fmt::Debug + Send {
    /// Keys and values have letters, digits and `-` only; values at most [`LONGEST_VALUE`] characters.
    fn put(&mut self, key: &str, value: &str) -> Result<(), PmiError>;
    /// Waits for all tasks.
    fn fence(&mut self) -> Result<(), PmiError>;
    /// Returns what the task `rank` has put under this key before the last fence.
    fn get(&mut self, rank: usize, key: &str) -> Result<String, PmiError>;
    /// Tells the starter that this task ends as planned.
    fn finalize(&mut self) -> Result<(), PmiError>;
}

/// The longest value that all starters accept: MPICH's limit is 1023.
const LONGEST_VALUE: usize = 1000;

/// A connection to the program that started this task and its peers.
#[derive(Debug)]
pub struct Pmi {
    values: Box<dyn KeyValues>,
    task: Task,
    /// Number of the next gathering, for its keys.
    round: usize,
}

/// The protocol with the starter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// The one that the starter's variables name.
    #[default]
    Auto,
    V1,
    V2,
    Pmix,
    /// None: the variables are ignored.
    Off,
}

impl Protocol {
    /// All protocols with their names in [`DTRAIN_PMI`].
    const ALL: [(&str, Self); 5] =
        [("auto", Self::Auto), ("1", Self::V1), ("2", Self::V2), ("pmix", Self::Pmix), ("off", Self::Off)];

    fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, PmiError> {
        let value = get(DTRAIN_PMI).unwrap_or_default();
        let name = if value.trim().is_empty() { "auto" } else { value.trim() };
        let found = Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, protocol)| *protocol);
        found.ok_or(PmiError::Variable { name: DTRAIN_PMI, value, expected: "auto, 1, 2, pmix or off" })
    }
}

impl Pmi {
    /// Connects to the starter that the variables name; `None` if they name no starter. Call it once in a process: a
    /// second connection would disturb the first.
    ///
    /// # Errors
    ///
    /// The starter does not answer as the protocol demands, or PMIx's library cannot be loaded.
    pub fn connect(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, PmiError> {
        let protocol = Protocol::read(get)?;
        let text = matches!(protocol, Protocol::Auto | Protocol::V1 | Protocol::V2);
        let connected = if let Some(socket) = text.then(|| Socket::of_starter(get)).transpose()?.flatten() {
            if protocol == Protocol::V2 {
                Self::of_v2(socket)?
            } else {
                Self::of_socket(socket, Task::of_variables(get)?)?
            }
        } else if matches!(protocol, Protocol::Auto | Protocol::Pmix) && get(PMIX_NAMESPACE).is_some() {
            let (pmix, task) = Pmix::connect()?;
            Self { values: Box::new(pmix), task, round: 0 }
        } else {
            return Ok(None);
        };
        Ok(Some(connected))
    }

    /// Connects by PMI-1, or by PMI-2 if the starter refuses it.
    fn of_socket(socket: Socket, task: Task) -> Result<Self, PmiError> {
        match V1::connect(socket)? {
            Ok(v1) => Ok(Self { values: Box::new(v1), task, round: 0 }),
            Err(socket) => Self::of_v2(socket),
        }
    }

    fn of_v2(socket: Socket) -> Result<Self, PmiError> {
        let (v2, task) = V2::connect(socket)?;
        Ok(Self { values: Box::new(v2), task, round: 0 })
    }

    /// Works like [`Pmi::connect`] where PMI is no must: `None` without PMIx's library.
    ///
    /// # Errors
    ///
    /// The starter does not answer as the protocol demands.
    pub fn connect_if_there(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, PmiError> {
        match Self::connect(get) {
            Err(PmiError::NoLibrary(_)) => Ok(None),
            connected => connected,
        }
    }

    pub fn rank(&self) -> usize {
        self.task.rank
    }

    pub fn size(&self) -> usize {
        self.task.size
    }

    /// Returns the texts of all tasks by rank. All tasks call it, with texts of at most 500 bytes.
    ///
    /// # Errors
    ///
    /// A text is too long, or the starter fails.
    pub fn gather(&mut self, own: &str) -> Result<Vec<String>, PmiError> {
        if 2 * own.len() > LONGEST_VALUE {
            return Err(PmiError::TooLong { bytes: own.len() });
        }
        let text = hex::encode(own);
        let round = self.round;
        self.round += 1;
        let key = |rank: usize| format!("dtrain-{round}-{rank}");
        self.values.put(&key(self.rank()), &text)?;
        self.values.fence()?;
        let mut texts = Vec::with_capacity(self.size());
        for rank in 0..self.size() {
            let text = self.values.get(rank, &key(rank))?;
            texts.push(
                hex::decode(&text)
                    .ok_or(PmiError::Answer { expected: "the text of a task", answer: text })?,
            );
        }
        Ok(texts)
    }

    /// Waits for all tasks, and tells the starter that this one ends as planned. A task that ends without it
    /// makes most starters end the others. Call it last, after MPI was finalised.
    ///
    /// # Errors
    ///
    /// The starter fails, or MPI has closed the connection.
    pub fn finish(mut self) -> Result<(), PmiError> {
        self.values.fence()?;
        self.values.finalize()
    }

    /// Tells the starter that this task ends by itself, without waiting for the others. The starter then passes
    /// on the task's last words and its exit code, instead of killing the others at once.
    ///
    /// # Errors
    ///
    /// As [`Pmi::finish`].
    pub fn leave(mut self) -> Result<(), PmiError> {
        self.values.finalize()
    }
}

#[cfg(test)]
mod tests;
