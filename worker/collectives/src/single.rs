//! One process: every operation ends at once.

use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{Collective, CollectiveError, Done, Operation, ProcessGroup, Work};

/// The group of a run with one rank, which refuses what the other backends refuse.
#[derive(Debug, Default)]
pub struct SingleGroup;

impl ProcessGroup for SingleGroup {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn backend(&self) -> &'static str {
        "single"
    }

    fn set_timeout(&mut self, _timeout: Duration) {}

    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        one.check(0, 1)?;
        if let Collective::AllGather { .. } | Collective::ReduceScatter { .. } = one {
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

/// Rank 0 of a group whose other ranks do not exist, for a step that is rehearsed and not taken: what would come from the others is not
/// there. Memory is as of a group of that size.
#[derive(Debug)]
pub struct PhantomGroup {
    size: usize,
}

impl PhantomGroup {
    /// Rank 0 of `size`.
    pub fn new(size: usize) -> Self {
        Self { size }
    }
}

impl ProcessGroup for PhantomGroup {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        self.size
    }

    fn backend(&self) -> &'static str {
        "phantom"
    }

    fn set_timeout(&mut self, _timeout: Duration) {}

    /// Memory as ranks of one machine share it.
    fn allocate(&self, numel: usize, kind: Kind) -> Result<Option<Tensor>, CollectiveError> {
        if self.size == 1 {
            return Ok(None);
        }
        Ok(Tensor::f_zeros([numel as i64], (kind, Device::Cpu)).ok())
    }

    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        one.check(0, self.size)?;
        Ok(Box::new(Done))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
