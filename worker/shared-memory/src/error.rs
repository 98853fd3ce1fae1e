//! What can go wrong with shared memory, and what can go wrong between the ranks that use it.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Shared memory that cannot be made or opened.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The operating system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// There is not enough memory for a region.
    #[error("no memory for a shared region of {bytes} bytes: {source}; use fewer ranks or a smaller model")]
    NoMemory {
        /// The region's size.
        bytes: usize,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file behind a ticket is not the one that the ticket was made for.
    #[error(
        "{path} is not the shared memory of this run ({found}); the ranks seem to live in different containers: run them in one, or \
         set DTRAIN_TRANSPORT=gloo"
    )]
    WrongFile {
        /// Where it was looked for.
        path: String,
        /// What is there instead.
        found: &'static str,
    },
    /// Sizes that no segment can have.
    #[error("shared memory of {regions} regions of {bytes} bytes cannot be addressed")]
    Size {
        /// The number of regions.
        regions: usize,
        /// The bytes of each.
        bytes: usize,
    },
    /// Another process holds this rank's place.
    #[error("another process is already rank {0} of this team")]
    Taken(usize),
}

/// What the operating system refuses.
pub(crate) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> MemoryError {
    let what = what.into();
    |error| MemoryError::System { what, source: error.into() }
}

/// Why an operation failed. Every later operation of the same member fails for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A rank ended, or left the team, before it had done its part.
    #[error("rank {rank} has ended")]
    PeerLost {
        /// That rank.
        rank: usize,
    },
    /// A rank did not come in time.
    #[error("rank {rank} did not come within {after:?}")]
    TimedOut {
        /// The first of the ranks that did not come.
        rank: usize,
        /// The time-out.
        after: Duration,
    },
    /// A rank called something else.
    #[error(
        "rank {rank} started another operation here, or passed another part of the shared memory; every rank must call the same \
         operations in the same order on the same ranges"
    )]
    Mismatch {
        /// That rank.
        rank: usize,
    },
    /// The member was dropped first.
    #[error("this rank left the team before the operation had ended")]
    Stopped,
    /// The range does not lie in the segment, or is not aligned to its elements.
    #[error("the range does not lie inside the shared memory")]
    Range,
}
