//! c10d's Gloo process group: collectives between CPU processes over TCP.

use std::mem::ManuallyDrop;
use std::time::Duration;

pub use dtrain_shared_memory::Reduction as ReduceOp;
use tch::Tensor;

use crate::error::{ShimError, checked, fetched, made};
use crate::ffi::{self, DtError, GlooHandle, Lent, LentList, Owned, WorkHandle};
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
    ///
    /// # Errors
    /// `Timeout` or `Network` where a peer does not come, `Other` where the transport cannot be made.
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
            ffi::dt_gloo_new(
                &store.0,
                rank,
                size,
                timeout,
                by_interface,
                name.into(),
                out,
                error,
            )
        })?;
        Ok(Self(ManuallyDrop::new(group)))
    }

    fn start(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        call: impl FnOnce(&GlooHandle, &mut Option<Owned<WorkHandle>>, &mut DtError) -> i32,
    ) -> Result<GlooWork, ShimError> {
        let fits = |tensor: &&Tensor| {
            tensor.defined() && tensor.device() == tch::Device::Cpu && tensor.is_contiguous()
        };
        if !tensors.iter().all(fits) {
            return Err(ShimError::invalid(
                op,
                "Gloo takes contiguous tensors on the CPU alone",
            ));
        }
        let handle = made(op, |out, error| call(&self.0, out, error))?;
        Ok(GlooWork { handle, op })
    }

    /// Reduces `tensor` over all ranks, in place. Failures of the network come from the work.
    pub fn all_reduce(
        &self,
        tensor: &Tensor,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        self.start("all_reduce", &[tensor], |group, out, error| {
            ffi::dt_gloo_all_reduce(group, tensor.into(), op as i32, millis(timeout), out, error)
        })
    }

    /// Copies rank `root`'s tensor to all ranks, in place.
    pub fn broadcast(&self, tensor: &Tensor, root: usize, timeout: Duration) -> Result<GlooWork, ShimError> {
        self.start("broadcast", &[tensor], |group, out, error| {
            ffi::dt_gloo_broadcast(group, tensor.into(), root as i32, millis(timeout), out, error)
        })
    }

    /// Collects every rank's `input` into `outputs`, one tensor of the input's shape per rank.
    pub fn all_gather(
        &self,
        outputs: &[Tensor],
        input: &Tensor,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        let tensors: Vec<&Tensor> = outputs.iter().chain([input]).collect();
        let parts: Vec<Lent<'_>> = outputs.iter().map(Lent::from).collect();
        self.start("all_gather", &tensors, |group, out, error| {
            ffi::dt_gloo_all_gather(
                group,
                LentList::new(&parts),
                input.into(),
                millis(timeout),
                out,
                error,
            )
        })
    }

    /// Reduces `input` (world size x `output`'s elements) over all ranks and leaves the rank's own part in `output`.
    pub fn reduce_scatter(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        self.start("reduce_scatter", &[output, input], |group, out, error| {
            let (output, input, timeout) = (output.into(), input.into(), millis(timeout));
            ffi::dt_gloo_reduce_scatter(group, output, input, op as i32, timeout, out, error)
        })
    }

    /// Ends when every rank has called it.
    pub fn barrier(&self, timeout: Duration) -> Result<GlooWork, ShimError> {
        self.start("barrier", &[], |group, out, error| {
            ffi::dt_gloo_barrier(group, millis(timeout), out, error)
        })
    }

    /// Ends the group's threads. Call it when no operation is in flight: it waits for those that are.
    pub fn shutdown(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl GlooWork {
    /// Waits until the operation has ended, at most until its own time-out.
    ///
    /// # Errors
    /// `Timeout` where a peer did not come in time, `Network` where one died.
    pub fn wait(&self) -> Result<(), ShimError> {
        checked(self.op, |error| ffi::dt_work_wait(&self.handle, error))
    }

    /// Whether the operation has ended, well or badly; never blocks.
    pub fn is_completed(&self) -> Result<bool, ShimError> {
        fetched(self.op, |out, error| {
            ffi::dt_work_is_completed(&self.handle, out, error)
        })
    }
}
