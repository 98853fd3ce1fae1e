use crate::PMI_FD;
use std::io;

/// An error in the conversation with the starter.
#[derive(Debug, thiserror::Error)]
pub enum PmiError {
    /// A variable of the starter is missing or wrong.
    #[error(
        "the environment variable {name} is {value:?}; expected {expected}: start all tasks with the same mpirun or srun"
    )]
    Variable {
        name: &'static str,
        /// Empty if it is not set.
        value: String,
        expected: &'static str,
    },
    /// The starter's socket fails, or nothing came in time.
    #[error(
        "the starter of this task does not answer at {PMI_FD}: {0}; look for the end of another task in its output"
    )]
    Socket(#[from] io::Error),
    /// An answer is not of the protocol.
    #[error(
        "the starter of this task answered {answer:?} instead of {expected}; set MASTER_ADDR and MASTER_PORT, and unset PMI_FD"
    )]
    Answer { expected: &'static str, answer: String },
    /// A text does not fit into a value.
    #[error("a task's text of {bytes} bytes is too long for PMI")]
    TooLong { bytes: usize },
    /// PMIx's library is missing.
    #[error(
        "cannot load PMIx, by which this task was started: {0}; install libpmix.so.2, or set MASTER_ADDR and MASTER_PORT"
    )]
    NoLibrary(String),
    /// PMIx's library fails.
    #[error(
        "PMIx: {call} failed: {reason}; look for the end of another task, or set DTRAIN_PMI=off, MASTER_ADDR and MASTER_PORT"
    )]
    Pmix {
        call: &'static str,
        /// The library's own word.
        reason: String,
    },
}
