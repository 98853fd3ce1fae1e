//! Errors of collectives and of the rendezvous.

use std::fmt;
use std::time::Duration;

use dtrain_common::env::EnvError;
use dtrain_shared_memory::Fault;
use dtrain_torch_shim::{ErrorKind, ShimError};
use thiserror::Error;

use super::transport::Transport;

/// An operation of a group, as errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The operation's name.
    pub op: &'static str,
    /// The rank that called it.
    pub rank: usize,
    /// The number of the operation in its group, from 1.
    pub sequence: u64,
    /// The bytes of its tensor.
    pub bytes: usize,
    /// Its time-out.
    pub timeout: Duration,
}

/// A collective operation that failed.
#[derive(Debug, Clone, Error)]
pub enum CollectiveError {
    /// The tensors do not fit the operation. Nothing was sent.
    #[error("{} on rank {}: {}", .0.op, .0.rank, .1)]
    InvalidTensor(Operation, String),
    /// A peer did not join the operation within the time-out: the first such rank, if the backend knows it.
    #[error(
        "{}: time-out after {:?}, waiting for {} ({} bytes): {} hangs, is much slower than the others, or called another operation",
        .0,
        .0.timeout,
        .1.map_or_else(|| "its peers".into(), |late| format!("rank {late}")),
        .0.bytes,
        if .1.is_some() { "it" } else { "a rank" }
    )]
    TimedOut(Operation, Option<usize>),
    /// A peer died or left the group during this operation.
    #[error("{0}: a peer ended or left the group: {1}")]
    PeerLost(Operation, String),
    /// Memory ran out.
    #[error("{} on rank {}: out of memory: {}", .0.op, .0.rank, .1)]
    OutOfMemory(Operation, String),
    /// Any other failure, with the backend's message.
    #[error("{0}: {1}")]
    Backend(Operation, String),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} number {} on rank {}", self.op, self.sequence, self.rank)
    }
}

impl Operation {
    /// Describes an operation without a number: outside a group, or before the group's first operation.
    pub fn new(op: &'static str, rank: usize) -> Self {
        Self { op, rank, sequence: 0, bytes: 0, timeout: Duration::ZERO }
    }

    /// Describes the connection of a group, which waits this long for the other ranks.
    pub(crate) fn connecting(rank: usize, timeout: Duration) -> Self {
        Self { timeout, ..Self::new("connect", rank) }
    }

    /// Returns the error of a time-out.
    pub fn timed_out(self) -> CollectiveError {
        CollectiveError::TimedOut(self, None)
    }

    /// Returns the error of a rank that is gone.
    pub(crate) fn lost(self, rank: usize) -> CollectiveError {
        CollectiveError::PeerLost(self, Fault::PeerLost(rank).to_string())
    }

    /// Returns the error of any other failure, with the backend's message.
    pub fn failed(self, message: String) -> CollectiveError {
        CollectiveError::Backend(self, message)
    }

    /// Returns the error of what libtorch or Gloo reported.
    pub fn error(self, error: ShimError) -> CollectiveError {
        let message = strip_source_location(error.message);
        match error.kind {
            ErrorKind::Timeout => self.timed_out(),
            ErrorKind::Network => CollectiveError::PeerLost(self, message),
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory(self, message),
            ErrorKind::InvalidArgument => CollectiveError::InvalidTensor(self, message),
            _ => self.failed(message),
        }
    }

    /// Returns the error of an operation on tensors.
    pub fn torch(self, error: tch::TchError) -> CollectiveError {
        match dtrain_torch_shim::kind_of(&error) {
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory(self, error.to_string()),
            _ => self.failed(error.to_string()),
        }
    }
}

/// An error of the rendezvous.
#[derive(Debug, Error)]
pub enum RendezvousError {
    /// Rank 0 cannot serve the store on MASTER_PORT.
    #[error(
        "rank 0 cannot serve the store on port {0}: {1}; if another program uses the port, set another --master-port or MASTER_PORT"
    )]
    Serve(u16, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// This rank cannot reach the store at MASTER_ADDR:MASTER_PORT.
    #[error("rank {0} cannot reach the store of rank 0 at {1}: {2}")]
    Connect(usize, String, #[source] ShimError),
    /// Rank 0 ended before it sent this rank the opening.
    #[error("rank {0}: rank 0 ended before the run started: {1}")]
    NoOpening(usize, #[source] ShimError),
    /// A rank did not introduce itself to rank 0.
    #[error("rank {0} did not start: {1}; see the log of that rank")]
    Absent(usize, #[source] ShimError),
    /// Rank 0 did not start the run and has logged the reason; it ends with this exit code.
    #[error("rank 0 did not start the run: {0}")]
    NotStarted(String, u8),
    /// The store works, but the ranks cannot connect.
    #[error("the ranks cannot connect to each other: {0}")]
    Group(#[from] CollectiveError),
    /// The environment names an unknown transport.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The environments of the ranks differ.
    #[error(
        "DTRAIN_TRANSPORT is {:?} on rank {} and {:?} on rank {}; set the same value on all ranks, or none",
        .0[0].1,
        .0[0].0,
        .0[1].1,
        .0[1].0
    )]
    Disagreement([(usize, Transport); 2]),
    /// Ranks with GPUs cannot connect by NCCL.
    #[error("{0}")]
    Gpus(String),
    /// Shared memory is required but not available.
    #[error("DTRAIN_TRANSPORT is shared, but {0}; unset it to use TCP")]
    NoSharedMemory(String),
    /// MPI is required but cannot be used.
    #[error("DTRAIN_TRANSPORT is mpi, but {0}")]
    NoMpi(String),
}

/// Removes the source location in brackets with which Gloo's messages begin; users cannot use it.
fn strip_source_location(message: String) -> String {
    match message.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((location, rest)) if location.contains(".cc:") || location.contains(".h:") => rest.to_owned(),
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_names_the_late_rank_if_known() {
        let operation = Operation {
            sequence: 7,
            bytes: 12,
            timeout: Duration::from_secs(3),
            ..Operation::new("all_reduce", 0)
        };
        let timed_out = |late| CollectiveError::TimedOut(operation, late);
        let text = timed_out(Some(2)).to_string();
        assert!(text.contains("time-out after 3s, waiting for rank 2 (12 bytes): it hangs"), "{text}");
        let text = timed_out(None).to_string();
        assert!(text.contains("time-out after 3s, waiting for its peers (12 bytes): a rank hangs"), "{text}");
    }

    #[test]
    fn a_failed_allocation_is_out_of_memory() {
        let operation = Operation::new("connect", 1);
        let options = (tch::Kind::Float, tch::Device::Cpu);
        let too_large = tch::Tensor::f_zeros([1 << 50], options).expect_err("the allocation fails");
        assert!(matches!(
            operation.torch(too_large),
            CollectiveError::OutOfMemory(of, _) if of == operation
        ));
        let other = tch::Tensor::from_slice(&[1f32]).f_view([3]).expect_err("it has one value");
        assert!(matches!(
            operation.torch(other),
            CollectiveError::Backend(of, _) if of == operation
        ));
    }

    #[test]
    fn the_source_location_is_removed() {
        let gloo = "[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1";
        assert_eq!(strip_source_location(gloo.into()), "Connection closed by peer [127.0.0.1]:1");
        assert_eq!(strip_source_location("[127.0.0.1] is away".into()), "[127.0.0.1] is away");
    }
}
