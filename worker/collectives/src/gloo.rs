//! Gloo: collectives between CPU processes over TCP, by libtorch's own engine.
//!
//! Tensors on another device go through the host: copied there at the start of an operation, and back in its
//! `wait`. This is a slow fallback for GPUs.

use std::time::Duration;

use dtrain_torch_shim::gloo::{Gloo, GlooWork, Operation as Kind, Transport};
use dtrain_torch_shim::store::TcpStore;
use tch::{Device, TchError, Tensor};

use super::collective::{Caller, bytes_of};
use super::{Collective, CollectiveError, CompletedWork, Operation, ProcessGroup, Work};

/// A group of CPU processes connected by Gloo.
#[derive(Debug)]
pub struct GlooGroup {
    gloo: Gloo,
    caller: Caller,
}

impl GlooGroup {
    /// Connects `size` ranks through `store`. Blocks until all have connected or `timeout` has passed. The
    /// time-out of operations is [`super::DEFAULT_TIMEOUT`] until it is set.
    pub fn connect(
        store: &TcpStore,
        rank: usize,
        size: usize,
        timeout: Duration,
        transport: Transport<'_>,
    ) -> Result<Self, CollectiveError> {
        let gloo = Gloo::new(store, rank, size, timeout, transport)
            .map_err(|error| Operation::connecting(rank, timeout).error(error))?;
        Ok(Self { gloo, caller: Caller::new(rank, size) })
    }

    /// Sends a contiguous CPU tensor to rank `to`, which receives it. Blocks until it has.
    pub fn send(&self, tensor: &Tensor, to: usize) -> Result<(), CollectiveError> {
        self.exchange("send", Kind::Send(to), tensor)
    }

    /// Receives into a contiguous CPU tensor what rank `from` sends.
    pub fn receive(&self, tensor: &Tensor, from: usize) -> Result<(), CollectiveError> {
        self.exchange("receive", Kind::Receive(from), tensor)
    }

    fn exchange(&self, name: &'static str, kind: Kind, tensor: &Tensor) -> Result<(), CollectiveError> {
        let operation = self.caller.operation(name, bytes_of(tensor));
        let work = self.gloo.start(kind, &[tensor.shallow_clone()], &[], self.caller.timeout);
        work.and_then(|work| work.wait()).map_err(|error| operation.error(error))
    }
}

/// Returns a flat tensor on the host: a view if the tensor is there already, otherwise a copy.
fn to_host(tensor: &Tensor) -> Result<Tensor, TchError> {
    // Autograd must not record the collective, which works on values.
    tensor.f_detach()?.f_to_device(Device::Cpu)?.f_view(-1)
}

struct Pending {
    work: GlooWork,
    operation: Operation,
    /// The copy of a result that was staged on the host: (from, to).
    copy_back: Option<(Tensor, Tensor)>,
}

impl Work for Pending {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.work.wait().map_err(|error| self.operation.error(error))?;
        if let Some((from, mut to)) = self.copy_back {
            to.f_copy_(&from.view_as(&to)).map_err(|error| self.operation.torch(error))?;
        }
        Ok(())
    }
}

impl ProcessGroup for GlooGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.caller.rank, self.caller.size)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.caller.timeout = timeout;
    }

    fn start(&self, collective: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        self.caller.check(collective)?;
        // Gloo sends nothing for an empty tensor, but its ring would wait. All ranks agree on the shape.
        if collective.input().numel() == 0 {
            return Ok(Box::new(CompletedWork));
        }
        let operation = self.caller.operation(collective.name(), collective.bytes());
        let torch = |error| operation.torch(error);
        let staged = match collective {
            // The operation writes all elements, so nothing is copied from the device.
            Collective::AllGather { output, .. } if output.device() != Device::Cpu => {
                Tensor::f_empty([output.numel() as i64], (output.kind(), Device::Cpu))
            }
            _ => to_host(collective.output()),
        };
        let staged = staged.map_err(torch)?;
        let input = || Ok(vec![to_host(collective.input()).map_err(torch)?]);
        let (kind, outputs, inputs) = match collective {
            Collective::AllReduce(_, op) => (Kind::AllReduce(op), vec![staged.shallow_clone()], Vec::new()),
            Collective::Broadcast(_, root) => {
                (Kind::Broadcast(root), vec![staged.shallow_clone()], Vec::new())
            }
            Collective::AllGather { .. } => {
                let parts = staged.f_chunk(self.caller.size as i64, 0).map_err(torch)?;
                (Kind::AllGather, parts, input()?)
            }
            Collective::ReduceScatter { op, .. } => {
                (Kind::ReduceScatter(op), vec![staged.shallow_clone()], input()?)
            }
        };
        let work = self.gloo.start(kind, &outputs, &inputs, self.caller.timeout);
        let copy_back = match collective.output().device() {
            Device::Cpu => None,
            _ => Some((staged, collective.output().f_detach().map_err(torch)?)),
        };
        Ok(Box::new(Pending { work: work.map_err(|error| operation.error(error))?, operation, copy_back }))
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        let operation = self.caller.operation("barrier", 0);
        let work = self.gloo.start(Kind::Barrier, &[], &[], self.caller.timeout);
        let work = work.map_err(|error| operation.error(error))?;
        Ok(Box::new(Pending { work, operation, copy_back: None }))
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        self.barrier()?.wait()?;
        self.gloo.shutdown();
        Ok(())
    }
}
