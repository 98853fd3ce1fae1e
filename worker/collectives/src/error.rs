//! What can go wrong between ranks.

use std::time::Duration;

use dtrain_torch_shim::{ErrorKind, ShimError};
use thiserror::Error;

/// A collective operation that failed.
#[derive(Debug, Clone, Error)]
pub enum CollectiveError {
    /// The tensors do not fit the operation; nothing was sent.
    #[error("{op} on rank {rank}: {reason}")]
    InvalidTensor {
        /// The operation.
        op: &'static str,
        /// The rank that called it.
        rank: usize,
        /// What does not fit.
        reason: String,
    },
    /// A peer did not come within the time-out.
    #[error(
        "{op} number {sequence} on rank {rank} waited {after:?} for {} ({bytes} bytes): {} hangs, is much slower \
         than the others, or called another operation",
        late.map_or_else(|| "its peers".into(), |late| format!("rank {late}")),
        if late.is_some() { "it" } else { "a rank" }
    )]
    TimedOut {
        /// The operation.
        op: &'static str,
        /// The rank that waited.
        rank: usize,
        /// Which operation of the group it was, counted from 1.
        sequence: u64,
        /// The size of its tensor.
        bytes: usize,
        /// The time-out.
        after: Duration,
        /// The first rank that did not come, where the backend knows it.
        late: Option<usize>,
    },
    /// A peer's connection broke: it died or left the group.
    #[error("{op} number {sequence} on rank {rank}: a peer is gone ({message})")]
    PeerLost {
        /// The operation.
        op: &'static str,
        /// The rank that noticed.
        rank: usize,
        /// Which operation of the group it was, counted from 1.
        sequence: u64,
        /// The transport's words.
        message: String,
    },
    /// Memory ran out.
    #[error("{op} on rank {rank}: out of memory ({message})")]
    OutOfMemory {
        /// The operation.
        op: &'static str,
        /// The rank that ran out.
        rank: usize,
        /// libtorch's words.
        message: String,
    },
    /// Anything else that the backend reports.
    #[error("{op} number {sequence} on rank {rank}: {message}")]
    Backend {
        /// The operation.
        op: &'static str,
        /// The rank that called it.
        rank: usize,
        /// Which operation of the group it was, counted from 1.
        sequence: u64,
        /// The backend's words.
        message: String,
    },
}

/// Which operation an error belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) op: &'static str,
    pub(crate) rank: usize,
    pub(crate) sequence: u64,
    pub(crate) bytes: usize,
    pub(crate) timeout: Duration,
}

impl Operation {
    /// Before a group's first: the others are waited for so long.
    pub(crate) fn connecting(rank: usize, timeout: Duration) -> Self {
        Self {
            op: "connect",
            rank,
            sequence: 0,
            bytes: 0,
            timeout,
        }
    }

    /// Its time-out has passed.
    pub(crate) fn timed_out(self) -> CollectiveError {
        CollectiveError::TimedOut {
            op: self.op,
            rank: self.rank,
            sequence: self.sequence,
            bytes: self.bytes,
            after: self.timeout,
            late: None,
        }
    }

    pub(crate) fn error(self, error: ShimError) -> CollectiveError {
        let Self {
            op, rank, sequence, ..
        } = self;
        let message = without_place(error.message);
        match error.kind {
            ErrorKind::Timeout => self.timed_out(),
            ErrorKind::Network => CollectiveError::PeerLost {
                op,
                rank,
                sequence,
                message,
            },
            ErrorKind::OutOfMemory => CollectiveError::OutOfMemory { op, rank, message },
            ErrorKind::InvalidArgument => CollectiveError::InvalidTensor {
                op,
                rank,
                reason: message,
            },
            _ => CollectiveError::Backend {
                op,
                rank,
                sequence,
                message,
            },
        }
    }

    pub(crate) fn torch(self, error: tch::TchError) -> CollectiveError {
        let Self {
            op, rank, sequence, ..
        } = self;
        let message = error.to_string();
        if dtrain_torch_shim::kind_of(&error) == ErrorKind::OutOfMemory {
            return CollectiveError::OutOfMemory { op, rank, message };
        }
        CollectiveError::Backend {
            op,
            rank,
            sequence,
            message,
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
        let timed_out = |late| CollectiveError::TimedOut {
            op: "all_reduce",
            rank: 0,
            sequence: 7,
            bytes: 12,
            after: Duration::from_secs(3),
            late,
        };
        let text = timed_out(Some(2)).to_string();
        assert!(
            text.contains("waited 3s for rank 2 (12 bytes): it hangs"),
            "{text}"
        );
        let text = timed_out(None).to_string();
        assert!(
            text.contains("waited 3s for its peers (12 bytes): a rank hangs"),
            "{text}"
        );
    }

    #[test]
    fn a_refused_allocation_is_out_of_memory() {
        let operation = Operation::connecting(1, Duration::ZERO);
        let options = (tch::Kind::Float, tch::Device::Cpu);
        let refused = tch::Tensor::f_zeros([1 << 50], options).expect_err("it is too large");
        assert!(matches!(
            operation.torch(refused),
            CollectiveError::OutOfMemory { rank: 1, .. }
        ));
        let other = tch::Tensor::from_slice(&[1f32])
            .f_view([3])
            .expect_err("it has one value");
        assert!(matches!(
            operation.torch(other),
            CollectiveError::Backend { rank: 1, .. }
        ));
    }

    #[test]
    fn the_place_in_the_source_is_left_out() {
        let gloo = "[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1";
        assert_eq!(
            without_place(gloo.into()),
            "Connection closed by peer [127.0.0.1]:1"
        );
        assert_eq!(without_place("[127.0.0.1] is away".into()), "[127.0.0.1] is away");
    }
}
