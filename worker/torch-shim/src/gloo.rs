//! c10d's Gloo process group: collectives between CPU processes over TCP.

use std::ptr::{self, NonNull};
use std::time::Duration;

use tch::Tensor;

use crate::error::{ErrorKind, ShimError, c_string, checked};
use crate::ffi::{self, TensorPtr};
use crate::store::{TcpStore, millis};

/// How the elements of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ReduceOp {
    /// The sum.
    Sum = 0,
    /// The least.
    Min = 1,
    /// The greatest.
    Max = 2,
}

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
#[derive(Debug)]
pub struct Gloo {
    handle: NonNull<ffi::GlooHandle>,
}

// SAFETY: the group may be used from any one thread at a time; its own threads synchronise with a mutex.
unsafe impl Send for Gloo {}

/// An operation under way.
#[derive(Debug)]
pub struct GlooWork {
    handle: NonNull<ffi::WorkHandle>,
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
        let op = "connect the Gloo group";
        let (rank, size) = (index(op, rank)?, index(op, size)?);
        let (host, interface) = match transport {
            Transport::Default => (None, None),
            Transport::Host(name) => (Some(c_string(op, name)?), None),
            Transport::Interface(name) => (None, Some(c_string(op, name)?)),
        };
        let pointer =
            |text: &Option<std::ffi::CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut out = ptr::null_mut();
        checked(op, |error| {
            // SAFETY: the store handle is live and the group takes its own reference; strings are null or NUL-terminated.
            unsafe {
                ffi::dt_gloo_new(
                    store.as_ptr(),
                    rank,
                    size,
                    millis(timeout),
                    pointer(&host),
                    pointer(&interface),
                    &mut out,
                    error,
                )
            }
        })?;
        NonNull::new(out)
            .map(|handle| Self { handle })
            .ok_or_else(|| ShimError::new(op, ErrorKind::Other, "no group was made"))
    }

    fn start(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        call: impl FnOnce(*mut ffi::GlooHandle, *mut *mut ffi::WorkHandle, *mut ffi::DtError) -> i32,
    ) -> Result<GlooWork, ShimError> {
        for tensor in tensors {
            if !tensor.defined() || tensor.device() != tch::Device::Cpu || !tensor.is_contiguous() {
                return Err(ShimError::new(
                    op,
                    ErrorKind::InvalidArgument,
                    "Gloo takes contiguous tensors on the CPU alone",
                ));
            }
        }
        let mut out = ptr::null_mut();
        checked(op, |error| call(self.handle.as_ptr(), &mut out, error))?;
        NonNull::new(out)
            .map(|handle| GlooWork { handle, op })
            .ok_or_else(|| ShimError::new(op, ErrorKind::Other, "no work was made"))
    }

    /// Reduces `tensor` over all ranks, in place.
    ///
    /// # Errors
    /// `InvalidArgument` for tensors or dtypes that Gloo does not take. Failures of the network come from the work.
    pub fn all_reduce(
        &self,
        tensor: &Tensor,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        self.start("all_reduce", &[tensor], |group, out, error| {
            // SAFETY: all pointers are live during the call; the work keeps its own reference to the tensor.
            unsafe { ffi::dt_gloo_all_reduce(group, raw(tensor), op as i32, millis(timeout), out, error) }
        })
    }

    /// Copies rank `root`'s tensor to all ranks, in place.
    ///
    /// # Errors
    /// As [`Gloo::all_reduce`].
    pub fn broadcast(&self, tensor: &Tensor, root: usize, timeout: Duration) -> Result<GlooWork, ShimError> {
        let root = index("broadcast", root)?;
        self.start("broadcast", &[tensor], |group, out, error| {
            // SAFETY: as in all_reduce.
            unsafe { ffi::dt_gloo_broadcast(group, raw(tensor), root, millis(timeout), out, error) }
        })
    }

    /// Collects every rank's `input` into `outputs`, one tensor of the input's shape per rank.
    ///
    /// # Errors
    /// As [`Gloo::all_reduce`].
    pub fn all_gather(
        &self,
        outputs: &[Tensor],
        input: &Tensor,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        let mut tensors: Vec<&Tensor> = outputs.iter().collect();
        tensors.push(input);
        let pointers: Vec<TensorPtr> = outputs.iter().map(raw).collect();
        self.start("all_gather", &tensors, |group, out, error| {
            // SAFETY: as in all_reduce; pointers holds one live tensor per rank.
            unsafe {
                ffi::dt_gloo_all_gather(
                    group,
                    pointers.as_ptr(),
                    pointers.len(),
                    raw(input),
                    millis(timeout),
                    out,
                    error,
                )
            }
        })
    }

    /// Reduces `input` (world size x `output`'s elements) over all ranks and leaves the rank's own part in `output`.
    ///
    /// # Errors
    /// As [`Gloo::all_reduce`].
    pub fn reduce_scatter(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<GlooWork, ShimError> {
        self.start("reduce_scatter", &[output, input], |group, out, error| {
            // SAFETY: as in all_reduce.
            unsafe {
                ffi::dt_gloo_reduce_scatter(
                    group,
                    raw(output),
                    raw(input),
                    op as i32,
                    millis(timeout),
                    out,
                    error,
                )
            }
        })
    }

    /// Ends when every rank has called it.
    ///
    /// # Errors
    /// As [`Gloo::all_reduce`].
    pub fn barrier(&self, timeout: Duration) -> Result<GlooWork, ShimError> {
        self.start("barrier", &[], |group, out, error| {
            // SAFETY: as in all_reduce.
            unsafe { ffi::dt_gloo_barrier(group, millis(timeout), out, error) }
        })
    }

    /// Ends the group's threads. Call it when no operation is in flight: it waits for those that are.
    ///
    /// # Errors
    /// What Gloo reports while it closes its connections.
    pub fn shutdown(self) -> Result<(), ShimError> {
        let handle = self.handle;
        std::mem::forget(self);
        checked("close the Gloo group", |error| {
            // SAFETY: the handle is live and, since self is forgotten, freed once.
            unsafe { ffi::dt_gloo_free(handle.as_ptr(), error) }
        })
    }
}

