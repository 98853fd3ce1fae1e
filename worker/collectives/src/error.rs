//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use dtrain_torch_shim::{ErrorKind, ShimError};
use thiserror::Error;

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
    #[error("{} on rank {}: {reason}", operation.op, operation.rank)]
    InvalidTensor {
        /// The operation.
        operation: Operation,
        /// What does not fit.
        reason: String,
    },
    /// A peer did not come within the time-out.
    #[error(
        "{operation} waited {:?} for {} ({} bytes): {} hangs, is much slower than the others, or called another operation",
        operation.timeout,
        late.map_or_else(|| "its peers".into(), |late| format!("rank {late}")),
        operation.bytes,
        if late.is_some() { "it" } else { "a rank" }
    )]
    TimedOut {
        /// The operation.
        operation: Operation,
        /// The first rank that did not come, where the backend knows it.
        late: Option<usize>,
    },
    /// A peer's connection broke: it died or left the group.
    #[error("{operation}: a peer is gone ({message})")]
    PeerLost {
        /// The operation in which this was noticed.
        operation: Operation,
        /// The transport's words.
        message: String,
    },
    /// Memory ran out.
    #[error("{} on rank {}: out of memory ({message})", operation.op, operation.rank)]
    OutOfMemory {
        /// The operation.
        operation: Operation,
        /// libtorch's words.
        message: String,
    },
    /// Anything else that the backend reports.
    #[error("{operation}: {message}")]
    Backend {
        /// The operation.
        operation: Operation,
        /// The backend's words.
        message: String,
    },
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
        CollectiveError::TimedOut { operation: self, late: None }
    }

    pub(crate) fn failed(self, message: String) -> CollectiveError {
        CollectiveError::Backend { operation: self, message }
    }

    pub(crate) fn error(self, error: ShimError) -> CollectiveError {
        let (operation, message) = (self, without_place(error.message));
        match error.kind {
            ErrorKind::Timeout => operation.timed_out(),
            ErrorKind::Network => CollectiveError::PeerLost { operation, message },
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory { operation, message },
            ErrorKind::InvalidArgument => CollectiveError::InvalidTensor { operation, reason: message },
            _ => operation.failed(message),
        }
    }

    pub(crate) fn torch(self, error: tch::TchError) -> CollectiveError {
        let (operation, message) = (self, error.to_string());
        match dtrain_torch_shim::kind_of(&error) {
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory { operation, message },
            _ => operation.failed(message),
        }
    }
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
        let timed_out = |late| CollectiveError::TimedOut { operation, late };
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
            CollectiveError::OutOfMemory { operation: of, .. } if of == operation
        ));
        let other = tch::Tensor::from_slice(&[1f32]).f_view([3]).expect_err("it has one value");
        assert!(matches!(
            operation.torch(other),
            CollectiveError::Backend { operation: of, .. } if of == operation
        ));
    }

    #[test]
    fn the_place_in_the_source_is_left_out() {
        let gloo = "[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1";
        assert_eq!(without_place(gloo.into()), "Connection closed by peer [127.0.0.1]:1");
        assert_eq!(without_place("[127.0.0.1] is away".into()), "[127.0.0.1] is away");
    }
}
