//! One process: every operation ends at once.

use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{Collective, CollectiveError, Done, Operation, ProcessGroup, Work};

/// Rank 0 of so many, alone: the group of a run with one rank, which refuses what the other backends refuse;
/// or, for a step that is rehearsed and not taken, one of several whose others do not exist. What would come
/// from them is not there, and memory is as of a group of that size.
#[derive(Debug)]
pub struct LoneGroup(pub usize);

impl ProcessGroup for LoneGroup {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        self.0
    }

    fn set_timeout(&mut self, _timeout: Duration) {}

    /// Memory as ranks of one machine share it.
    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        if self.0 == 1 {
            return Ok(None);
        }
        Ok(Tensor::f_zeros([numel as i64], (kind, Device::Cpu)).ok())
    }

    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        one.check(0, self.0)?;
        if let (1, Collective::AllGather { .. } | Collective::ReduceScatter { .. }) = (self.0, one) {
            let copy = || one.output().f_view(-1)?.f_copy_(&one.input().f_view(-1)?).map(drop);
            tch::no_grad(copy).map_err(|error| Operation::new(one.name(), 0).torch(error))?;
        }
        Ok(Box::new(Done))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
