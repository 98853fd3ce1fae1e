//! A group without communication: every operation ends immediately.

use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{Collective, CollectiveError, CompletedWork, Operation, ProcessGroup, Work};

/// Rank 0 of this many ranks, without communication. With one rank: the group of a run with one process; it
/// rejects the same tensors as the other backends. With several: for a rehearsal, in which the other ranks do
/// not exist. Their data is missing, but memory is as in a real group of this size.
#[derive(Debug)]
pub struct LoneGroup(pub usize);

impl ProcessGroup for LoneGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (0, self.0)
    }

    fn set_timeout(&mut self, _timeout: Duration) {}

    /// Allocates a zeroed tensor in place of shared memory. Returns None for one rank.
    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        if self.0 == 1 {
            return Ok(None);
        }
        Ok(Tensor::f_zeros([numel as i64], (kind, Device::Cpu)).ok())
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        collective.check(0, self.0)?;
        if let (1, Collective::AllGather { .. } | Collective::ReduceScatter { .. }) = (self.0, collective) {
            let copy = || collective.output().f_view(-1)?.f_copy_(&collective.input().f_view(-1)?).map(drop);
            tch::no_grad(copy).map_err(|error| Operation::new(collective.name(), 0).torch(error))?;
        }
        Ok(Box::new(CompletedWork))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(CompletedWork))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
