//! Ranks that are not there: a group for a step that is rehearsed, not taken.

use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{CollectiveError, Done, ProcessGroup, ReduceOp, SingleGroup, Work};

/// Rank 0 of a group whose other ranks do not exist: every operation ends at once, and what would come from the others is not
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

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        SingleGroup.all_reduce(tensor, op)
    }

    fn broadcast(&self, _tensor: &Tensor, _root: usize) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn all_gather(&self, _output: &Tensor, _input: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn reduce_scatter(
        &self,
        _output: &Tensor,
        _input: &Tensor,
        _op: ReduceOp,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
