//! The operations, what every backend asks of their tensors, and a rank that starts them.

use std::cell::Cell;
use std::time::Duration;

use tch::{Kind, Tensor};

use super::{CollectiveError, DEFAULT_TIMEOUT, Operation, ReduceOp};

/// An operation between the ranks.
#[derive(Debug, Clone, Copy)]
pub enum Collective<'a> {
    /// Reduces a tensor over all ranks, in place: every rank ends with the same bits.
    AllReduce(&'a Tensor, ReduceOp),
    /// Copies the tensor of the rank that is named to all ranks, in place.
    Broadcast(&'a Tensor, usize),
    /// Collects every rank's part in the order of ranks. In place where `input` is the `rank`-th of `size` equal parts of `output`.
    AllGather {
        /// Every rank's part: `size` times the elements of `input`.
        output: &'a Tensor,
        /// This rank's.
        input: &'a Tensor,
    },
    /// Reduces a tensor over all ranks and leaves each of them one of `size` equal parts. In place where `output` is the `rank`-th part
    /// of `input`; the other parts stay as they are.
    ReduceScatter {
        /// This rank's part of the result.
        output: &'a Tensor,
        /// What is reduced.
        input: &'a Tensor,
        /// How.
        op: ReduceOp,
    },
}

/// The dtypes that every backend takes.
const KINDS: [Kind; 8] =
    [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8];

pub(crate) fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

impl<'a> Collective<'a> {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce(..) => "all_reduce",
            Self::Broadcast(..) => "broadcast",
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
        }
    }

    /// What this rank gives; all its tensors are of one device.
    pub(crate) fn input(self) -> &'a Tensor {
        match self {
            Self::AllReduce(tensor, _) | Self::Broadcast(tensor, _) => tensor,
            Self::AllGather { input, .. } | Self::ReduceScatter { input, .. } => input,
        }
    }

    /// Where this rank has the result.
    pub(crate) fn output(self) -> &'a Tensor {
        match self {
            Self::AllReduce(tensor, _) | Self::Broadcast(tensor, _) => tensor,
            Self::AllGather { output, .. } | Self::ReduceScatter { output, .. } => output,
        }
    }

    /// The bytes of what this rank gives.
    pub(crate) fn bytes(self) -> usize {
        bytes_of(self.input())
    }

    /// Whether `size` ranks can do it, checked before anything is sent: a rank that refuses alone would leave the others waiting, so
    /// the answer depends on nothing but the call.
    pub(crate) fn check(self, rank: usize, size: usize) -> Result<(), CollectiveError> {
        let refuse = |reason| Err(CollectiveError::InvalidTensor(Operation::new(self.name(), rank), reason));
        for tensor in [self.input(), self.output()] {
            if !tensor.defined() {
                return refuse("the tensor is undefined".into());
            }
            if !KINDS.contains(&tensor.kind()) {
                return refuse(format!("tensors of {:?} cannot be sent", tensor.kind()));
            }
            if !tensor.is_contiguous() {
                return refuse(format!("a tensor of shape {:?} is not contiguous", tensor.size()));
            }
        }
        let (whole, part) = match self {
            Self::AllReduce(..) => return Ok(()),
            Self::Broadcast(_, root) if root < size => return Ok(()),
            Self::Broadcast(_, root) => return refuse(format!("there is no rank {root} among {size}")),
            Self::AllGather { output, input } => (output, input),
            Self::ReduceScatter { output, input, .. } => (input, output),
        };
        let place = |tensor: &Tensor| format!("{:?} on {:?}", tensor.kind(), tensor.device());
        if whole.kind() != part.kind() || whole.device() != part.device() {
            return refuse(format!("{} does not go with {}", place(whole), place(part)));
        }
        let (all, each) = (whole.numel(), part.numel());
        if all != each * size {
            return refuse(format!("{size} ranks x {each} elements do not make {all}"));
        }
        Ok(())
    }
}

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
