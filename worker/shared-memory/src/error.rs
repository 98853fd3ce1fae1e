//! Errors of shared memory, and faults between the ranks that use it.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// An error of creating or opening shared memory.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The operating system returned an error.
    #[error("cannot {0}: {1}")]
    System(String, #[source] io::Error),
    /// There is no memory for a region of this many bytes.
    #[error("no memory for a shared region of {0} bytes: {1}; use fewer ranks or a smaller model")]
    NoMemory(usize, #[source] io::Error),
    /// The ticket's path is another file than the segment of the ticket.
    #[error(
        "{0} is not the shared memory of this run ({1}); the ranks seem to live in different containers: run them in one, or \
         set DTRAIN_TRANSPORT=gloo"
    )]
    WrongFile(String, &'static str),
    /// A segment of this many regions of this many bytes is impossible.
    #[error("shared memory of {0} regions of {1} bytes cannot be addressed")]
    Size(usize, usize),
    /// Another process already is this rank.
    #[error("another process is already rank {0} of this team")]
    RankTaken(usize),
}

pub(crate) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> MemoryError {
    let what = what.into();
    |error| MemoryError::System(what, error.into())
}

/// Why an operation failed. All later operations of the member fail for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A rank ended or left the team before it had done its part.
    #[error("rank {0} has ended")]
    PeerLost(usize),
    /// The operation timed out: the first rank that was missing, and the time-out.
    #[error("rank {0} did not come within {1:?}")]
    TimedOut(usize, Duration),
    /// A rank started another operation.
    #[error(
        "rank {0} started another operation here, or passed another part of the shared memory; every rank must call the same \
         operations in the same order on the same ranges"
    )]
    Mismatch(usize),
    /// The member was dropped before the operation ended.
    #[error("this rank left the team before the operation had ended")]
    Stopped,
    /// The range is not inside the segment, or is not aligned to its elements.
    #[error("the range does not lie inside the shared memory")]
    Range,
}
