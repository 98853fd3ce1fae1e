//! Collectives, the checks of their tensors, and a rank that starts them.

use std::cell::Cell;
use std::time::Duration;

use tch::{Kind, Tensor};

use super::{CollectiveError, DEFAULT_TIMEOUT, Operation, ReduceOp};

/// A collective operation.
#[derive(Debug, Clone, Copy)]
pub enum Collective<'a> {
    /// Reduces a tensor over all ranks, in place. All ranks get identical bits.
    AllReduce(&'a Tensor, ReduceOp),
    /// Copies the tensor of the given rank to all ranks, in place.
    Broadcast(&'a Tensor, usize),
    /// Collects all parts in rank order. In place if `input` is the `rank`-th of `size` parts of `output`.
    AllGather {
        /// All parts: `size` times the elements of `input`.
        output: &'a Tensor,
        /// This rank's part.
        input: &'a Tensor,
    },
    /// Reduces a tensor over all ranks and leaves each rank one of `size` equal parts. In place if `output`
    /// is the `rank`-th part of `input`; the other parts then stay unchanged.
    ReduceScatter {
        /// This rank's part of the result.
        output: &'a Tensor,
        /// The tensor to reduce.
        input: &'a Tensor,
        /// The reduction.
        op: ReduceOp,
    },
}

/// The dtypes that every backend supports.
const KINDS: [Kind; 8] =
    [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8];

pub(crate) fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

impl<'a> Collective<'a> {
    /// Returns the name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce(..) => "all_reduce",
            Self::Broadcast(..) => "broadcast",
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
        }
    }

    /// Returns this rank's input. All tensors of an operation are on one device.
    pub fn input(self) -> &'a Tensor {
        match self {
            Self::AllReduce(tensor, _) | Self::Broadcast(tensor, _) => tensor,
            Self::AllGather { input, .. } | Self::ReduceScatter { input, .. } => input,
        }
    }

    /// Returns the tensor that receives this rank's result.
    pub fn output(self) -> &'a Tensor {
        match self {
            Self::AllReduce(tensor, _) | Self::Broadcast(tensor, _) => tensor,
            Self::AllGather { output, .. } | Self::ReduceScatter { output, .. } => output,
        }
    }

    /// Returns the bytes of this rank's input.
    pub fn bytes(self) -> usize {
        bytes_of(self.input())
    }

    /// Checks the tensors for `size` ranks before anything is sent. The result depends only on the call, so
    /// all ranks agree: if one rank alone failed here, the others would wait.
    pub(crate) fn check(self, rank: usize, size: usize) -> Result<(), CollectiveError> {
        let invalid = |reason| Err(CollectiveError::InvalidTensor(Operation::new(self.name(), rank), reason));
        for tensor in [self.input(), self.output()] {
            if !tensor.defined() {
                return invalid("the tensor is undefined".into());
            }
            if !KINDS.contains(&tensor.kind()) {
                return invalid(format!("tensors of {:?} are not supported", tensor.kind()));
            }
            if !tensor.is_contiguous() {
                return invalid(format!("the tensor of shape {:?} is not contiguous", tensor.size()));
            }
        }
        let (input, output) = (self.input(), self.output());
        let (whole, part) = match self {
            Self::AllReduce(..) => return Ok(()),
            Self::Broadcast(_, root) if root < size => return Ok(()),
            Self::Broadcast(_, root) => {
                return invalid(format!("rank {root} does not exist; there are {size} ranks"));
            }
            Self::AllGather { output, input } => (output, input),
            Self::ReduceScatter { output, input, .. } => (input, output),
        };
        let describe = |tensor: &Tensor| format!("{:?} on {:?}", tensor.kind(), tensor.device());
        if whole.kind() != part.kind() || whole.device() != part.device() {
            return invalid(format!("input and output differ: {} and {}", describe(input), describe(output)));
        }
        let (all, each) = (whole.numel(), part.numel());
        if all != each * size {
            return invalid(format!("{all} elements are not {size} ranks x {each} elements"));
        }
        Ok(())
    }
}

/// A rank of a group, with its time-out and the number of operations that it started. Backends have one.
#[derive(Debug)]
pub struct Caller {
    /// The rank, 0-based.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The time-out of operations that start later.
    pub timeout: Duration,
    started: Cell<u64>,
}

impl Caller {
    /// Returns a rank that has started no operation, with the default time-out.
    pub fn new(rank: usize, size: usize) -> Self {
        Self { rank, size, timeout: DEFAULT_TIMEOUT, started: Cell::new(0) }
    }

    /// Checks the tensors before anything is sent. The result depends only on the call, so all ranks agree.
    pub fn check(&self, collective: Collective<'_>) -> Result<(), CollectiveError> {
        collective.check(self.rank, self.size)
    }

    /// Numbers the next operation, which has this many bytes.
    pub fn operation(&self, op: &'static str, bytes: usize) -> Operation {
        self.started.update(|started| started + 1);
        Operation { op, rank: self.rank, sequence: self.started.get(), bytes, timeout: self.timeout }
    }
}
