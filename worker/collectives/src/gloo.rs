//! Gloo: collectives between CPU processes over TCP, with libtorch's own engine.
//!
//! Tensors on another device travel through the host: copied there when an operation starts and back when it is waited
//! for. That is the fallback for GPUs, not the way to use them.

use std::time::Duration;

use dtrain_torch_shim::gloo::{Gloo, GlooWork, Transport};
use dtrain_torch_shim::store::TcpStore;
use tch::{Device, Tensor};

use super::caller::{Caller, bytes_of};
use super::error::Operation;
use super::{CollectiveError, Done, ProcessGroup, ReduceOp, Work};

/// A group of CPU processes connected by Gloo.
#[derive(Debug)]
pub struct GlooGroup {
    gloo: Gloo,
    caller: Caller,
}

impl GlooGroup {
    /// Connects `size` ranks through `store`; blocks until all are there or `timeout` has passed. The operations of the
    /// group wait for [`super::DEFAULT_TIMEOUT`] unless told otherwise.
    ///
    /// # Errors
    /// `TimedOut` where a rank does not come, `PeerLost` where the store or a peer is gone.
    pub fn connect(
        store: &TcpStore,
        rank: usize,
        size: usize,
        timeout: Duration,
        transport: Transport<'_>,
    ) -> Result<Self, CollectiveError> {
        let operation = Operation::connecting(rank, timeout);
        let gloo =
            Gloo::new(store, rank, size, timeout, transport).map_err(|error| operation.error(error))?;
        Ok(Self {
            gloo,
            caller: Caller::new(rank, size),
        })
    }
}

/// A tensor's stand-in on the host: itself where it lies there already.
fn host(operation: Operation, tensor: &Tensor) -> Result<Tensor, CollectiveError> {
    // Autograd must not see the collective: it works on values.
    let tensor = tensor.f_detach().map_err(|error| operation.torch(error))?;
    match tensor.device() {
        Device::Cpu => Ok(tensor),
        _ => tensor
            .f_to_device(Device::Cpu)
            .map_err(|error| operation.torch(error)),
    }
}

struct Pending {
    work: GlooWork,
    operation: Operation,
    /// Where a result that was staged on the host goes: (from, to).
    copy_back: Option<(Tensor, Tensor)>,
}

impl Pending {
    fn boxed(
        operation: Operation,
        work: GlooWork,
        staged: Tensor,
        target: &Tensor,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let copy_back = match target.device() {
            Device::Cpu => None,
            _ => Some((staged, target.f_detach().map_err(|error| operation.torch(error))?)),
        };
        Ok(Box::new(Self {
            work,
            operation,
            copy_back,
        }))
    }
}

impl Work for Pending {
    fn is_completed(&self) -> Result<bool, CollectiveError> {
        self.work
            .is_completed()
            .map_err(|error| self.operation.error(error))
    }

    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.work.wait().map_err(|error| self.operation.error(error))?;
        if let Some((from, mut to)) = self.copy_back {
            to.f_copy_(&from.view_as(&to))
                .map_err(|error| self.operation.torch(error))?;
        }
        Ok(())
    }
}

impl ProcessGroup for GlooGroup {
    fn rank(&self) -> usize {
        self.caller.rank
    }

    fn size(&self) -> usize {
        self.caller.size
    }

    fn backend(&self) -> &'static str {
        "gloo"
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check("all_reduce").tensor(tensor)?;
        // Gloo has nothing to send for an empty tensor, and its ring would wait for it; all ranks agree on the shape.
        if tensor.numel() == 0 {
            return Ok(Box::new(Done));
        }
        let operation = self.caller.operation("all_reduce", bytes_of(tensor));
        let staged = host(operation, tensor)?;
        let work = self
            .gloo
            .all_reduce(&staged, op, self.caller.timeout)
            .map_err(|error| operation.error(error))?;
        Pending::boxed(operation, work, staged, tensor)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>, CollectiveError> {
        let check = self.caller.check("broadcast");
        check.tensor(tensor)?;
        check.root(root)?;
        if tensor.numel() == 0 {
            return Ok(Box::new(Done));
        }
        let operation = self.caller.operation("broadcast", bytes_of(tensor));
        let staged = host(operation, tensor)?;
        let work = self
            .gloo
            .broadcast(&staged, root, self.caller.timeout)
            .map_err(|error| operation.error(error))?;
        Pending::boxed(operation, work, staged, tensor)
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check("all_gather").parts(output, input)?;
        if input.numel() == 0 {
            return Ok(Box::new(Done));
        }
        let operation = self.caller.operation("all_gather", bytes_of(input));
        let torch = |error| operation.torch(error);
        let from = host(operation, input)?.f_view(-1).map_err(torch)?;
        let staged = match output.device() {
            Device::Cpu => output.f_detach().map_err(torch)?,
            _ => output
                .f_empty_like()
                .and_then(|empty| empty.f_to_device(Device::Cpu))
                .map_err(torch)?,
        };
        let parts = staged
            .f_view(-1)
            .and_then(|flat| flat.f_chunk(self.caller.size as i64, 0))
            .map_err(torch)?;
        let work = self
            .gloo
            .all_gather(&parts, &from, self.caller.timeout)
            .map_err(|error| operation.error(error))?;
        Pending::boxed(operation, work, staged, output)
    }

    fn reduce_scatter(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check("reduce_scatter").parts(input, output)?;
        if input.numel() == 0 {
            return Ok(Box::new(Done));
        }
        let operation = self.caller.operation("reduce_scatter", bytes_of(input));
        let torch = |error| operation.torch(error);
        let from = host(operation, input)?.f_view(-1).map_err(torch)?;
        let staged = host(operation, output)?.f_view(-1).map_err(torch)?;
        let work = self
            .gloo
            .reduce_scatter(&staged, &from, op, self.caller.timeout)
            .map_err(|error| operation.error(error))?;
        Pending::boxed(operation, work, staged, output)
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        let operation = self.caller.operation("barrier", 0);
        let work = self
            .gloo
            .barrier(self.caller.timeout)
            .map_err(|error| operation.error(error))?;
        Ok(Box::new(Pending {
            work,
            operation,
            copy_back: None,
        }))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        self.barrier()?.wait()?;
        let operation = self.caller.operation("shutdown", 0);
        self.gloo.shutdown().map_err(|error| operation.error(error))
    }
}