/// Dropping a group without [`Gloo::shutdown`] leaves its threads and connections to the end of the process: joining them
/// could block for the time-out of an operation whose peer is gone.
impl Drop for Gloo {
    fn drop(&mut self) {}
}

impl GlooWork {
    /// Waits until the operation has ended, at most until its own time-out.
    ///
    /// # Errors
    /// `Timeout` where a peer did not come in time, `Network` where one died.
    pub fn wait(&self) -> Result<(), ShimError> {
        checked(self.op, |error| {
            // SAFETY: the handle is live.
            unsafe { ffi::dt_work_wait(self.handle.as_ptr(), 0, error) }
        })
    }

    /// Whether the operation has ended, well or badly; never blocks.
    ///
    /// # Errors
    /// None known.
    pub fn is_completed(&self) -> Result<bool, ShimError> {
        let mut out = false;
        checked(self.op, |error| {
            // SAFETY: the handle is live and out a valid place.
            unsafe { ffi::dt_work_is_completed(self.handle.as_ptr(), &mut out, error) }
        })?;
        Ok(out)
    }
}

impl Drop for GlooWork {
    fn drop(&mut self) {
        // SAFETY: the handle is live and freed once; the group holds its own reference while the operation runs.
        unsafe { ffi::dt_work_free(self.handle.as_ptr()) }
    }
}

fn raw(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast()
}

fn index(op: &'static str, value: usize) -> Result<i32, ShimError> {
    i32::try_from(value)
        .map_err(|_| ShimError::new(op, ErrorKind::InvalidArgument, format!("{value} is too large")))
}
