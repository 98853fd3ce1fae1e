//! One process: every operation ends at once, and refuses what the other backends refuse.

use std::time::Duration;

use tch::Tensor;

use super::checks::Check;
use super::error::Operation;
use super::{CollectiveError, Done, ProcessGroup, ReduceOp, Work};

/// The group of a run with one rank.
#[derive(Debug, Default)]
pub struct SingleGroup;

fn check(op: &'static str) -> Check {
    Check { op, rank: 0, size: 1 }
}

impl SingleGroup {
    /// Copies `from` to `to`, of the same number of elements.
    fn copy(op: &'static str, to: &Tensor, from: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        let operation = Operation {
            op,
            rank: 0,
            sequence: 0,
            bytes: 0,
            timeout: Duration::ZERO,
        };
        let mut flat = to.f_view(-1).map_err(|error| operation.torch(error))?;
        let source = from.f_view(-1).map_err(|error| operation.torch(error))?;
        tch::no_grad(|| flat.f_copy_(&source)).map_err(|error| operation.torch(error))?;
        Ok(Box::new(Done))
    }
}

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

    fn all_reduce(&self, tensor: &Tensor, _op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        check("all_reduce").tensor(tensor)?;
        Ok(Box::new(Done))
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>, CollectiveError> {
        let check = check("broadcast");
        check.tensor(tensor)?;
        check.root(root)?;
        Ok(Box::new(Done))
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        check("all_gather").parts(output, input)?;
        Self::copy("all_gather", output, input)
    }

    fn reduce_scatter(
        &self,
        output: &Tensor,
        input: &Tensor,
        _op: ReduceOp,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        check("reduce_scatter").parts(input, output)?;
        Self::copy("reduce_scatter", output, input)
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}
