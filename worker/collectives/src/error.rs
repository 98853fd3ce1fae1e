//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use dtrain_common::env::EnvError;
use dtrain_torch_shim::{ErrorKind, ShimError};
use thiserror::Error;

use super::transport::Transport;

/// An operation of a group, as its errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its name.
    pub op: &'static str,
    /// The rank that called it.
    pub rank: usize,
    /// Which operation of the group it was, counted from 1.
    pub sequence: u64,
    /// The size of its tensor.
    pub bytes: usize,
    /// How long it waits for the other ranks.
    pub timeout: Duration,
}

/// A collective operation that failed.
#[derive(Debug, Clone, Error)]
pub enum CollectiveError {
    /// The tensors do not fit the operation; nothing was sent.
    #[error("{} on rank {}: {}", .0.op, .0.rank, .1)]
    InvalidTensor(Operation, String),
    /// A peer did not come within the time-out: the first rank that did not, where the backend knows it.
    #[error(
        "{} waited {:?} for {} ({} bytes): {} hangs, is much slower than the others, or called another operation",
        .0,
        .0.timeout,
        .1.map_or_else(|| "its peers".into(), |late| format!("rank {late}")),
        .0.bytes,
        if .1.is_some() { "it" } else { "a rank" }
    )]
    TimedOut(Operation, Option<usize>),
    /// A peer's connection broke in this operation: it died or left the group.
    #[error("{0}: a peer is gone ({1})")]
    PeerLost(Operation, String),
    /// Memory ran out.
    #[error("{} on rank {}: out of memory ({})", .0.op, .0.rank, .1)]
    OutOfMemory(Operation, String),
    /// Anything else, in the backend's words.
    #[error("{0}: {1}")]
    Backend(Operation, String),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} number {} on rank {}", self.op, self.sequence, self.rank)
    }
}

impl Operation {
    /// One that is none of a group's, or comes before its first.
    pub fn new(op: &'static str, rank: usize) -> Self {
        Self { op, rank, sequence: 0, bytes: 0, timeout: Duration::ZERO }
    }

    /// Before a group's first: the others are waited for so long.
    pub(crate) fn connecting(rank: usize, timeout: Duration) -> Self {
        Self { timeout, ..Self::new("connect", rank) }
    }

    /// Its time-out has passed.
    pub(crate) fn timed_out(self) -> CollectiveError {
        CollectiveError::TimedOut(self, None)
    }

    pub(crate) fn failed(self, message: String) -> CollectiveError {
        CollectiveError::Backend(self, message)
    }

    pub(crate) fn error(self, error: ShimError) -> CollectiveError {
        let message = without_place(error.message);
        match error.kind {
            ErrorKind::Timeout => self.timed_out(),
            ErrorKind::Network => CollectiveError::PeerLost(self, message),
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory(self, message),
            ErrorKind::InvalidArgument => CollectiveError::InvalidTensor(self, message),
            _ => self.failed(message),
        }
    }

    pub(crate) fn torch(self, error: tch::TchError) -> CollectiveError {
        match dtrain_torch_shim::kind_of(&error) {
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory(self, error.to_string()),
            _ => self.failed(error.to_string()),
        }
    }
}

/// The ranks did not find each other.
#[derive(Debug, Error)]
pub enum RendezvousError {
    /// Rank 0 cannot serve the store on MASTER_PORT.
    #[error(
        "rank 0 cannot serve the store on port {0}: {1}; another program may hold the port, or another run"
    )]
    Serve(u16, #[source] ShimError),
    /// This rank cannot reach the store at MASTER_ADDR:MASTER_PORT.
    #[error("rank {0} cannot reach the store of rank 0 at {1}: {2}")]
    Connect(usize, String, #[source] ShimError),
    /// Rank 0 ended before it told this rank how the run begins.
    #[error("rank {0}: rank 0 ended before the run began ({1})")]
    NoOpening(usize, #[source] ShimError),
    /// Rank 0 refused the run; it has said why itself.
    #[error("rank 0 refused the run: {0}")]
    Refused(String),
    /// The store works, but the ranks cannot connect to each other.
    #[error("the ranks cannot connect to each other: {0}")]
    Group(#[from] CollectiveError),
    /// The environment names no transport.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The ranks' environments differ.
    #[error(
        "DTRAIN_TRANSPORT is {:?} on rank {} and {:?} on rank {}; set it to the same on all ranks, or nowhere",
        .0[0].1,
        .0[0].0,
        .0[1].1,
        .0[1].0
    )]
    Disagreement([(usize, Transport); 2]),
    /// Ranks with GPUs cannot reach each other by them.
    #[error("{0}")]
    Gpus(String),
    /// Shared memory was asked for and cannot be had.
    #[error("DTRAIN_TRANSPORT is shared, but {0}; leave it unset to use TCP in such a case")]
    NoSharedMemory(String),
}

/// Gloo begins its messages with the place in its own source, in brackets: of no use to who reads them.
fn without_place(message: String) -> String {
    match message.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((place, rest)) if place.contains(".cc:") || place.contains(".h:") => rest.to_owned(),
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_names_the_rank_where_it_is_known() {
        let operation = Operation {
            sequence: 7,
            bytes: 12,
            timeout: Duration::from_secs(3),
            ..Operation::new("all_reduce", 0)
        };
        let timed_out = |late| CollectiveError::TimedOut(operation, late);
        let text = timed_out(Some(2)).to_string();
        assert!(text.contains("waited 3s for rank 2 (12 bytes): it hangs"), "{text}");
        let text = timed_out(None).to_string();
        assert!(text.contains("waited 3s for its peers (12 bytes): a rank hangs"), "{text}");
    }

    #[test]
    fn a_refused_allocation_is_out_of_memory() {
        let operation = Operation::new("connect", 1);
        let options = (tch::Kind::Float, tch::Device::Cpu);
        let refused = tch::Tensor::f_zeros([1 << 50], options).expect_err("it is too large");
        assert!(matches!(
            operation.torch(refused),
            CollectiveError::OutOfMemory(of, _) if of == operation
        ));
        let other = tch::Tensor::from_slice(&[1f32]).f_view([3]).expect_err("it has one value");
        assert!(matches!(
            operation.torch(other),
            CollectiveError::Backend(of, _) if of == operation
        ));
    }

    #[test]
    fn the_place_in_the_source_is_left_out() {
        let gloo = "[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1";
        assert_eq!(without_place(gloo.into()), "Connection closed by peer [127.0.0.1]:1");
        assert_eq!(without_place("[127.0.0.1] is away".into()), "[127.0.0.1] is away");
    }
}
