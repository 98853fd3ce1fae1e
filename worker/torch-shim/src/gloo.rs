//! c10d's Gloo process group: collectives between CPU processes over TCP.

use std::mem::ManuallyDrop;
use std::time::Duration;

pub use dtrain_shared_memory::Reduction as ReduceOp;
use tch::Tensor;

use crate::error::{ShimError, create, try_call};
use crate::ffi::{self, Borrowed, BorrowedList, GlooHandle, Owned, WorkHandle};
use crate::store::{TcpStore, millis};

/// The network address on which Gloo listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport<'a> {
    /// The address of this machine's host name: torch's default.
    Default,
    /// The address of a host name or an IP address, for example `127.0.0.1` for a run on one machine.
    Host(&'a str),
    /// A network interface by name, for example `eth0`.
    Interface(&'a str),
}

/// A group of ranks connected by Gloo.
///
/// All ranks call the same operations in the same order. Tensors must be dense, contiguous and on the CPU; an
/// operation holds references to them until it ends. The order of calls must be fixed: not `Sync`.
///
/// If a group is dropped without [`Gloo::shutdown`], its threads and connections stay until the process ends:
/// joining them could block until an operation with a lost peer times out.
#[derive(Debug)]
pub struct Gloo(ManuallyDrop<Owned<GlooHandle>>);

// SAFETY: any one thread at a time may use the group; a mutex synchronises its own threads.
unsafe impl Send for Gloo {}

/// A collective. If not stated otherwise, `outputs` and `inputs` have one tensor each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reduces the output over all ranks, in place; no input.
    AllReduce(ReduceOp),
    /// Copies the output of the given rank to all ranks, in place; no input.
    Broadcast(usize),
    /// Collects every rank's input into one output per rank.
    AllGather,
    /// Reduces the input (world size x the output's elements) over all ranks; the output is this rank's part.
    ReduceScatter(ReduceOp),
    /// Ends when every rank has started it; no tensors.
    Barrier,
    /// Sends the output to the given rank, which receives into a tensor of equal bytes; no input. The time-out
    /// is the group's.
    Send(usize),
    /// Receives the output from the given rank; no input.
    Receive(usize),
}

/// An operation in flight.
#[derive(Debug)]
pub struct GlooWork {
    handle: Owned<WorkHandle>,
    op: &'static str,
}

// SAFETY: c10d::Work protects its state with a mutex, and any thread may wait for it.
unsafe impl Send for GlooWork {}

impl Gloo {
    /// Connects `size` ranks through `store`. Blocks until all have connected or `timeout` has passed.
    /// `timeout` is also the group's default for operations.
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
        let group = create("connect the Gloo group", |out, error| {
            ffi::dt_gloo_new(&store.0, rank, size, timeout, by_interface, name.into(), out, error)
        })?;
        Ok(Self(ManuallyDrop::new(group)))
    }

    /// Starts an operation on tensors as [`Operation`] requires. Network failures are returned by the work.
    pub fn start(
        &self,
        operation: Operation,
        outputs: &[Tensor],
        inputs: &[Tensor],
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        let (op, number, value) = match operation {
            Operation::AllReduce(op) => ("all_reduce", 0, op as i32),
            Operation::Broadcast(root) => ("broadcast", 1, root as i32),
            Operation::AllGather => ("all_gather", 2, 0),
            Operation::ReduceScatter(op) => ("reduce_scatter", 3, op as i32),
            Operation::Barrier => ("barrier", 4, 0),
            Operation::Send(to) => ("send", 5, to as i32),
            Operation::Receive(from) => ("receive", 6, from as i32),
        };
        let fits = |tensor: &Tensor| {
            tensor.defined() && tensor.device() == tch::Device::Cpu && tensor.is_contiguous()
        };
        if !outputs.iter().chain(inputs).all(fits) {
            return Err(ShimError::invalid(op, "Gloo needs contiguous tensors on the CPU"));
        }
        let [to, from] =
            [outputs, inputs].map(|tensors| tensors.iter().map(Borrowed::from).collect::<Vec<_>>());
        let handle = create(op, |out, error| {
            let (to, from, timeout) = (BorrowedList::new(&to), BorrowedList::new(&from), millis(timeout));
            ffi::dt_gloo_start(&self.0, number, value, to, from, timeout, out, error)
        })?;
        Ok(GlooWork { handle, op })
    }

    /// Ends the group's threads. Call it when no operation is in flight; otherwise it waits for them.
    pub fn shutdown(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl GlooWork {
    /// Waits until the operation has ended. Returns `Timeout` if a peer is late, `Network` if a peer died.
    pub fn wait(&self) -> Result<(), ShimError> {
        try_call(self.op, |error| ffi::dt_work_wait(&self.handle, error))
    }
}
