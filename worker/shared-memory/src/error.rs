//! What can go wrong with shared memory, and what can go wrong between the ranks that use it.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Shared memory that cannot be made or opened.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The operating system refuses.
    #[error("cannot {0}: {1}")]
    System(String, #[source] io::Error),
    /// There is not enough memory for a region of so many bytes.
    #[error("no memory for a shared region of {0} bytes: {1}; use fewer ranks or a smaller model")]
    NoMemory(usize, #[source] io::Error),
    /// At the path of a ticket lies something else than what the ticket was made for.
    #[error(
        "{0} is not the shared memory of this run ({1}); the ranks seem to live in different containers: run them in one, or \
         set DTRAIN_TRANSPORT=gloo"
    )]
    WrongFile(String, &'static str),
    /// So many regions of so many bytes, which no segment can have.
    #[error("shared memory of {0} regions of {1} bytes cannot be addressed")]
    Size(usize, usize),
    /// Another process holds this rank's place.
    #[error("another process is already rank {0} of this team")]
    Taken(usize),
}

pub(crate) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> MemoryError {
    let what = what.into();
    |error| MemoryError::System(what, error.into())
}

/// Why an operation failed. Every later operation of the same member fails for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A rank ended, or left the team, before it had done its part.
    #[error("rank {0} has ended")]
    PeerLost(usize),
    /// The first of the ranks that did not come within the time-out.
    #[error("rank {0} did not come within {1:?}")]
    TimedOut(usize, Duration),
    /// A rank called something else.
    #[error(
        "rank {0} started another operation here, or passed another part of the shared memory; every rank must call the same \
         operations in the same order on the same ranges"
    )]
    Mismatch(usize),
    /// The member was dropped first.
    #[error("this rank left the team before the operation had ended")]
    Stopped,
    /// The range does not lie in the segment, or is not aligned to its elements.
    #[error("the range does not lie inside the shared memory")]
    Range,
}
