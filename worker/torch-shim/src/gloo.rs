//! c10d's Gloo process group: collectives between CPU processes over TCP.

use std::mem::ManuallyDrop;
use std::time::Duration;

pub use dtrain_shared_memory::Reduction as ReduceOp;
use tch::Tensor;

use crate::error::{ShimError, checked, made};
use crate::ffi::{self, GlooHandle, Lent, LentList, Owned, WorkHandle};
use crate::store::{TcpStore, millis};

/// Which network address Gloo listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport<'a> {
    /// What this machine's host name resolves to, as torch does by default.
    Default,
    /// The address that a host name or IP address stands for, for example `127.0.0.1` for a run on one machine.
    Host(&'a str),
    /// A network interface by name, for example `eth0`.
    Interface(&'a str),
}

/// A group of ranks connected by Gloo.
///
/// All ranks call the same operations in the same order. Tensors must be dense, contiguous and on the CPU; an operation
/// keeps its own reference to them until it has ended. The group is not `Sync`: the order of calls is part of the protocol.
///
/// Dropping a group without [`Gloo::shutdown`] leaves its threads and connections to the end of the process: joining them
/// could block for the time-out of an operation whose peer is gone.
#[derive(Debug)]
pub struct Gloo(ManuallyDrop<Owned<GlooHandle>>);

// SAFETY: the group may be used from any one thread at a time; its own threads synchronise with a mutex.
unsafe impl Send for Gloo {}

/// What a group does with one tensor of `outputs` and of `inputs`, unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reduces the output over all ranks, in place; no input.
    AllReduce(ReduceOp),
    /// Copies this rank's output to all ranks, in place; no input.
    Broadcast(usize),
    /// Collects every rank's input into one output per rank.
    AllGather,
    /// Reduces the input (world size x the output's elements) over all ranks and leaves the rank's own part in the output.
    ReduceScatter(ReduceOp),
    /// Ends when every rank has called it; no tensors.
    Barrier,
}

/// An operation under way.
#[derive(Debug)]
pub struct GlooWork {
    handle: Owned<WorkHandle>,
    op: &'static str,
}

// SAFETY: c10d::Work guards its state with a mutex and may be waited for from any thread.
unsafe impl Send for GlooWork {}

impl Gloo {
    /// Connects `size` ranks through `store`; blocks until all are there or `timeout` has passed. `timeout` is also that
    /// of operations which state none.
    pub fn new(
        store: &TcpStore,
        rank: usize,
        size: usize,
        timeout: Duration,
        transport: Transport<'_>,
    ) -> Result<Self, ShimError> {
        let (by_interface, name) = match transport {
            Transport::Default => (false, ""),
            Transport::Host(name) => (false, name),
            Transport::Interface(name) => (true, name),
        };
        let (rank, size, timeout) = (rank as i32, size as i32, millis(timeout));
        let group = made("connect the Gloo group", |out, error| {
            ffi::dt_gloo_new(&store.0, rank, size, timeout, by_interface, name.into(), out, error)
        })?;
        Ok(Self(ManuallyDrop::new(group)))
    }

    /// Starts an operation, with its tensors as [`Operation`] says. Failures of the network come from the work.
    pub fn start(
        &self,
        operation: Operation,
        outputs: &[Tensor],
        inputs: &[Tensor],
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        let (op, what, value) = match operation {
            Operation::AllReduce(op) => ("all_reduce", 0, op as i32),
            Operation::Broadcast(root) => ("broadcast", 1, root as i32),
            Operation::AllGather => ("all_gather", 2, 0),
            Operation::ReduceScatter(op) => ("reduce_scatter", 3, op as i32),
            Operation::Barrier => ("barrier", 4, 0),
        };
        let fits = |tensor: &Tensor| {
            tensor.defined() && tensor.device() == tch::Device::Cpu && tensor.is_contiguous()
        };
        if !outputs.iter().chain(inputs).all(fits) {
            return Err(ShimError::invalid(op, "Gloo takes contiguous tensors on the CPU alone"));
        }
        let [to, from] = [outputs, inputs].map(|tensors| tensors.iter().map(Lent::from).collect::<Vec<_>>());
        let handle = made(op, |out, error| {
            let (to, from, timeout) = (LentList::new(&to), LentList::new(&from), millis(timeout));
            ffi::dt_gloo_start(&self.0, what, value, to, from, timeout, out, error)
        })?;
        Ok(GlooWork { handle, op })
    }

    /// Ends the group's threads. Call it when no operation is in flight: it waits for those that are.
    pub fn shutdown(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl GlooWork {
    /// Waits until the operation has ended: `Timeout` where a peer is late, `Network` where one died.
    pub fn wait(&self) -> Result<(), ShimError> {
        checked(self.op, |error| ffi::dt_work_wait(&self.handle, error))
    }
}
