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
    /// The allocation of a region of this many bytes failed.
    #[error("cannot allocate {0} bytes of shared memory: {1}; use fewer ranks or a smaller model")]
    NoMemory(usize, #[source] io::Error),
    /// The ticket's path is another file than the segment of the ticket.
    #[error(
        "{0} is {1}, not this run's shared memory: the ranks seem to run in different containers; run them in one \
         container, or set DTRAIN_TRANSPORT=gloo"
    )]
    WrongFile(String, &'static str),
    /// A segment cannot have this many regions of this many bytes.
    #[error("invalid size of shared memory: {0} regions of {1} bytes")]
    Size(usize, usize),
    /// Another process already is this rank.
    #[error("another process has already joined as rank {0}")]
    RankTaken(usize),
}

pub(crate) fn failed<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> MemoryError {
    let action = action.into();
    |error| MemoryError::System(action, error.into())
}

/// Why an operation failed. All later operations of the member fail for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A rank ended or left the team before it had done its part.
    #[error("rank {0} ended or left the group")]
    PeerLost(usize),
    /// The operation timed out: the first rank that was missing, and the time-out.
    #[error("rank {0} did not join within {1:?}")]
    TimedOut(usize, Duration),
    /// A rank started another operation.
    #[error(
        "rank {0} started a different operation, or used a different range of the shared memory; every rank must start the \
         same operations in the same order on the same ranges"
    )]
    Mismatch(usize),
    /// The member was dropped before the operation ended.
    #[error("this rank left the group before the operation ended")]
    Stopped,
    /// The range is not inside the segment, or is not aligned to its elements.
    #[error("the range is outside the shared memory, or not aligned")]
    Range,
}
