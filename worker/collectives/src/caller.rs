//! What the backends have in common of a rank that starts operations.

use std::cell::Cell;
use std::time::Duration;

use super::{Collective, CollectiveError, DEFAULT_TIMEOUT, Operation};

/// A rank in a group: how long it waits for the others, and how many operations it has started.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) timeout: Duration,
    started: Cell<u64>,
}

impl Caller {
    pub(super) fn new(rank: usize, size: usize) -> Self {
        Self { rank, size, timeout: DEFAULT_TIMEOUT, started: Cell::new(0) }
    }

    pub(super) fn check(&self, one: Collective<'_>) -> Result<(), CollectiveError> {
        one.check(self.rank, self.size)
    }

    /// The next operation, of so many bytes.
    pub(super) fn operation(&self, op: &'static str, bytes: usize) -> Operation {
        self.started.update(|started| started + 1);
        Operation { op, rank: self.rank, sequence: self.started.get(), bytes, timeout: self.timeout }
    }
}
