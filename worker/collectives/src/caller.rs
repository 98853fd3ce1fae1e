//! What the backends have in common of a rank that starts operations.

use std::cell::Cell;
use std::time::Duration;

use tch::Tensor;

use super::DEFAULT_TIMEOUT;
use super::checks::Check;
use super::error::Operation;

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
        Self {
            rank,
            size,
            timeout: DEFAULT_TIMEOUT,
            started: Cell::new(0),
        }
    }

    pub(super) fn check(&self, op: &'static str) -> Check {
        Check {
            op,
            rank: self.rank,
            size: self.size,
        }
    }

    /// The next operation, of so many bytes.
    pub(super) fn operation(&self, op: &'static str, bytes: usize) -> Operation {
        let sequence = self.started.get() + 1;
        self.started.set(sequence);
        Operation {
            op,
            rank: self.rank,
            sequence,
            bytes,
            timeout: self.timeout,
        }
    }
}

pub(super) fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
